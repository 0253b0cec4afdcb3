"""What it means that two runs took the same steps."""

from __future__ import annotations

import math

import pytest

from kvsim.engine.step_log import StepSums


def assert_same_steps(plain: StepSums, fast: StepSums) -> None:
    assert plain.bins.tolist() == fast.bins.tolist()
    assert fast.sums == pytest.approx(plain.sums, rel=1e-9)
    ours, theirs = plain.gaps(-math.inf, math.inf), fast.gaps(-math.inf, math.inf)
    assert theirs[1].sum() == ours[1].sum()
    assert float((theirs[0] * theirs[1]).sum()) == pytest.approx(float((ours[0] * ours[1]).sum()), rel=1e-9)
    assert max(theirs[0], default=0.0) <= max(ours[0], default=0.0) * (1 + 1e-9)
