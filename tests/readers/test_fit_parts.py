"""What a fit makes of sub-agents, shared beginnings and traces that say little."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from kvsim.workload.agentic import make_trees
from kvsim.workload.fit import fit
from kvsim.workload.presets import AGENTX_V1, CLAUDE_CODE, AgenticPreset
from kvsim.workload.table import Entry, Trace, TraceBuilder, trace_of_trees


def short_sessions(num: int, shared_tokens: int, empty: int = 0) -> Trace:
    """Sessions of two turns whose prompts begin alike; some requests have no prompt."""
    builder = TraceBuilder(num_contents=1)
    for k in range(num):
        first, answer, added, last = (builder.fresh() for _ in range(4))
        prompt = [(0, shared_tokens), (first, 1_000 + 10 * k)] if shared_tokens else [(first, 1_000 + 10 * k)]
        size = sum(n for _, n in prompt)
        builder.add(Entry(100.0 * k, size, 50, f"s{k}", prompt, answer))
        builder.add(Entry(100.0 * k + 9, size + 250, 60, f"s{k}", [*prompt, (answer, 50), (added, 200)], last))
    for k in range(empty):
        builder.add(Entry(1e5 + k, 0, 1, f"e{k}", [], builder.fresh()))
    return replace(builder.build("")[0], knowledge="blocks", block_tokens=1)


def test_sub_agents_are_found_again() -> None:
    given = AGENTX_V1.fan_out
    assert given is not None
    found = fit(trace_of_trees(make_trees(AGENTX_V1, 200, seed=3), 64))
    fan_out = found.preset.fan_out
    assert fan_out is not None
    assert fan_out.session_share == pytest.approx(given.session_share, abs=0.12)
    assert fan_out.start.median == pytest.approx(given.start.median, rel=0.1)
    assert fan_out.requests.median == pytest.approx(given.requests.median, rel=0.15)
    assert fan_out.output.median == pytest.approx(given.output.median, rel=0.1)
    assert fan_out.gap.median == pytest.approx(given.gap.median, rel=0.1)
    assert any("Batches and background share of sub-agents are assumed" in note for note in found.notes)


def lengths_only(trace: Trace) -> Trace:
    """The same record by somebody who did not write down what outputs are."""
    ids = trace.num_contents + np.arange(len(trace))
    return replace(trace, output_content=ids, num_contents=trace.num_contents + len(trace), outputs_known=False)


@pytest.mark.parametrize("given", [AGENTX_V1, CLAUDE_CODE])
def test_whether_outputs_reappear_is_seen_in_contents(given: AgenticPreset) -> None:
    trace = trace_of_trees(make_trees(given, 40, seed=3), 64)
    found = fit(trace)
    assert found.preset.outputs_reappear == given.outputs_reappear
    assert not any("judged by lengths" in note for note in found.notes)
    assert fit(replace(trace, outputs_known=False)).preset.outputs_reappear
    blind = fit(lengths_only(trace))
    assert blind.preset.outputs_reappear  # contexts of both presets grow by what was generated
    assert any("judged by lengths" in note for note in blind.notes)


def test_too_few_sub_agents_are_left_out_and_said() -> None:
    rare = replace(AGENTX_V1, fan_out=replace(AGENTX_V1.fan_out, session_share=0.1))  # pyright: ignore
    found = fit(trace_of_trees(make_trees(rare, 25, seed=3), 64))
    assert found.preset.fan_out is None
    assert any("sub-agents are too few to be fitted" in note for note in found.notes)


@pytest.mark.parametrize("shared_tokens", [0, 640])
def test_a_common_beginning(shared_tokens: int) -> None:
    found = fit(short_sessions(40, shared_tokens))
    assert found.preset.shared_prefix_tokens == shared_tokens
    assert found.preset.turns.median == 2
    assert found.preset.appended.median == 200
    assert any(note.startswith("Hardly any compaction") for note in found.notes)
    assert found.preset.limit.parts[0][1].median == pytest.approx(shared_tokens + 1_640, rel=0.001)


def test_requests_without_a_prompt_are_counted() -> None:
    found = fit(short_sessions(10, 0, empty=3))
    assert "3 requests without a prompt were left out." in found.notes
    assert np.isfinite([value for _, *both in found.goodness for values in both for value in values]).all()


def test_a_fit_of_one_session_has_no_spread_between_sessions() -> None:
    found = fit(short_sessions(1, 0))
    assert found.preset.spread == 0
    assert found.preset.output.median == 55
    assert found.preset.window_tokens == 1_250 + 60


def test_what_the_fitted_preset_says_is_what_it_generates() -> None:
    found = fit(trace_of_trees(make_trees(CLAUDE_CODE, 80, seed=1), 64), seed=2)
    rows = {name: (a, b) for name, a, b in found.goodness}
    again = make_trees(found.preset, 100, 2)
    assert rows["turns"][1][1] == pytest.approx(float(np.median([t.num_main_turns for t in again])), rel=0.01)
