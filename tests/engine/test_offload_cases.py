"""The plain engine with a host tier against recorded runs of the real scheduler and its SimpleCPUOffloadConnector."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from kvsim.cache.tiers.config import TierConfig
from kvsim.engine import reference
from kvsim.engine.case import EngineCase
from kvsim.engine.types import EngineConfig, EngineRun
from kvsim.steptime.base import StepTimeModel
from kvsim.validate.engine_cases import check_case, find_cases
from kvsim.workload.requests import Workload

DATA = Path(__file__).parents[1] / "data"
RECORDED = list(find_cases([DATA / "engine_cases.jsonl.gz"], ("offload", "k3offload")))
EDGE = list(find_cases([DATA / "offload_cases.jsonl.gz"]))


def test_cases_cover_what_they_are_for() -> None:
    assert (len(RECORDED), len(EDGE)) == (21, 49)
    tiers = [case.config.tiers[0] for case in EDGE]
    assert {tier.write for tier in tiers} == {"eager", "lazy"}
    assert {case.config.policy for case in EDGE} == {"fcfs", "priority"}
    assert {case.config.state_groups for case in EDGE} == {0, 1, 2, 3}
    loading = [case for case in EDGE if case.answer and case.answer.totals["blocks_loaded"]]
    assert len(loading) > 20


@pytest.mark.parametrize("case", [*RECORDED, *EDGE], ids=lambda case: case.name)
def test_plain_engine_with_a_host_tier_decides_as_the_real_scheduler(case: EngineCase) -> None:
    result = check_case(case)
    assert result.exact, str(result.difference)


@pytest.mark.parametrize("change", [
    {"write": "lazy"}, {"write": "eager"}, {"num_blocks": 1}, {"load_s_per_block": 1.0}, {"store_s_per_block": 1.0},
    {"load_start_s": 0.001}, {"store_start_s": 0.1}, {"offline_from_s": 0.0}, {"stores_outputs": False},
    {"min_load_tokens": 33}, {"write": "on-eviction"}, {"write": "on-reuse"}, {"write": "none"}])
def test_a_different_tier_is_found_out(change: dict[str, object]) -> None:
    def other(workload: Workload, config: EngineConfig, step_time: StepTimeModel) -> EngineRun:
        tier: TierConfig = dataclasses.replace(config.tiers[0], **change)
        return reference.run(workload, dataclasses.replace(config, tiers=(tier,)), step_time)

    assert not all(check_case(case, other).exact for case in EDGE)
