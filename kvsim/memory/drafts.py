"""Speculative drafts as written: which kind, how many tokens, how many layers of KV."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from kvsim.errors import Problem, ScenarioError

DSPARK_LAYERS = 5
"""Attention layers of the published DSpark drafts, with the target's latent shape; DFlash drafts have as many."""

_LAYERS: Mapping[str, int] = MappingProxyType(
    {"none": 0, "mtp": 1, "eagle3": 1, "dflash": DSPARK_LAYERS, "dspark": DSPARK_LAYERS})

_ACCEPTED = "none, mtp-kN, eagle3-kN, dflash-kN, dspark-fp8-kN or dspark-bf16-kN with N >= 1"
_FORM = re.compile(r"^(?:none|(?P<kind>mtp|eagle3|dflash)-k(?P<plain>\d+)|"
                   r"dspark-(?P<dtype>fp8|bf16)-k(?P<dspark>\d+))$")


@dataclass(frozen=True, slots=True)
class Draft:
    """A draft model kept beside the target.

    Attributes
    ----------
    kind : "none", "mtp", "eagle3", "dflash" or "dspark"
        MTP is one more layer of the target, EAGLE3 one dense layer of the target's full attention, DFlash and DSpark
        five of them.
    tokens : int
        Draft tokens verified in a step (k).
    kv_dtype : str
        KV format of a DSpark draft; empty for the others (they use the target's).
    """

    kind: Literal["none", "mtp", "eagle3", "dflash", "dspark"] = "none"
    tokens: int = 0
    kv_dtype: str = ""

    @property
    def num_layers(self) -> int:
        """Attention layers that the draft adds to the pool."""
        return _LAYERS[self.kind]

    @property
    def num_passes(self) -> int:
        """Passes through the draft in a step: one a token, or one for the whole block (DFlash, DSpark)."""
        return 1 if self.kind in ("dflash", "dspark") else self.tokens


NO_DRAFT = Draft()
"""The target alone."""


def parse_draft(text: str, where: str = "scenario", field: str = "draft") -> Draft:
    """Read ``none``, ``mtp-kN``, ``eagle3-kN``, ``dflash-kN``, ``dspark-fp8-kN`` or ``dspark-bf16-kN``.

    Parameters
    ----------
    text : str
        The draft as written; N is the number of draft tokens in a step.
    where, field : str
        Named in messages.

    Raises
    ------
    ScenarioError
        Anything else, or k = 0.

    Examples
    --------
    >>> parse_draft("dspark-fp8-k2")
    Draft(kind='dspark', tokens=2, kv_dtype='fp8')
    """
    match = _FORM.match(text)
    tokens = 0 if match is None else int(match["plain"] or match["dspark"] or 0)
    if text == "none":
        return NO_DRAFT
    if match is None or not tokens:
        raise ScenarioError("unknown draft", [Problem(where, field, repr(text), _ACCEPTED)])
    return Draft(match["kind"] or "dspark", tokens, match["dtype"] or "")  # pyright: ignore[reportArgumentType]
