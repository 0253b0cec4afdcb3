"""A result that breaks physics is an error, not a result."""

from __future__ import annotations

import pytest

from kvsim import simulation
from kvsim.errors import SimulationError
from kvsim.steptime.roofline import RooflineStepTime

TINY = {"name": "tiny", "model": "llama-3.1-8b", "hardware": {"gpu": "h200", "num_gpus": 1},
        "workload": {"fixed": {"num_requests": 4, "input_tokens": 500, "output_tokens": 20}, "concurrency": 2}}


def test_a_plain_run_keeps_the_floors() -> None:
    assert simulation.simulate(TINY).run.num_requests == 4


def test_a_step_below_its_floor_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RooflineStepTime, "floor_s", lambda *_: 1e3)
    with pytest.raises(SimulationError, match=r"digest [0-9a-f]{16}, seed 0") as caught:
        simulation.simulate(TINY)
    assert {p.field for p in caught.value.problems} == {"step time"}
