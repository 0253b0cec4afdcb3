"""Names as tools and vendors print them: ``NVIDIA H100 80GB HBM3`` is the H100 with SXM, ``NVIDIA H100 PCIe`` is not.

A printed name is read as a set of words. Words that tell no two chips apart (the vendor, the kind of memory) are left
out; every other word must be one of the profile's own names, so that a variant without a profile stays unknown.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

_SEPARATORS = re.compile(r"(?:\((?:r|tm)\)|[\s_/,()®™-])+")
_SILENT = frozenset((
    "nvidia", "amd", "intel", "huawei", "google", "aws", "instinct", "cloud", "tesla", "gpu", "accelerator", "ai",
    "oam", "ac", "edition", "tensor", "core", "hbm", "hbm2", "hbm2e", "hbm3", "hbm3e", "hbm4", "gddr6", "gddr7"))
"""Words that tell no two profiles apart."""
_SXM = re.compile(r"sxm\d")

Words = frozenset[str]


def words_of(name: str) -> Words:
    """Words of a name that tell chips apart.

    >>> sorted(words_of("NVIDIA H100 80GB HBM3")), sorted(words_of("hgx-h100"))
    (['80gb', 'h100'], ['h100', 'hgx'])
    """
    return frozenset(_SXM.sub("sxm", word) for word in bare(name).split("-") if word)


def bare(name: str) -> str:
    """A name without the words that tell no two chips apart.

    >>> bare("NVIDIA B30"), bare("AMD Instinct(TM) MI300X OAM")
    ('b30', 'mi300x')
    """
    return "-".join(word for word in _SEPARATORS.split(name.lower()) if word and word not in _SILENT)


def meant(printed: str, names: Mapping[str, str]) -> str | None:
    """The profile that a printed name means; None where none does, or several could.

    Parameters
    ----------
    printed : str
        As a tool or a vendor writes it.
    names : mapping of str to str
        Names and aliases, and the profile that each leads to.

    Examples
    --------
    >>> names = {"h100-sxm": "h100-sxm", "h100": "h100-sxm", "h100-80gb": "h100-sxm"}
    >>> meant("NVIDIA H100 80GB HBM3", names), meant("NVIDIA H100 NVL", names)
    ('h100-sxm', None)
    """
    asked = words_of(printed)
    own = _own_words(names)
    found = {names[name] for name in names if words_of(name) and words_of(name) <= asked and asked <= own[names[name]]}
    return found.pop() if len(found) == 1 else None


def variant_hint(printed: str, names: Mapping[str, str]) -> str:
    """What to say of a name that holds the name of a profile and more; empty for any other.

    >>> variant_hint("NVIDIA H100 NVL", {"h100-sxm": "h100-sxm", "h100": "h100-sxm"})
    "'nvl' is no word of h100-sxm, the nearest profile: if it is another variant, it needs a profile of its own"
    """
    asked = words_of(printed)
    near = {names[name] for name in names if words_of(name) and words_of(name) <= asked}
    if len(near) != 1:
        return ""
    name = near.pop()
    more = ", ".join(repr(word) for word in sorted(asked - _own_words(names)[name]))
    return (f"{more} is no word of {name}, the nearest profile: if it is another variant, it needs a profile of its own"
            if more else "")


def repository_hint(name: str) -> str:
    """How a model of Hugging Face that no profile describes becomes a profile; empty for any other name.

    >>> repository_hint("Qwen/Qwen3-8B")
    "with its config.json, 'kvsim profiles import config.json --name qwen3-8b -o qwen3-8b.yaml' makes a profile of it"
    """
    owner, _, short = name.partition("/")
    if not owner or not short or "/" in short or owner.startswith((".", "~")):
        return ""
    short = short.lower()
    made = f"kvsim profiles import config.json --name {short} -o {short}.yaml"
    return f"with its config.json, '{made}' makes a profile of it"


def former(name: str) -> str:
    """The present name of a Hugging Face repository that was renamed; any other name as it is.

    >>> former("meta-llama/meta-llama-3.1-8b-instruct"), former("openai/gpt-oss-120b")
    ('meta-llama/llama-3.1-8b-instruct', 'openai/gpt-oss-120b')
    """
    return name.replace("meta-llama/meta-llama-", "meta-llama/llama-")


def _own_words(names: Mapping[str, str]) -> dict[str, Words]:
    """All words that a profile's names and aliases have, by profile."""
    own: dict[str, set[str]] = {}
    for name, profile in names.items():
        own.setdefault(profile, set()).update(words_of(name))
    return {profile: frozenset(words) for profile, words in own.items()}
