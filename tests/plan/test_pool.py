"""Processes that die take no result with them."""

from __future__ import annotations

import os
import time

import pytest

from kvsim.planning.pool import process_pool


def dies_elsewhere(job: tuple[int, int]) -> int:
    """Doubles a number in the process that is named, and kills any other one at an odd number."""
    home, number = job
    if number % 2 and os.getpid() != home:
        os._exit(1)
    return 2 * number


def test_a_dead_process_leaves_its_work_to_this_one() -> None:
    jobs = [(os.getpid(), number) for number in range(6)]
    counted: list[int] = []
    with process_pool(2) as run:
        assert run(dies_elsewhere, jobs, counted.append) == [0, 2, 4, 6, 8, 10]
        assert run(dies_elsewhere, jobs[:2]) == [0, 2]
    assert counted == [1, 2, 3, 4, 5, 6]


def test_one_process_is_this_one() -> None:
    counted: list[int] = []
    with process_pool(1) as run:
        assert run(dies_elsewhere, [(os.getpid(), 1), (os.getpid(), 3)], counted.append) == [2, 6]
    assert counted == [1, 2]


def pid_after(seconds: float) -> int:
    """Sleeps, and says in which process."""
    time.sleep(seconds)
    return os.getpid()


def interrupted(_num_done: int) -> None:
    """As Ctrl-C would."""
    raise KeyboardInterrupt


def test_work_that_is_given_up_ends_at_once() -> None:
    with process_pool(2) as run:
        homes = run(pid_after, [0.3, 0.3])
        began = time.monotonic()
        with pytest.raises(KeyboardInterrupt), process_pool(2) as other:
            other(pid_after, [0.0, 120.0, 120.0, 120.0], interrupted)
        assert time.monotonic() - began < 20.0
        assert set(run(pid_after, [0.3, 0.3])) & set(homes), "another pool was ended as well"
