"""Long work beside the pages: progress, cancelling, failures."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from kvsim.dashboard.jobs import MAX_JOBS, Job, Jobs
from kvsim.errors import KvsimError


def wait_until(reached: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not reached():
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.01)


def ended(job: Job) -> Job:
    wait_until(lambda: job.state != "running")
    return job


def test_result_and_progress() -> None:
    def work(job: Job) -> str:
        job.tell(0.5, "half")
        return "found"

    job = ended(Jobs().start("x", work))
    assert (job.state, job.result, job.share) == ("done", "found", 1.0)


def test_cancelled_work_stops_at_its_next_progress() -> None:
    told, go = list[float](), threading.Event()

    def work(job: Job) -> None:
        for k in range(100):
            job.tell(k / 100, "working")
            told.append(k)
            go.wait(20)

    job = Jobs().start("x", work)
    wait_until(lambda: bool(told))
    job.cancel()
    assert job.stopping
    go.set()
    assert ended(job).state == "cancelled"
    assert told == [0]
    assert not job.stopping


@pytest.mark.parametrize("err", [KvsimError("no such thing"), ValueError("odd"), OSError("disk full")])
def test_failure_is_told(err: Exception) -> None:
    def work(_job: Job) -> None:
        raise err

    job = ended(Jobs().start("x", work))
    assert job.state == "failed"
    assert job.error is not None
    assert str(err.args[0]) in job.error.message


def test_one_name_runs_once_at_a_time_and_again_afterwards() -> None:
    jobs, go, runs = Jobs(), threading.Event(), list[int]()

    def work(_job: Job) -> None:
        runs.append(1)
        go.wait(20)

    first = jobs.start("x", work)
    assert jobs.start("x", work) is first
    go.set()
    ended(first)
    again = ended(jobs.start("x", work))
    assert again is not first
    assert jobs.find("x") is again
    assert len(runs) == 2


def test_old_jobs_are_forgotten() -> None:
    jobs = Jobs()
    for k in range(MAX_JOBS + 5):
        ended(jobs.start(str(k), lambda _job: None))
    assert jobs.find("0") is None
    assert jobs.find(str(MAX_JOBS + 4)) is not None


def test_time_left_follows_the_pace_since_the_start_of_this_run() -> None:
    # A sweep that goes on at 60 % has done 20 % in 10 s: the other 20 % take as long.
    assert Job(share=0.8, first_share=0.6, began_s=0.0, ended_s=10.0).left_s == pytest.approx(10.0)
    assert Job(share=0.6, first_share=0.6, began_s=0.0, ended_s=10.0).left_s is None
