"""Start-up logs of vLLM and SGLang: what an engine said about its memory, whatever the version.

Lines are recognised one by one, so that a log may be cut, interleaved over ranks, or wrapped by a container's prefixes.
vLLM writes GiB (older versions write GB and mean it); SGLang writes GB and means 2^30 bytes.
"""

from __future__ import annotations

import ast
import gzip
import re
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from kvsim.errors import Problem, ScenarioError
from kvsim.interop.metrics import Metrics, read_sample
from kvsim.interop.shell import EngineName

GIB = 2**30
STDIN = Path("/dev/stdin")
MAX_LINE_BYTES = 1_000_000
"""Longer lines are cut: no engine writes them at start-up."""

LOOKED_FOR = ("lines such as 'Model loading took', 'Available KV cache memory', 'GPU KV cache size', "
              "'Load weight end', 'KV Cache is allocated', or metrics named vllm:... or sglang:...")

_N = r"([-\d.,]+)"
_PATTERNS: tuple[tuple[str, str], ...] = (
    ("vllm_version", r"(?:vLLM API server version|LLM engine \(v?)\s*([\w.+]+)"),
    ("total_bytes", rf"total_gpu_memory \({_N}\s*GiB\)"),
    ("share", rf"gpu_memory_utilization \({_N}\)"),
    ("weight_bytes", rf"(?:[Mm]odel weights take|Loading model weights took|Model loading took) {_N}\s*Gi?B"),
    ("weight_bytes", rf"{_N} GiB for weights?\b"),
    ("weight_bytes", rf"weights memory: {_N}\s*GiB"),
    ("non_torch_bytes", rf"non_torch_memory takes {_N}\s*GiB"),
    ("non_torch_bytes", rf"{_N} GiB for non-torch memory"),
    ("non_torch_bytes", rf"non-torch forward increase memory: {_N}\s*GiB"),
    ("activation_bytes", rf"PyTorch activation peak memory takes {_N}\s*GiB"),
    ("activation_bytes", rf"{_N} GiB for peak activation"),
    ("activation_bytes", rf"torch peak memory increase: {_N}\s*GiB"),
    ("total_bytes", rf"Free memory on device \([\d.]+/{_N} GiB\)"),
    ("share", rf"Desired GPU memory utilization is \({_N},"),
    ("kv_bytes", rf"memory reserved for KV Cache is {_N}\s*GiB"),
    ("kv_bytes", rf"Available KV cache memory: {_N}\s*GiB"),
    ("kv_bytes", rf"reserved {_N} GiB memory for KV Cache as specified"),
    ("kv_bytes", rf"Current kv cache memory in use is {_N} GiB"),
    ("kv_raw_bytes", r"Current kv cache memory in use is (\d+) bytes"),
    ("kv_tokens", rf"GPU KV cache size: {_N} tokens"),
    ("max_model_len", rf"Maximum concurrency for {_N} tokens per request"),
    ("max_concurrency", rf"Maximum concurrency for [\d,]+ tokens per request: {_N}x"),
    ("num_blocks", rf"# (?:GPU|cuda) blocks: {_N}"),
    ("pool_override", r"num_gpu_blocks_override=(\d+)"),
    ("block_tokens", r"[Ss]etting attention block size to (\d+) tokens"),
    ("graph_estimate_bytes", rf"Estimated CUDA graph memory: {_N} GiB"),
    ("graph_estimate_bytes", rf"CUDA graph pool memory: [\d.]+ GiB \(actual\), {_N} GiB \(estimated\)"),
    ("graph_bytes", rf"{_N} GiB for CUDAGraph memory"),
    ("graph_bytes", rf"Graph capturing finished in [\d.]+ secs?, took {_N} GiB"),
    ("sglang_weight_bytes", rf"Load weight end\..*?mem usage={_N} GB"),
    ("sglang_total_bytes", rf"Load weight begin\. avail mem={_N} GB"),
    ("sglang_kv_tokens", rf"KV Cache is allocated\..*?#tokens: {_N}"),
    ("sglang_kv_bytes", rf"KV Cache is allocated\..*?KV size: {_N} GB"),
    ("sglang_k_bytes", rf"KV Cache is allocated\..*?K size: {_N} GB"),
    ("sglang_v_bytes", rf"KV Cache is allocated\..*?V size: {_N} GB"),
    ("sglang_state_bytes", rf"Mamba Cache.*?is allocated\..*?ssm_state size: {_N}\s*GB"),
    ("sglang_conv_bytes", rf"Mamba Cache.*?is allocated\..*?conv_state size: {_N}\s*GB"),
    ("sglang_state_slots", rf"Mamba Cache.*?is allocated\..*?max_mamba_cache_size: {_N}"),
    ("sglang_max_tokens", rf"max_total_num_tokens={_N},"),
    ("sglang_max_model_len", r"max_total_num_tokens=.*?context_len=(\d+)"),
    ("sglang_free_bytes", rf"max_total_num_tokens=.*?available_gpu_mem={_N} GB"),
)
_COMPILED = tuple((name, re.compile(pattern)) for name, pattern in _PATTERNS)
_WORTH = re.compile(r"[Mm]emory|GiB|KV cache size|KV Cache is|Mamba Cache|mem usage|avail mem|Maximum concurrency"
                    r"|blocks:|API server version|engine \(v|block size to|max_total_num_tokens|non-default args"
                    r"|ServerArgs|num_gpu_blocks_override")
_GRAPH = re.compile(rf"Capture (.*?[Gg]raph) end\..*?mem usage={_N} GB")
_ARGS = re.compile(r"non-default args: (\{.*\})")
_SERVER_ARGS = re.compile(r"server_args=ServerArgs\((.*)\)")
_PAIR = re.compile(r"(?P<q>'?)(?P<name>\w+)(?P=q)\s*[:=]\s*"
                   r"(?P<value>'(?:[^'\\]|\\.)*'|-?[\d.]+(?:e-?\d+)?|True|False|None|\[[^\[\]]*\]|\{[^{}]*\})")
_LEAST = frozenset(("kv_bytes", "kv_raw_bytes", "kv_tokens", "num_blocks", "max_concurrency", "total_bytes",
                    "sglang_free_bytes", "sglang_total_bytes"))
_FIRST = frozenset(name for name, _ in _PATTERNS if name.startswith("sglang_kv") or name in (
    "sglang_k_bytes", "sglang_v_bytes", "sglang_weight_bytes"))


@dataclass(frozen=True, slots=True)
class EngineLog:
    """What a file said.

    Attributes
    ----------
    path : str
        The file.
    engine : "vllm", "sglang" or None
        Whose log it is; None where nothing tells.
    version : str
        Version, ``""`` where it is not said.
    args : mapping
        Arguments as logged, by their Python names; empty where they are not.
    values : mapping
        Numbers in base units by name: ``weight_bytes, non_torch_bytes, activation_bytes, graph_bytes,
        graph_estimate_bytes, total_bytes, share, kv_bytes, kv_tokens, num_blocks, block_tokens, max_model_len,
        max_concurrency, pool_override, state_bytes, state_slots, free_bytes``; only what was found. Of several ranks
        the fullest one's.
    metrics : Metrics
        Prometheus samples, if there were any.
    """

    path: str
    engine: EngineName | None
    version: str
    args: Mapping[str, Any]
    values: Mapping[str, float]
    metrics: Metrics

    @property
    def any_memory(self) -> bool:
        """Whether anything about memory was found."""
        return any(name in self.values for name in ("kv_bytes", "kv_tokens", "num_blocks", "weight_bytes"))


@dataclass(slots=True)
class _Found:
    """Everything that the lines of a file have said so far."""

    numbers: dict[str, float] = field(default_factory=dict[str, float])
    version: str = ""
    args: dict[str, Any] = field(default_factory=dict[str, Any])
    engine: EngineName | None = None
    metrics: Metrics = field(default_factory=Metrics)
    graphs: dict[str, float] = field(default_factory=dict[str, float])

    def add(self, name: str, text: str) -> None:
        """Keep a number: of several ranks the fullest one's, of SGLang's several pools the target's."""
        value = _number(text)
        if value is None:
            return
        value *= GIB if name.endswith("_bytes") and name != "kv_raw_bytes" else 1
        old = self.numbers.get(name)
        if old is not None and name in _FIRST:
            return
        self.numbers[name] = value if old is None else min(old, value) if name in _LEAST else max(old, value)


def read_log(path: str | Path) -> EngineLog:
    """Read a start-up log, metrics text, or a file with both.

    Parameters
    ----------
    path : str or Path
        Text of any length, plain or gzip; it is read line by line.

    Returns
    -------
    EngineLog

    Raises
    ------
    ScenarioError
        The file cannot be read, is binary, or says nothing about an engine; the message says what was looked for.
    """
    path = Path(path)
    found = _Found()
    try:
        for line in _lines(path):
            _read_line(line, found)
    except (OSError, EOFError, zlib.error) as err:
        reason = getattr(err, "strerror", None) or str(err)
        problem = Problem(_name(path), "", reason, "a readable, complete file of text, plain or gzip")
        raise ScenarioError("cannot read the log", [problem]) from None
    log = _log_of(path, found)
    if not log.any_memory and not log.args and not log.metrics.samples:
        raise ScenarioError("this says nothing about an engine's memory", [Problem(_name(path), "", "", LOOKED_FOR)])
    return log


def _name(path: Path) -> str:
    """A file's name for people."""
    return "standard input" if path == STDIN else str(path)


def _lines(path: Path) -> Iterator[str]:
    """Lines as text, long ones cut; a binary file is refused."""
    with path.open("rb") as raw:
        packed = raw.peek(2).startswith(b"\x1f\x8b")
        file = gzip.GzipFile(fileobj=raw) if packed else raw
        if b"\0" in file.peek(8192)[:8192]:
            raise ScenarioError("cannot read the log", [Problem(_name(path), "", "a binary file", LOOKED_FOR)])
        for line in iter(lambda: file.readline(MAX_LINE_BYTES), b""):
            yield line.decode("utf-8", errors="replace")


def _read_line(line: str, found: _Found) -> None:
    if line.startswith(("vllm:", "sglang:", "vllm_", "sglang_")):
        read_sample(line, found.metrics)
        return
    if not _WORTH.search(line):
        return
    _read_args(line, found)
    capture = _GRAPH.search(line)
    if capture is not None:
        found.graphs[capture[1]] = max(_number(capture[2]) or 0.0, found.graphs.get(capture[1], 0.0))
    for name, pattern in _COMPILED:
        match = pattern.search(line)
        if match is None:
            continue
        if name == "vllm_version":
            found.version = match[1]
        else:
            found.add(name, match[1])


def _read_args(line: str, found: _Found) -> None:
    """Arguments as the engine logs them; values that are no plain Python are left out."""
    match = _ARGS.search(line)
    if match is not None:
        found.args = _literal(match[1]) or _pairs(match[1])
        found.engine = "vllm"
        return
    match = _SERVER_ARGS.search(line)
    if match is not None:
        found.args, found.engine = _pairs(match[1]), "sglang"


def _literal(text: str) -> dict[str, Any]:
    try:
        value: Any = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}  # pyright: ignore[reportUnknownVariableType]


def _pairs(text: str) -> dict[str, Any]:
    """``name=value`` or ``'name': value`` pairs whose values are plain Python; nested calls are passed over."""
    found: dict[str, Any] = {}
    for match in _PAIR.finditer(text):
        try:
            found.setdefault(match["name"], ast.literal_eval(match["value"]))
        except (ValueError, SyntaxError):
            continue
    return found


def _number(text: str) -> float | None:
    try:
        return float(text.replace(",", "").rstrip("."))
    except ValueError:
        return None


def _log_of(path: Path, found: _Found) -> EngineLog:
    numbers = found.numbers
    is_sglang = any(name.startswith("sglang_") for name in numbers) or found.engine == "sglang"
    values = _sglang_values(found) if is_sglang else {k: v for k, v in numbers.items() if not k.startswith("sglang_")}
    raw = values.pop("kv_raw_bytes", None)
    if raw is not None:
        values["kv_bytes"] = raw
    values = {**found.metrics.values(), **values}
    engine = "sglang" if is_sglang else found.engine or found.metrics.engine or ("vllm" if values else None)
    return EngineLog(_name(path), engine, found.version, MappingProxyType(found.args), MappingProxyType(values),
                     found.metrics)


def _sglang_values(found: _Found) -> dict[str, float]:
    n = {name.removeprefix("sglang_"): value for name, value in found.numbers.items() if name.startswith("sglang_")}
    values = {name: n[name] for name in ("weight_bytes", "total_bytes", "max_model_len", "free_bytes", "state_slots")
              if name in n}
    tokens = n.get("max_tokens", n.get("kv_tokens"))
    pool = n.get("kv_bytes") or n.get("k_bytes", 0.0) + n.get("v_bytes", 0.0)
    state = n.get("state_bytes", 0.0) + n.get("conv_bytes", 0.0)
    graphs = sum(found.graphs.values()) * GIB
    derived = {"kv_tokens": tokens, "kv_bytes": pool + state, "state_bytes": state, "graph_bytes": graphs}
    return values | {name: value for name, value in derived.items() if value}


def version_tuple(version: str) -> tuple[int, ...]:
    """Numbers of a version, for comparisons; empty where there are none.

    >>> version_tuple("0.19.2rc1.dev8+g4b7"), version_tuple("")
    ((0, 19, 2), ())
    """
    match = re.match(r"v?(\d+)\.(\d+)(?:\.(\d+))?", version)
    return tuple(int(part) for part in match.groups(default="0")) if match else ()


