"""Agentic traffic presets: physical parameters, each with its source.

Parameters describe what agents do (turns, tokens appended, answers, think times, context resets, fan-out);
medians of whole requests follow from them and are nowhere set. Sources:

- *corpus*: statistics of cc-traces-weka-062126 (393 sessions, 98,827 requests), the data set that InferenceX AgentX
  replays, as published by SemiAnalysis (https://newsletter.semianalysis.com) and by two independent replay simulators.
- *sessions*: own statistics of 710 Claude Code sessions, https://github.com/callanjfox/kv-cache-tester (Apache-2.0).
- *assumed*: chosen here; the docstring of the preset says why.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from kvsim.errors import ScenarioError, nearest
from kvsim.workload.lengths import LogNormal, Mixture


@dataclass(frozen=True, slots=True)
class FanOut:
    """Sub-agents of a preset: groups of chains that start from fresh contexts.

    Attributes
    ----------
    session_share : float
        Share of sessions that have sub-agents at all (0 to 1).
    groups : LogNormal
        Sub-agents of such a session.
    turns_correlation : float
        Correlation of the number of sub-agents with the number of turns, on the normal scale (-1 to 1).
    max_concurrent : int
        Largest batch started by one turn; batches are 1 to this many, equally likely.
    requests : LogNormal
        Requests of a sub-agent.
    start : LogNormal
        First prompt [tokens].
    output, appended : LogNormal
        Answer of a request, tokens appended beyond it [tokens].
    spread : float
        Sigma of a sub-agent's own factor on `appended`.
    gap : LogNormal
        Time from one end to the next start [s].
    background_share : float
        Share of batches that the parent's next turn does not wait for (0 to 1).
    """

    session_share: float
    groups: LogNormal
    turns_correlation: float
    max_concurrent: int
    requests: LogNormal
    start: LogNormal
    output: LogNormal
    appended: LogNormal
    spread: float
    gap: LogNormal
    background_share: float


@dataclass(frozen=True, slots=True)
class AgenticPreset:
    """Parameters of one kind of agentic traffic.

    Attributes
    ----------
    name : str
        Name in scenarios.
    turns : LogNormal
        Main turns of a session.
    start : Mixture
        First prompt of a session [tokens]: fresh or resumed.
    output : LogNormal
        Answer of a main turn [tokens].
    appended : LogNormal
        Tokens that the next prompt appends beyond the answer (tool results, user text).
    spread : float
        Sigma of a session's own factor on `appended`.
    gap : Mixture
        Time from the end of a turn to the start of the next [s].
    limit : LogNormal
        Context at which a session is compacted [tokens]: the window, or a user who does not wait for it.
    compacted : LogNormal
        Context after that [tokens].
    kept_tokens : int
        Leading tokens that survive it (tools and system prompt).
    tail_rewrite_prob, tail_rewrite : float, LogNormal
        Chance per turn that the last few tokens are rewritten, and how many [tokens].
    rewrite_prob, rewrite : float, LogNormal
        Chance per turn that the context changes further back, and how far from its end [tokens].
    window_tokens : int
        Context window; no prompt + output is longer.
    shared_prefix_tokens : int
        Leading tokens common to all sessions.
    outputs_reappear : bool
        Whether the next prompt contains what the server generated. False for a replay of recorded
        answers, whose generated tokens are never found again.
    fan_out : FanOut or None
        Sub-agents.
    ttft_s, output_tokens_per_s : float
        Speed of the service on which the record was made; gives recorded start times, not live ones.
    """

    name: str
    turns: LogNormal
    start: Mixture
    output: LogNormal
    appended: LogNormal
    spread: float
    gap: Mixture
    limit: LogNormal
    compacted: LogNormal
    kept_tokens: int
    tail_rewrite_prob: float
    tail_rewrite: LogNormal
    rewrite_prob: float
    rewrite: LogNormal
    window_tokens: int
    shared_prefix_tokens: int
    outputs_reappear: bool
    fan_out: FanOut | None
    ttft_s: float = 2.5
    output_tokens_per_s: float = 38.0


AGENTX_V1 = AgenticPreset(
    name="agentx-v1",
    turns=LogNormal(65, 1.27, 1, 3000),
    start=Mixture(((0.55, LogNormal(19_000, 0.25, 4_000)), (0.45, LogNormal(115_000, 0.9, 4_000)))),
    output=LogNormal(616, 1.31, 1, 128_000),
    appended=LogNormal(600, 1.1, 1, 500_000),
    spread=0.35,
    gap=Mixture(((0.8, LogNormal(3.5, 2.0)), (0.2, LogNormal(40, 2.6, 0, 604_800)))),
    limit=LogNormal(890_000, 0.55, 60_000, 967_000),
    compacted=LogNormal(36_000, 0.4, 16_000, 200_000),
    kept_tokens=13_000,
    tail_rewrite_prob=0.0086,
    tail_rewrite=LogNormal(192, 0.6, 1, 1_024),
    rewrite_prob=0.010,
    rewrite=LogNormal(51_000, 0.84, 1_025),
    window_tokens=1_000_000,
    shared_prefix_tokens=0,
    outputs_reappear=False,
    fan_out=FanOut(
        session_share=0.44, groups=LogNormal(4, 1.34, 1, 200), turns_correlation=0.5, max_concurrent=3,
        requests=LogNormal(16, 0.94, 1, 400), start=LogNormal(15_000, 0.35, 2_000),
        output=LogNormal(283, 1.32, 1, 64_000), appended=LogNormal(1_150, 1.1, 1, 300_000), spread=0.4,
        gap=LogNormal(3.5, 1.0, 0.0, 300.0), background_share=0.15),
)

PRESETS = {p.name: p for p in (AGENTX_V1,)}


def preset(name: str) -> AgenticPreset:
    return PRESETS[name]
