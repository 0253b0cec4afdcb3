"""Generated agent sessions: trees of turns from the parameters of a preset."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from kvsim.errors import ScenarioError
from kvsim.rng import stream, streams
from kvsim.workload.lengths import LogNormal, normal_scores, spread_points, whole_tokens
from kvsim.workload.presets import AgenticPreset, FanOut
from kvsim.workload.requests import Floats, Ints
from kvsim.workload.sessions import SessionTree, Turn, tree_from_turns

_LARGEST_START = 0.8
"""A session begins with at most this share of its compaction limit: nobody resumes what is compacted at once."""

_BLOCK_SESSIONS = 400
"""Sessions that are planned together, about as many as the published corpus has (393)."""


def make_trees(preset: AgenticPreset, num_sessions: int, seed: int = 0, stratified: bool = True) -> list[SessionTree]:
    """Generate sessions.

    Parameters
    ----------
    preset : AgenticPreset
        What the sessions are like.
    num_sessions : int
        How many, >= 1.
    seed : int
        Seed; the same arguments give the same trees.
    stratified : bool
        Draw what belongs to a whole session or sub-agent (turns, first prompt, compaction limit, number and
        length of sub-agents) evenly spread over its distribution: in the order of `spread_points`, and over
        each 400 sessions once from the middle of each of 400 strata. Few sessions then show the preset's
        medians. The spread between seeds is smaller than that of independent sessions; False gives the latter.

    Returns
    -------
    list of SessionTree
        Sessions; the first ones do not depend on how many follow.

    Raises
    ------
    ScenarioError
        Fewer than one session.

    Notes
    -----
    Prompt of turn k + 1 = prompt of turn k + its answer + what is appended, so long sessions have long contexts.
    When that would pass the session's limit (at most the window), the context is compacted to a summary that keeps
    its first ``kept_tokens``. Rarely its tail, or more than the tail, is rewritten: the tokens behind the change
    are new although the context is not longer. A session is one stream of content between such changes.

    A sub-agent starts from a fresh context when the turn that spawns it has ended; the parent's next turn waits
    for the whole batch (a join) unless the batch runs in the background.

    Examples
    --------
    >>> from kvsim.workload.presets import preset
    >>> trees = make_trees(preset("agentx-v1"), 3, seed=1)
    >>> len(trees), bool((trees[0].prompt_tokens > 0).all())
    (3, True)
    """
    if num_sessions < 1:
        raise ScenarioError(f"a workload needs at least one session, not {num_sessions}")
    plans = _plans(preset, num_sessions, seed, stratified)
    return [_tree(preset, plan, k, stream(seed, f"{preset.name} session {k}")) for k, plan in enumerate(plans)]


@dataclass(frozen=True, slots=True)
class _SubPlan:
    """What is decided about a sub-agent as a whole."""

    num_requests: int
    start_tokens: int
    factor: float


@dataclass(frozen=True, slots=True)
class _Plan:
    """What is decided about a session as a whole."""

    num_turns: int
    start_tokens: int
    factor: float
    limit_tokens: int
    subs: Sequence[_SubPlan]


def _plans(preset: AgenticPreset, num_sessions: int, seed: int, stratified: bool) -> list[_Plan]:
    """Plans are made for whole blocks of sessions, so that the first ones stay when more follow."""
    plans: list[_Plan] = []
    while len(plans) < num_sessions:
        purpose = f"{preset.name} block {len(plans) // _BLOCK_SESSIONS}"
        plans += _block(preset, streams(seed, f"{purpose}: sessions", f"{purpose}: sub-agents"), stratified)
    return plans[:num_sessions]


def _block(preset: AgenticPreset, rngs: tuple[np.random.Generator, ...], stratified: bool) -> list[_Plan]:
    u = spread_points(rngs[0], _BLOCK_SESSIONS, 5, stratified)
    if stratified:
        u = np.column_stack([_mid_strata(column) for column in u.T])
    score = normal_scores(u[:, 0])
    turns = np.maximum(preset.turns.at_score(score).round(), 1)
    start = np.clip(preset.start.at(u[:, 2]), preset.shared_prefix_tokens + 1, _LARGEST_START * preset.window_tokens)
    limit = np.clip(preset.limit.at(u[:, 1]), start / _LARGEST_START, preset.window_tokens)
    factor = LogNormal(1.0, preset.spread).at(u[:, 3])
    groups = _groups(preset.fan_out, turns, np.column_stack([score, u[:, 4]]), stratified)
    subs = _sub_plans(preset.fan_out, groups, rngs[1], stratified)
    return [_Plan(*values) for values in zip(turns.astype(int).tolist(), start.astype(int).tolist(),
                                             factor.tolist(), limit.astype(int).tolist(), subs, strict=True)]


def _mid_strata(values: Floats) -> Floats:
    """The middle of the stratum of each value by rank, n strata for n values."""
    return (np.argsort(np.argsort(values)) + 0.5) / len(values)


def _groups(fan: FanOut | None, turns: Floats, points: Floats, stratified: bool) -> Ints:
    """Sub-agents of every session; a session with t turns can start at most t - 1 batches.

    `points` [n, 2]: the score of the number of turns, and a number in (0, 1) that says whether and how many.
    """
    groups = np.zeros(len(turns), np.int64)
    if fan is not None:
        has = points[:, 1] < fan.session_share
        own = normal_scores(points[has, 1] / fan.session_share)
        score = fan.turns_correlation * points[has, 0] + math.sqrt(1 - fan.turns_correlation ** 2) * own
        wanted = fan.groups.at(_mid_strata(score)) if stratified else fan.groups.at_score(score)
        groups[has] = np.minimum(wanted.round(), (turns[has] - 1) * fan.max_concurrent)
    return groups


def _sub_plans(fan: FanOut | None, groups: Ints, rng: np.random.Generator, stratified: bool) -> list[list[_SubPlan]]:
    """The sub-agents themselves."""
    flat: list[_SubPlan] = []
    if fan is not None:
        u = spread_points(rng, int(groups.sum()), 3, stratified)
        requests = np.maximum(fan.requests.at(u[:, 0]).round(), 1).astype(int).tolist()
        start, factor = fan.start.at(u[:, 1]).astype(int).tolist(), LogNormal(1.0, fan.spread).at(u[:, 2]).tolist()
        flat = [_SubPlan(*values) for values in zip(requests, start, factor, strict=True)]
    ends = np.cumsum(groups).tolist()
    return [flat[end - count:end] for end, count in zip(ends, groups.tolist(), strict=True)]


@dataclass(slots=True)
class _Context:
    """A growing prompt: pieces of content, the last of which grows."""

    pieces: list[tuple[int, int]]
    tokens: int

    def grow(self, tokens: int) -> None:
        """Append to the last stream."""
        content, length = self.pieces[-1]
        self.pieces[-1] = (content, length + tokens)
        self.tokens += tokens

    def replace_tail(self, keep_tokens: int, content: int, tokens: int) -> None:
        """Keep the first tokens and go on with a new stream."""
        left, kept = keep_tokens, list[tuple[int, int]]()
        for piece, length in self.pieces:
            if left <= 0:
                break
            kept.append((piece, min(length, left)))
            left -= length
        self.pieces = [*kept, (content, tokens)]
        self.tokens = min(keep_tokens, self.tokens) + tokens


@dataclass(slots=True)
class _Builder:
    """Turns of one session while it is generated."""

    preset: AgenticPreset
    rng: np.random.Generator
    num_contents: int
    num_streams: int = 1
    turns: list[Turn] = field(default_factory=list[Turn])
    ends_s: list[float] = field(default_factory=list[float])

    def fresh(self) -> int:
        """A content that nobody else has."""
        self.num_contents += 1
        return self.num_contents - 1

    def ask(self, context: _Context, output_tokens: int, gap_s: float, stream: int, after: tuple[int, ...]) -> int:
        """Add a turn behind what it waits for; returns its number."""
        start_s = max((self.ends_s[d] for d in after), default=0.0) + gap_s
        output = context.pieces[-1][0] if self.preset.outputs_reappear else self.fresh()
        self.turns.append(Turn(tuple(context.pieces), output_tokens, output, start_s, gap_s, stream, after))
        self.ends_s.append(start_s + self.preset.ttft_s + output_tokens / self.preset.output_tokens_per_s)
        return len(self.turns) - 1


def _tree(preset: AgenticPreset, plan: _Plan, number: int, rng: np.random.Generator) -> SessionTree:
    shared = preset.shared_prefix_tokens
    builder = _Builder(preset, rng, num_contents=1 if shared else 0)
    pieces = [(0, shared)] if shared else []
    context = _Context([*pieces, (builder.fresh(), plan.start_tokens - shared)], plan.start_tokens)
    _main(builder, plan, context)
    return tree_from_turns(f"{preset.name}-{number}", builder.turns, builder.num_contents, 1 if shared else 0)


def _main(builder: _Builder, plan: _Plan, context: _Context) -> None:
    """The main agent's turns, with the sub-agents they start."""
    preset, rng, n = builder.preset, builder.rng, plan.num_turns
    outputs = whole_tokens(preset.output.draw(rng, n)).tolist()
    appended = whole_tokens(preset.appended.draw(rng, n) * plan.factor).tolist()
    gaps = preset.gap.draw(rng, n).tolist()
    batches = _batches(builder, plan)
    before: tuple[int, ...] = ()
    for k in range(n):
        if k:
            _advance(builder, context, outputs[k - 1] + appended[k], plan.limit_tokens)
        outputs[k] = min(outputs[k], max(preset.window_tokens - context.tokens, 1))
        turn = builder.ask(context, outputs[k], gaps[k] if k else 0.0, 0, before)
        before = (turn, *_spawn(builder, batches.get(k, ()), turn))


def _advance(builder: _Builder, context: _Context, tokens: int, limit_tokens: int) -> None:
    """From one prompt to the next: grow, or compact, or rewrite and grow."""
    preset = builder.preset
    chance, size = builder.rng.random(), builder.rng.standard_normal()
    if context.tokens + tokens > limit_tokens:
        kept = min(preset.kept_tokens, context.tokens)
        after = min(_sized(preset.compacted, size), limit_tokens)
        context.replace_tail(kept, builder.fresh(), max(after - kept, 1))
    elif chance < preset.tail_rewrite_prob + preset.rewrite_prob:
        small = chance < preset.tail_rewrite_prob
        lost = _sized(preset.tail_rewrite if small else preset.rewrite, size)
        keep = max(context.tokens - lost, min(preset.kept_tokens, context.tokens))
        context.replace_tail(keep, builder.fresh(), context.tokens - keep + tokens)
    else:
        context.grow(tokens)


def _batches(builder: _Builder, plan: _Plan) -> dict[int, list[_SubPlan]]:
    """Which turns start which sub-agents."""
    fan, rng = builder.preset.fan_out, builder.rng
    if fan is None or not plan.subs:
        return {}
    most, slots = fan.max_concurrent, plan.num_turns - 1
    batches: list[list[_SubPlan]] = []
    left = list(plan.subs)
    while left:
        must = len(left) > (slots - len(batches) - 1) * most
        size = most if must else int(rng.integers(1, most + 1))
        batches.append(left[:size])
        left = left[size:]
    turns = rng.choice(slots, size=len(batches), replace=False)
    return dict(zip(turns.tolist(), batches, strict=True))


def _spawn(builder: _Builder, batch: Sequence[_SubPlan], turn: int) -> tuple[int, ...]:
    """Add the sub-agents that a turn starts; returns what the parent's next turn waits for."""
    fan = builder.preset.fan_out
    if fan is None or not batch:
        return ()
    background = builder.rng.random() < fan.background_share
    last = tuple(_subagent(builder, fan, sub, turn) for sub in batch)
    return () if background else last


def _subagent(builder: _Builder, fan: FanOut, plan: _SubPlan, turn: int) -> int:
    """Add one sub-agent; returns its last turn."""
    preset, rng, n = builder.preset, builder.rng, plan.num_requests
    outputs = whole_tokens(fan.output.draw(rng, n)).tolist()
    appended = whole_tokens(fan.appended.draw(rng, n) * plan.factor).tolist()
    gaps = fan.gap.draw(rng, n).tolist()
    context = _Context([(builder.fresh(), plan.start_tokens)], plan.start_tokens)
    stream, builder.num_streams = builder.num_streams, builder.num_streams + 1
    for k in range(n):
        if k:
            _advance(builder, context, outputs[k - 1] + appended[k], preset.window_tokens)
        outputs[k] = min(outputs[k], max(preset.window_tokens - context.tokens, 1))
        turn = builder.ask(context, outputs[k], gaps[k], stream, (turn,))
    return turn


def _sized(length: LogNormal, z: float) -> int:
    """The value of a distribution at z standard deviations."""
    return round(min(max(length.median * math.exp(length.sigma * z), length.low), length.high))
