"""Launch commands as people keep them: shell scripts, docker lines, continuations. Read, never run."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from kvsim.errors import Problem, ScenarioError

EngineName = Literal["vllm", "sglang"]
LOOKED_FOR = ("a line with 'vllm serve MODEL', 'python -m vllm.entrypoints.openai.api_server', 'sglang serve', "
              "'python -m sglang.launch_server', or 'docker run ... IMAGE' of one of them")

_TOKEN = re.compile(r"""
    (?P<continued>\\[ \t]*\r?\n)
  | (?P<comment>(?<![^\s;&|])\#[^\n]*)
  | (?P<redirect>(?:\d+|&)?>>?(?:&\d|[ \t]*[^\s;&|]+)|<(?!<)[ \t]*[^\s;&|]+)
  | (?P<end>\n|;|&&|\|\||\||&)
  | (?P<space>[ \t\r]+)
  | (?P<word>(?:'[^']*'|"(?:\\.|[^"\\])*"|\\[^\n]|[^\s'"\\;&|])+)
""", re.VERBOSE | re.DOTALL)
_PIECE = re.compile(r"""'(?P<raw>[^']*)'|"(?P<quoted>(?:\\.|[^"\\])*)"|\\(?P<escaped>.)|(?P<plain>[^'"\\]+)""",
                    re.DOTALL)
_VARIABLE = re.compile(r"\$(?:\{(?P<braced>\w+)(?::?-(?P<default>[^}]*))?\}|(?P<bare>\w+))")
_ASSIGNMENT = re.compile(r"^[A-Za-z_]\w*=")

_DOCKER = ("docker", "podman", "nerdctl")
_DOCKER_SWITCHES = frozenset(("-d", "-i", "-t", "-it", "-ti", "-dit", "-itd", "-P", "--detach", "--interactive",
                              "--tty", "--rm", "--privileged", "--init", "--read-only", "--publish-all",
                              "--no-healthcheck"))
_MODULES = {"vllm.entrypoints.openai.api_server": "vllm", "vllm.entrypoints.api_server": "vllm",
            "sglang.launch_server": "sglang"}
_OTHERS = {"trtllm-serve": "TensorRT-LLM", "trtllm-llmapi-launch": "TensorRT-LLM", "tritonserver": "Triton",
           "lmdeploy": "LMDeploy", "llama-server": "llama.cpp", "text-generation-launcher": "TGI", "ollama": "Ollama"}
"""Programs of engines that are not modelled."""


@dataclass(frozen=True, slots=True)
class Launch:
    """A launch command taken apart.

    Attributes
    ----------
    engine : "vllm" or "sglang"
        Which engine it starts.
    args : tuple of str
        Everything behind ``vllm serve`` or ``sglang.launch_server``, unquoted.
    env : mapping
        Environment variables that are set for it, by the line itself, by ``export`` or by docker's ``-e``.
    image : str
        Container image, ``""`` without one.
    others : int
        Further launch commands in the same text, which are left out.
    """

    engine: EngineName
    args: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    image: str = ""
    others: int = 0


def read_launch(text: str, where: str = "command") -> Launch:
    r"""Find the first engine launch in a command or script.

    Parameters
    ----------
    text : str
        One line or a whole script: comments, line continuations, ``export``, wrappers such as ``nohup`` or ``srun``,
        ``docker run`` and ``bash -c`` are understood. Variables that the text itself sets are filled in.
    where : str
        Name of the text in messages.

    Returns
    -------
    Launch

    Raises
    ------
    ScenarioError
        An open quote, or nothing that starts vLLM or SGLang.

    Examples
    --------
    >>> read_launch("TP=8\nvllm serve moonshotai/Kimi-K3 -tp $TP &").args
    ('moonshotai/Kimi-K3', '-tp', '8')
    """
    found = list(_launches(text, where))
    if not found:
        raise ScenarioError("this starts no engine that is known",
                            [Problem(where, "", _shorten(text), LOOKED_FOR, _other_engine(text))])
    first = found[0]
    return Launch(first.engine, first.args, first.env, first.image, len(found) - 1)


def _launches(text: str, where: str, outer: Mapping[str, str] | None = None) -> Iterator[Launch]:
    env = dict(outer or {})
    for words in _statements(text, where):
        values = [_unquote(word, env) for word in words]
        if values[0] in ("export", "declare", "set", "env", "ENV"):
            values = values[1:]
        own, rest = _assignments(values)
        if not rest:
            env |= own
            continue
        yield from _launch_of(rest, env | own, where)


def _launch_of(values: Sequence[str], env: Mapping[str, str], where: str) -> Iterator[Launch]:
    """The launch in one statement: started directly, in a container, or by a shell of its own."""
    for i, value in enumerate(values):
        name = value.rpartition("/")[2]
        after = values[i + 1:]
        if name in _DOCKER and "run" in after:
            yield from _in_container(after[list(after).index("run") + 1:], env, where)
            return
        if name in ("bash", "sh") and len(after) > 1 and re.fullmatch(r"-\w*c", after[0]):
            yield from _launches(after[1], where, env)
            return
        if name in ("vllm", "sglang") and after[:1] == ["serve"]:
            yield Launch("vllm" if name == "vllm" else "sglang", tuple(after[1:]), env)
            return
        module = _MODULES.get(after[0]) if value == "-m" and after else _MODULES.get(name)
        if module is not None:
            yield Launch("vllm" if module == "vllm" else "sglang", tuple(after[1:] if value == "-m" else after), env)
            return
        if "=" in value and _ASSIGNMENT.match(value):
            env = {**env, **_assignments([value])[0]}


def _in_container(values: Sequence[str], env: Mapping[str, str], where: str) -> Iterator[Launch]:
    """What ``docker run`` starts: the command behind the image, or the image's own entry point with its arguments."""
    inside, entry, i = dict(env), list[str](), 0
    while i < len(values) and values[i].startswith("-"):
        option, joined, value = values[i].partition("=")
        takes_next = not joined and option not in _DOCKER_SWITCHES
        given = values[i + 1] if takes_next and i + 1 < len(values) else value
        if option in ("-e", "--env") and _ASSIGNMENT.match(given):
            inside |= _assignments([given])[0]
        entry = [given] if option == "--entrypoint" else entry
        i += 2 if takes_next else 1
    if i >= len(values):
        return
    image, command = values[i], [*entry, *values[i + 1:]]
    started = list(_launch_of(command, inside, where))
    if not started and not (command and command[0] in ("bash", "sh")):
        engine = "sglang" if "sglang" in image else "vllm" if "vllm" in image else None
        started = [Launch(engine, tuple(command), inside)] if engine else []
    yield from (Launch(s.engine, s.args, s.env, image) for s in started)


def _statements(text: str, where: str) -> Iterator[list[str]]:
    """The words of every statement, quotes still on."""
    words: list[str] = []
    text, at = text.replace("\r\n", "\n"), 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            if text[at] in "'\"":
                line = text.count("\n", 0, at) + 1
                problem = Problem(where, f"line {line}", f"an open quote at {_shorten(text[at:])}", "closed quotes")
                raise ScenarioError("cannot read the command", [problem])
            at += 1
            continue
        at = match.end()
        if match.lastgroup == "word":
            words.append(match[0])
        elif match.lastgroup == "end" and words:
            yield words
            words = []
    if words:
        yield words


def _unquote(word: str, env: Mapping[str, str]) -> str:
    """A word as the shell would pass it; unknown variables stay as they are written."""
    return "".join(_piece(match, env) for match in _PIECE.finditer(word))


def _piece(match: re.Match[str], env: Mapping[str, str]) -> str:
    if match["raw"] is not None:
        return match["raw"]
    if match["escaped"] is not None:
        return match["escaped"]
    if match["plain"] is not None:
        return _expand(match["plain"], env)
    return re.sub(r'\\(["\\$`])', r"\1", _expand(match["quoted"], env))


def _expand(text: str, env: Mapping[str, str]) -> str:
    def value(match: re.Match[str]) -> str:
        name = match["braced"] or match["bare"]
        if name in env:
            return env[name]
        return match["default"] if match["default"] is not None else match[0]
    return _VARIABLE.sub(value, text)


def _assignments(values: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """``NAME=value`` words at the front, and the rest."""
    env: dict[str, str] = {}
    for i, value in enumerate(values):
        if not _ASSIGNMENT.match(value):
            return env, list(values[i:])
        name, _, env[name] = value.partition("=")
    return env, []


def _other_engine(text: str) -> str:
    """What helps with the command of an engine that has no profile."""
    for word, engine in _OTHERS.items():
        if re.search(rf"(?<![\w.]){word}(?![\w.])", text):
            return (f"{engine} has no engine profile: write a scenario with its degrees as layout, its limits as "
                    "engine, and the pool that it logs as engine.kv_bytes_per_gpu")
    return ""


def _shorten(text: str) -> str:
    line = " ".join(text.split())
    return repr(line if len(line) <= 80 else line[:77] + "...")
