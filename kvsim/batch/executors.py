"""Where cases run: in this process, in a pool of worker processes, or on Ray; with identical outcomes."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Generator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Literal, Protocol

from kvsim.batch.job import Job, Outcome, failed, run_case
from kvsim.errors import KvsimError, Problem

ExecutorName = Literal["process", "inline", "ray"]
Finished = tuple[Job, Outcome]


@dataclass(frozen=True, slots=True)
class Limits:
    """What one case may take.

    Attributes
    ----------
    timeout_s : float or None
        Longest run of one case [s]; None for no bound.
    memory_bytes : int
        Most data of one worker process [bytes], 0 for no bound; its program and libraries count too.
    retries : int
        How often a case is tried again after its worker died; one that ran into a limit is not.
    """

    timeout_s: float | None = None
    memory_bytes: int = 4 * 2**30
    retries: int = 1


class Executor(Protocol):
    """Runs cases and yields every outcome as it comes, in any order."""

    def run(self, jobs: Sequence[Job]) -> Generator[Finished]:
        """Run all jobs; closing the iterator stops what is still running."""
        ...


class Inline:
    """One case after the other in this process; knows no limits. For debugging and small sweeps."""

    def run(self, jobs: Sequence[Job]) -> Generator[Finished]:
        """Run all jobs in their order."""
        for job in jobs:
            yield job, run_case(job)


class ProcessPool:
    """Worker processes, each with one case at a time; a worker that dies loses only its case.

    Parameters
    ----------
    workers : int
        Number of processes, >= 1.
    limits : Limits
        Bounds of one case.
    """

    def __init__(self, workers: int, limits: Limits) -> None:
        self.workers, self.limits = workers, limits

    def run(self, jobs: Sequence[Job]) -> Generator[Finished]:
        """Run all jobs, handed out in their order."""
        pool = [_Worker(self.limits) for _ in range(min(self.workers, len(jobs)))]
        if not pool:
            return
        free: SimpleQueue[_Worker] = SimpleQueue()
        for worker in pool:
            free.put(worker)
        threads = ThreadPoolExecutor(len(pool))
        try:
            waiting = [threads.submit(_on_free_worker, free, job) for job in jobs]
            for done in as_completed(waiting):
                yield done.result()
        finally:
            threads.shutdown(wait=False, cancel_futures=True)
            for worker in pool:
                worker.stop()
            threads.shutdown()
            for worker in pool:
                worker.bury()


def _on_free_worker(free: SimpleQueue[_Worker], job: Job) -> Finished:
    worker = free.get()
    try:
        return job, worker.run(job)
    finally:
        free.put(worker)


class _Worker:
    """One worker process, started when it is first needed and again after it died."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._process: subprocess.Popen[str] | None = None
        self._closed = self._expired = False

    def run(self, job: Job) -> Outcome:
        """The outcome of a case, tried again if the process dies without one."""
        codes: list[int] = []
        while len(codes) <= self._limits.retries and not self._closed:
            answer = self._ask(job)
            if answer:
                return json.loads(answer)
            codes.append(self.bury())
            if self._expired:
                return failed("timeout", "Timeout", f"took longer than {self._limits.timeout_s:g} s")
        code = codes[-1] if codes else 0
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        return failed("killed", "WorkerDied", f"its worker process died ({how}), {len(codes)} times")

    def stop(self) -> None:
        """End the process, whatever it is doing, for good."""
        self._closed = True
        if self._process is not None:
            self._process.kill()

    def bury(self) -> int:
        """Exit code of the process, which is ended if it still runs; 0 if there is none."""
        process, self._process = self._process, None
        return 0 if process is None else _end(process)

    def _ask(self, job: Job) -> str:
        process = self._process or self._start()
        if self._limits.timeout_s is None:
            return _exchange(process, job)
        timer = threading.Timer(self._limits.timeout_s, self._expire)
        timer.daemon = True
        timer.start()
        try:
            return _exchange(process, job)
        finally:
            timer.cancel()

    def _start(self) -> subprocess.Popen[str]:
        # A session of its own: Ctrl-C reaches the sweep alone, which then ends its workers.
        command = [sys.executable, "-m", "kvsim.batch.worker", str(self._limits.memory_bytes)]
        self._expired = False
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                         encoding="utf-8", env=worker_environment(), start_new_session=True)
        if self._closed:
            self._process.kill()
        # The clock of a case starts when the program has been loaded.
        _line_of(self._process)
        return self._process

    def _expire(self) -> None:
        self._expired = True
        if self._process is not None:
            self._process.kill()


def _exchange(process: subprocess.Popen[str], job: Job) -> str:
    """The answer to a case; empty if the process died."""
    assert process.stdin is not None
    try:
        process.stdin.write(job.to_json() + "\n")
        process.stdin.flush()
    except OSError:
        return ""
    return _line_of(process)


def _end(process: subprocess.Popen[str]) -> int:
    process.kill()
    code = process.wait()
    for pipe in (process.stdin, process.stdout):
        # What was not yet sent is lost with the process.
        with contextlib.suppress(OSError):
            if pipe is not None:
                pipe.close()
    return code


def _line_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


def worker_environment() -> dict[str, str]:
    """Environment of a worker: this one, with the package's own place on the search path."""
    home = str(Path(__file__).resolve().parents[2])
    known = os.environ.get("PYTHONPATH", "")
    return {**os.environ, "PYTHONPATH": os.pathsep.join([home, *([known] if known else [])])}


def make_executor(name: ExecutorName, workers: int | None, limits: Limits, address: str | None = None) -> Executor:
    """The executor of that name.

    Parameters
    ----------
    name : "process", "inline" or "ray"
        Where cases run.
    workers : int or None
        Cases at a time; None takes every core that this process may use, or all that Ray has.
    limits : Limits
        Bounds of one case; "inline" knows none.
    address : str, optional
        A Ray cluster; a local one is started otherwise.

    Raises
    ------
    KvsimError
        An unknown name, or Ray is not installed.

    Examples
    --------
    >>> type(make_executor("inline", None, Limits())).__name__
    'Inline'
    """
    if name == "inline":
        return Inline()
    if name == "process":
        return ProcessPool(workers or usable_cores(), limits)
    if name == "ray":
        from kvsim.batch.on_ray import OnRay

        return OnRay(workers, limits, address)
    raise KvsimError("no such executor", [Problem("executor", "", repr(name), "process, inline or ray")])


def usable_cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
