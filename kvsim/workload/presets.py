"""Agentic traffic presets: physical parameters, each with its source.

Parameters describe what agents do (turns, tokens appended, answers, think times, context resets, fan-out);
medians of whole requests follow from them and are nowhere set. Sources:

- *corpus*: statistics of cc-traces-weka-062126 (393 sessions, 98,827 requests), the data set that InferenceX AgentX
  replays, as published by SemiAnalysis (https://newsletter.semianalysis.com) and by two independent replay simulators.
- *sessions*: own statistics of 710 Claude Code sessions, https://github.com/callanjfox/kv-cache-tester (Apache-2.0).
- *assumed*: chosen here; the docstring of the preset says why.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import MappingProxyType

from kvsim.errors import Problem, ScenarioError, nearest
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
    limit : Mixture
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
    limit: Mixture
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


_REWRITE_PROB = 0.0142
"""Turns whose context changes further back than 1,024 tokens, other than compactions: 681 of 47,948 (sessions)."""

_REWRITE = LogNormal(250_000, 1.0, 1_025)
"""How far back they reach, bounded by the context: mostly everything, as 51k and more in 62 % of cases (sessions)."""

_TAIL_REWRITE_PROB = 0.0086
"""Turns that rewrite at most the last 1,024 tokens: 414 of 47,948 (sessions)."""

AGENTX_V1 = AgenticPreset(
    name="agentx-v1",
    turns=LogNormal(65, 1.27, 1, 3_000),
    start=Mixture(((0.55, LogNormal(19_000, 0.25, 4_000)), (0.45, LogNormal(115_000, 0.85, 4_000)))),
    output=LogNormal(616, 1.31, 1, 128_000),
    appended=LogNormal(580, 1.2, 1, 500_000),
    spread=0.35,
    gap=Mixture(((0.8, LogNormal(3.5, 2.0)), (0.2, LogNormal(40, 2.6, 0, 604_800)))),
    limit=Mixture(((1.0, LogNormal(870_000, 0.55, 60_000, 967_000)),)),
    compacted=LogNormal(36_000, 0.4, 16_000, 200_000),
    kept_tokens=13_000,
    tail_rewrite_prob=_TAIL_REWRITE_PROB,
    tail_rewrite=LogNormal(192, 0.6, 1, 1_024),
    rewrite_prob=0.0035,
    rewrite=_REWRITE,
    window_tokens=1_000_000,
    shared_prefix_tokens=0,
    outputs_reappear=False,
    fan_out=FanOut(
        session_share=0.44, groups=LogNormal(4, 1.34, 1, 200), turns_correlation=0.5, max_concurrent=3,
        requests=LogNormal(16, 0.94, 1, 400), start=LogNormal(15_000, 0.35, 2_000),
        output=LogNormal(283, 1.32, 1, 64_000), appended=LogNormal(1_150, 1.1, 1, 300_000), spread=0.0,
        gap=LogNormal(3.5, 1.0, 0.0, 300.0), background_share=0.15),
)
"""What InferenceX AgentX v1.0 replays: long Claude Code sessions with sub-agents in a 1M window.

From the corpus: turns (p50 65, p90 330), answers (p50 616, mean 1,374, p90 3,502), gaps (p50 4.9 s, p90 131 s,
p99 3,257 s, 4.5 % over 300 s), sub-agents (44 % of sessions, p50 4 of them, 16 requests each with inner prompts of
p50 64k, p90 196k, peak concurrency p50 3; means 9.8 and 24.8 give the sigmas), answers of sub-agents (the share
and the mean that make the answers of all requests p50 444, mean 1,077), no text shared between sessions.
`appended` and `rewrite_prob` are what new tokens per turn (p50 1,664, mean 3,792, p99 46,722) leave beyond the answers.
From the sessions: the first prompt (55 % fresh), tail rewrites, how far rewrites reach, what a compaction leaves.
Assumed: `limit` (all that main prompts of p50 254k, p90 651k, p99 898k say about it: sessions are compacted or
restarted well before the window, at 0.4M to 0.97M), `spread`, the correlation of sub-agents with turns, and
the share in the background. Recorded answers are replayed, so generated tokens are not found again.

Results, not settings, of 400 sessions (12 seeds): over all requests p50 136k to 144k in and 442 to 448 out (published
142k and 444), main prompts 243k to 270k at p50, 612k to 694k at p90, 0.90M to 0.93M at p99, new tokens per turn p50
1,642 and mean about 4,000, infinite cache 0.983 (published 0.98309). In half an hour of 16 live sessions at the
recorded speed an infinite cache finds 0.974 (16 seeds, 0.967 to 0.981) of what is asked after the primers.
"""

AGENTX_V1_LOGS = replace(
    AGENTX_V1,
    name="agentx-v1-logs",
    start=Mixture(((0.7, LogNormal(15_000, 0.25, 4_000)), (0.3, LogNormal(60_000, 0.9, 4_000)))),
    output=LogNormal(255, 1.31, 1, 128_000),
    appended=LogNormal(215, 1.1, 1, 500_000),
    spread=1.0,
    limit=Mixture(((1.0, LogNormal(520_000, 0.7, 60_000, 967_000)),)),
    fan_out=FanOut(
        session_share=0.44, groups=LogNormal(4, 1.34, 1, 200), turns_correlation=0.5, max_concurrent=3,
        requests=LogNormal(16, 0.94, 1, 400), start=LogNormal(12_000, 0.35, 2_000),
        output=LogNormal(120, 1.32, 1, 64_000), appended=LogNormal(400, 1.1, 1, 300_000), spread=0.4,
        gap=LogNormal(3.5, 1.0, 0.0, 300.0), background_share=0.15),
)
"""AgentX as the logs of InferenceX's Kimi K3 runs show it: shorter prompts, same turns, gaps and fan-out.

The logs say (K3 tokenizer): prompts of mean 100k to 155k (typically 115k to 129k), p50 60k to 70k, p90 286k to 375k,
p99 560k to 810k; answers 426 to 500, here taken as means; ideal hit rate 0.97 to 0.986
(https://github.com/SemiAnalysisAI/InferenceX). They disagree with the corpus behind `AGENTX_V1`; the two are
different workloads and are never averaged. Assumed: start, appended, spread, limit, chosen for those four figures.
"""

CLAUDE_CODE = AgenticPreset(
    name="claude-code",
    turns=LogNormal(39, 1.16, 1, 500),
    start=Mixture(((0.55, LogNormal(19_000, 0.25, 15_500)), (0.45, LogNormal(115_000, 0.85, 15_500)))),
    output=LogNormal(216, 1.15, 1, 32_000),
    appended=LogNormal(289, 1.73, 1, 150_000),
    spread=0.0,
    gap=Mixture(((0.865, LogNormal(12.5, 1.29)), (0.135, LogNormal(134.7, 1.744)))),
    limit=Mixture(((0.85, LogNormal(152_000, 0.08, 100_000, 180_000)),
                   (0.15, LogNormal(500_000, 0.5, 190_000, 967_000)))),
    compacted=LogNormal(36_000, 0.4, 16_000, 90_000),
    kept_tokens=13_000,
    tail_rewrite_prob=_TAIL_REWRITE_PROB,
    tail_rewrite=LogNormal(192, 0.6, 1, 1_024),
    rewrite_prob=_REWRITE_PROB,
    rewrite=_REWRITE,
    window_tokens=1_000_000,
    shared_prefix_tokens=15_000,
    outputs_reappear=True,
    fan_out=None,
)
"""Live Claude Code traffic, most of it in a 200k window with automatic compaction; 15k tokens shared by all sessions.

From the sessions: turns, first prompts (45 % resumed), answers (p50 216, mean 440, p90 898), tokens appended beyond
them (p50 289, p99 16.3k), gaps after tool results (86.5 %) and humans, rewrites, compaction (from 140k to 180k down to
36k, of which 13k tools and system prompt survive; hardly any beyond 180k, where windows are 1M). Only 17 of 710
sessions have sub-agents: none here. Assumed: 15 % of sessions in a 1M window.

Results of 400 sessions: prompts of p50 89k and mean 114k to 123k (recorded: 104k and 122k), 0.966 for the infinite
cache of prompts (0.963).
"""

PRESETS = MappingProxyType({p.name: p for p in (AGENTX_V1, AGENTX_V1_LOGS, CLAUDE_CODE)})
"""All presets by name."""


def preset(name: str) -> AgenticPreset:
    """A preset by its name.

    Raises
    ------
    ScenarioError
        Unknown name.

    Examples
    --------
    >>> preset("agentx-v1").turns.median
    65
    """
    if name not in PRESETS:
        known = sorted(PRESETS)
        raise ScenarioError(f"unknown workload preset {name!r}; accepted: {', '.join(known)}", [
            Problem("workload", "preset", repr(name), ", ".join(known), nearest(name, known))])
    return PRESETS[name]
