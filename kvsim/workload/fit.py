"""From a recorded trace to the parameters of a preset, and how well the generated sessions resemble it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray

from kvsim.errors import Problem, TraceError
from kvsim.workload.agentic import make_trees
from kvsim.workload.ideal import shared_prefix_tokens
from kvsim.workload.lengths import LogNormal, Mixture
from kvsim.workload.preset_file import preset_to_dict
from kvsim.workload.presets import AgenticPreset, FanOut
from kvsim.workload.replay import session_trees_of
from kvsim.workload.requests import Floats, Ints, merge
from kvsim.workload.sessions import SessionTree
from kvsim.workload.table import Trace, take
from kvsim.workload.trace_info import spread
from kvsim.workload.trees import build_open_loop

Flags = NDArray[np.bool_]
_COMPACTED_SHARE, _COMPACTED_FROM = 0.7, 20_000
"""A context of more than 20,000 tokens that falls below 70 % was compacted."""
_SMALL_REWRITE = 1_024
"""Prefix breaks that reach at most this far back are rewrites of the tail."""
_MIN_EVENTS = 5
"""Fewer events than this say nothing about a distribution."""


@dataclass(frozen=True, slots=True)
class Fit:
    """Preset that resembles a trace.

    Attributes
    ----------
    preset : AgenticPreset
        Parameters.
    goodness : tuple of (str, tuple of float, tuple of float)
        Quantity; its mean, p50, p90 and p99 as recorded and as generated (the hit rate has one value).
    notes : tuple of str
        What the trace does not say, and what was done about it.
    """

    preset: AgenticPreset
    goodness: tuple[tuple[str, tuple[float, ...], tuple[float, ...]], ...]
    notes: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain data: the preset's parameters, recorded and generated figures, notes."""
        return {"preset": preset_to_dict(self.preset), "notes": list(self.notes), "goodness": [
            {"quantity": name, "recorded": list(a), "generated": list(b)} for name, a, b in self.goodness]}

    def to_yaml(self) -> str:
        """The preset as YAML, as `kvsim.workload.preset_file.load_preset` reads it."""
        text = yaml.safe_dump(preset_to_dict(self.preset), sort_keys=False)
        return "".join(f"# {note}\n" for note in self.notes) + text

    def text(self) -> str:
        """Recorded against generated, for people."""
        lines = [f"{'':24} {'recorded':>44} {'generated':>44}",
                 f"{'':24} " + " ".join(f"{name:>10}" for _ in range(2) for name in ("mean", "p50", "p90", "p99"))]
        for name, recorded, generated in self.goodness:
            cells = [_cell(v) for values in (recorded, generated) for v in (*values, *[None] * (4 - len(values)))]
            lines.append(f"{name:24} " + " ".join(f"{cell:>10}" for cell in cells))
        return "\n".join([*lines, *self.notes])


def fit(trace: Trace, name: str = "fitted", seed: int = 0) -> Fit:
    """Fit the parameters of a preset to a trace.

    Parameters
    ----------
    trace : Trace
        Sessions of several turns, with contents.
    name : str
        Name of the preset.
    seed : int
        Seed of the generated sessions that are compared with the trace.

    Returns
    -------
    Fit
        Preset and goodness.

    Raises
    ------
    TraceError
        The trace has no sessions of several turns, or knows lengths only.

    Notes
    -----
    Log-normal parameters come from percentiles: the median, and the sigma that the 90th percentile shows, since the
    upper half decides how long contexts get; the largest value bounds them. First prompts and
    gaps are mixtures of two, by expectation maximisation on logarithms. What a turn appends is the growth of the
    prompt beyond the output before it, over turns that keep the whole prefix (but for a last, incomplete block).
    Compactions are falls of the context below 70 % of more than 20,000 tokens; other turns that lose a part of the
    prefix are rewrites. The limit is where contexts were compacted; for the share of sessions that went beyond nearly
    all of those it is the longest prompt, since where they would have been compacted is not recorded.

    Examples
    --------
    >>> from kvsim.workload.presets import preset
    >>> from kvsim.workload.table import trace_of_trees
    >>> found = fit(trace_of_trees(make_trees(preset("claude-code"), 60), 64)).preset
    >>> 120 < found.output.median < 330
    True
    """
    asked = take(trace, np.flatnonzero(trace.input_tokens > 0))
    several = len(asked) > len(np.unique(asked.session)) and trace.knowledge != "nothing"
    trees = session_trees_of(asked) if several else []
    if not any(t.num_main_turns > 1 for t in trees):
        raise TraceError("a preset cannot be fitted", [Problem(
            trace.label or "trace", "", "requests without sessions of several turns or without contents",
            "block ids or appending sessions; for lengths alone use a workload of fixed lengths with sigmas")])
    turns = _turns(trees, trace.block_tokens)
    preset, notes = _preset(name, trees, turns, trace.outputs_known)
    if len(asked) < len(trace):
        notes.append(f"{len(trace) - len(asked)} requests without a prompt were left out.")
    generated = make_trees(preset, min(max(len(trees), 100), 400), seed)
    return Fit(preset, tuple(_goodness(trees, turns, generated)), tuple(notes))


@dataclass(frozen=True, slots=True)
class _Turns:
    """Consecutive requests of the main agents, a row a pair [tokens, s].

    `kept` is the common prefix of the two prompts, `session` the number of the session, `reappears` whether the second
    prompt goes on behind the first with what was generated.
    """

    before: Ints
    after: Ints
    kept: Ints
    output: Ints
    gap_s: Floats
    session: Ints
    reappears: Flags
    block_tokens: int

    @property
    def appends(self) -> Flags:
        """Turns that keep the whole prompt before, as far as blocks can tell."""
        return (self.kept + max(self.block_tokens, 1) > self.before) & (self.after >= self.before)

    @property
    def compacted(self) -> Flags:
        """Turns whose context fell."""
        return (self.before > _COMPACTED_FROM) & (self.after < _COMPACTED_SHARE * self.before)


def _turns(trees: Sequence[SessionTree], block_tokens: int) -> _Turns:
    rows: list[tuple[int, int, int, int, int, int]] = []
    gaps: list[float] = []
    for number, tree in enumerate(trees):
        main = np.flatnonzero(tree.stream == 0).tolist()
        prompts, lengths = [_pieces(tree, i) for i in main], tree.prompt_tokens[main].tolist()
        outputs = tree.output_tokens[main].tolist()
        contents = tree.output_content[main].tolist()
        for k in range(len(main) - 1):
            full = merge([*prompts[k], (contents[k], outputs[k])])
            rows.append((lengths[k], lengths[k + 1], _common(prompts[k], prompts[k + 1]), outputs[k], number,
                         _common(full, prompts[k + 1]) > lengths[k]))
        gaps += tree.gap_s[main[1:]].tolist()
    before, after, kept, output, session, reappears = np.array(rows, np.int64).reshape(-1, 6).T
    return _Turns(before, after, kept, output, np.array(gaps), session, reappears > 0, block_tokens)


def _pieces(tree: SessionTree, i: int) -> list[tuple[int, int]]:
    rows = slice(tree.piece_offsets[i], tree.piece_offsets[i + 1])
    return merge(zip(tree.piece_content[rows].tolist(), tree.piece_tokens[rows].tolist(), strict=True))


def _common(a: list[tuple[int, int]], b: list[tuple[int, int]]) -> int:
    """Leading tokens that two prompts share."""
    total = 0
    for (x, m), (y, n) in zip(a, b, strict=False):
        if x != y:
            break
        total += min(m, n)
        if m != n:
            break
    return total


def _preset(name: str, trees: Sequence[SessionTree], turns: _Turns,
            outputs_known: bool) -> tuple[AgenticPreset, list[str]]:
    """Parameters, and what could not be found."""
    notes = ["Fitted to a recorded trace; parameters are derived, see kvsim.workload.fit.",
             "Speed of the recorded service is not in the trace: ttft_s and output_tokens_per_s are assumed."]
    appended = np.maximum(turns.after - turns.before - turns.output, 1)[turns.appends].astype(float)
    sessions = turns.session[turns.appends]
    window = max(int((t.prompt_tokens + t.output_tokens).max()) for t in trees)
    whole = log_normal(appended, 1)
    # Below the median lie mostly turns that add next to nothing: their logarithms would drown what sessions differ in.
    spread_sigma = min(_between(np.log(np.maximum(appended, whole.median)), sessions), whole.sigma)
    return AgenticPreset(
        name=name, turns=log_normal(np.array([t.num_main_turns for t in trees], float), 1),
        start=_start(trees), output=log_normal(_main(trees, "output_tokens"), 1),
        appended=replace(whole, sigma=round(math.sqrt(whole.sigma ** 2 - spread_sigma ** 2), 3)),
        spread=spread_sigma, gap=mixture(np.maximum(turns.gap_s, 1e-3)), window_tokens=window,
        **_breaks(trees, turns, notes), shared_prefix_tokens=_shared(trees),
        outputs_reappear=_reappear(turns, outputs_known, notes), fan_out=_fan_out(trees, notes)), notes


def _reappear(turns: _Turns, outputs_known: bool, notes: list[str]) -> bool:
    """Whether most next prompts go on with the output: by contents where the trace tells them, else by lengths."""
    found = turns.reappears[turns.appends]
    if not outputs_known and not found.any():
        notes.append("What outputs contain is not in the trace: whether they reappear is judged by lengths.")
        found = (turns.after - turns.before >= turns.output)[turns.appends]
    return bool(found.mean() > 0.5) if len(found) else True


def log_normal(values: Floats, low: float = 0.0) -> LogNormal:
    """Log-normal with the median and the 90th percentile of some values, bounded by the largest.

    >>> log_normal(np.exp(np.arange(-50, 51) / 10))
    LogNormal(median=1.0, sigma=3.121, low=0.0, high=148.4)
    """
    if not len(values):
        return LogNormal(max(low, 1.0), 0.0, low)
    p50, p90 = np.percentile(np.maximum(values, 1e-9), [50, 90]).tolist()
    return LogNormal(_rounded(p50), round(math.log(p90 / p50) / 1.2816, 3), low, _rounded(float(values.max())))


def mixture(values: Floats, num_steps: int = 200) -> Mixture:
    """Mixture of two log-normals by expectation maximisation, started from the halves of the values.

    >>> rng = np.random.default_rng(0)
    >>> both = np.exp(np.concatenate([rng.normal(0, 0.5, 7000), rng.normal(5, 1, 3000)]))
    >>> [(round(w, 1), round(math.log(d.median), 1), round(d.sigma, 1)) for w, d in mixture(both).parts]
    [(0.7, 0.0, 0.5), (0.3, 5.0, 1.0)]
    """
    x = np.sort(np.log(values))
    half = max(len(x) // 2, 1)
    mean = np.array([x[:half].mean(), x[-half:].mean()])
    sigma = np.full(2, max(float(x.std()), 1e-3))
    weight = np.full(2, 0.5)
    for _ in range(num_steps):
        density = weight / sigma * np.exp(-0.5 * ((x[:, None] - mean) / sigma) ** 2) + 1e-300
        share = density / density.sum(axis=1, keepdims=True)
        total = share.sum(axis=0)
        weight, mean = total / len(x), (share * x[:, None]).sum(axis=0) / total
        sigma = np.sqrt((share * (x[:, None] - mean) ** 2).sum(axis=0) / total) + 1e-3
    return Mixture(tuple((round(float(w), 4), LogNormal(_rounded(math.exp(m)), round(float(s), 3)))
                         for w, m, s in zip(weight, mean.tolist(), sigma, strict=True)))


def _rounded(value: float) -> float:
    """Four significant digits; whole numbers stay whole."""
    if not math.isfinite(value) or value == 0:
        return value
    return float(f"{value:.4g}")


def _main(trees: Sequence[SessionTree], column: str) -> Floats:
    return np.concatenate([getattr(t, column)[t.stream == 0] for t in trees]).astype(float)


def _start(trees: Sequence[SessionTree]) -> Mixture:
    first = np.array([t.prompt_tokens[0] for t in trees], float)
    parts = mixture(first).parts
    return Mixture(tuple((w, replace(d, low=float(first.min()))) for w, d in parts))


def _between(logs: Floats, groups: Ints) -> float:
    """Standard deviation between groups of values, without what the scatter inside them explains."""
    counts = np.bincount(groups)
    many = counts >= _MIN_EVENTS
    if many.sum() < 2:
        return 0.0
    sums, squares = np.bincount(groups, logs), np.bincount(groups, logs ** 2)
    mean = sums[many] / counts[many]
    inside = squares[many] / counts[many] - mean ** 2
    return round(math.sqrt(max(float(mean.var() - (inside / counts[many]).mean()), 0.0)), 3)


def _breaks(trees: Sequence[SessionTree], turns: _Turns, notes: list[str]) -> dict[str, Any]:
    """Compactions and rewrites."""
    n = max(len(turns.before), 1)
    broken = ~turns.appends & ~turns.compacted
    lost = (turns.before - turns.kept).astype(float)
    small = broken & (lost <= _SMALL_REWRITE)
    large = broken & (lost > _SMALL_REWRITE)
    longest = np.array([t.prompt_tokens[t.stream == 0].max() for t in trees], float)
    falls = turns.compacted.sum() >= _MIN_EVENTS
    if not falls:
        notes.append("Hardly any compaction: the limit is the longest prompt.")
    high = turns.before[turns.compacted].astype(float)
    limit = log_normal(high, float(high.min())) if falls else LogNormal(_rounded(float(longest.max())))
    longer = longest[longest > np.percentile(high, 90)] if falls else np.zeros(0)
    beyond = len(longer) / len(longest)
    parts = ((1.0 - beyond, limit), (beyond, LogNormal(_rounded(float(longest.max()))))) if beyond else ((1.0, limit),)
    return {
        "limit": Mixture(tuple((round(w, 4), d) for w, d in parts)),
        "compacted": log_normal(turns.after[turns.compacted].astype(float), 1) if falls
        else LogNormal(_rounded(float(np.median(longest)) / 4), 0.4, 1),
        "kept_tokens": int(np.median(turns.kept[turns.compacted])) if falls else 0,
        "tail_rewrite_prob": round(float(small.sum()) / n, 5), "tail_rewrite": _lost(lost[small], 192.0),
        "rewrite_prob": round(float(large.sum()) / n, 5), "rewrite": _lost(lost[large], 250_000.0)}


def _lost(values: Floats, default: float) -> LogNormal:
    """How far rewrites reach; a default where there are too few to say."""
    return log_normal(values, 1) if len(values) >= _MIN_EVENTS else LogNormal(default, 0.6, 1)


def _shared(trees: Sequence[SessionTree]) -> int:
    """Leading tokens that most sessions' first prompts have in common with one before them."""
    if len(trees) < 2 or not trees[0].num_shared:
        return 0
    first = build_open_loop([_head(t) for t in trees], np.arange(float(len(trees)))).requests
    return int(np.median(shared_prefix_tokens(first, range(len(first)), outputs=False)[1:]))


def _head(tree: SessionTree) -> SessionTree:
    """The first request of a session alone."""
    return replace(
        tree, stream=tree.stream[:1], kind=tree.kind[:1], start_s=np.zeros(1), gap_s=np.zeros(1),
        dep_offsets=np.zeros(2, np.int64), dep_index=np.zeros(0, np.int64), output_tokens=tree.output_tokens[:1],
        output_content=tree.output_content[:1], piece_offsets=tree.piece_offsets[:2],
        piece_content=tree.piece_content[:tree.piece_offsets[1]],
        piece_tokens=tree.piece_tokens[:tree.piece_offsets[1]])


def _fan_out(trees: Sequence[SessionTree], notes: list[str]) -> FanOut | None:
    """Sub-agents, if there are enough to say anything."""
    groups = np.array([t.stream.max() for t in trees], float)
    chains = [(t, np.flatnonzero(t.stream == s)) for t in trees for s in range(1, int(t.stream.max()) + 1)]
    if (groups > 0).sum() < _MIN_EVENTS:
        if chains:
            notes.append(f"{len(chains)} sub-agents are too few to be fitted and are left out.")
        return None
    start = np.array([t.prompt_tokens[rows[0]] for t, rows in chains], float)
    growth = np.concatenate([np.diff(t.prompt_tokens[rows]) - t.output_tokens[rows[:-1]] for t, rows in chains])
    gaps = np.concatenate([t.gap_s[rows] for t, rows in chains])
    outputs = np.concatenate([t.output_tokens[rows] for t, rows in chains])
    notes.append("Batches and background share of sub-agents are assumed.")
    return FanOut(
        session_share=round(float((groups > 0).mean()), 4), groups=log_normal(groups[groups > 0], 1),
        turns_correlation=0.5, max_concurrent=3, requests=log_normal(np.array([len(r) for _, r in chains], float), 1),
        start=log_normal(start, 1), output=log_normal(outputs.astype(float), 1),
        appended=log_normal(np.maximum(growth, 1).astype(float), 1) if len(growth) else LogNormal(1.0, 0.0, 1),
        spread=0.0, gap=log_normal(np.maximum(gaps, 1e-3)), background_share=0.15)


def _goodness(trees: Sequence[SessionTree], turns: _Turns, generated: Sequence[SessionTree]) \
        -> list[tuple[str, tuple[float, ...], tuple[float, ...]]]:
    """Recorded and generated figures."""
    pairs = zip(_figures(trees, turns), _figures(generated, _turns(generated, turns.block_tokens)), strict=True)
    return [(name, a, b) for (name, a), (_, b) in pairs]


def _figures(trees: Sequence[SessionTree], turns: _Turns) -> list[tuple[str, tuple[float, ...]]]:
    quantities = [
        ("input tokens", _main(trees, "prompt_tokens")), ("output tokens", _main(trees, "output_tokens")),
        ("turns", np.array([t.num_main_turns for t in trees], float)), ("gap [s]", turns.gap_s),
        ("first prompt tokens", np.array([t.prompt_tokens[0] for t in trees], float)),
        ("new tokens per turn", (turns.after - turns.kept).astype(float))]
    played = build_open_loop(trees, np.zeros(len(trees))).requests
    found = shared_prefix_tokens(played, range(len(played)), outputs=False).sum()
    rows: list[tuple[str, tuple[float, ...]]] = []
    for name, values in quantities:
        s = spread(values)
        rows.append((name, (s.mean, s.p50, s.p90, s.p99)))
    return [*rows, ("infinite-cache hit rate", (float(found / played.prompt_tokens.sum()),))]


def _cell(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if value >= 100 else f"{value:.4g}"
