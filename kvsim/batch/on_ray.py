"""Cases on Ray: a local instance, or a cluster whose hosts share the file system that results are written to."""

from __future__ import annotations

import importlib
import time
from collections.abc import Generator, Sequence
from typing import Any

from kvsim.batch.executors import Finished, Limits, worker_environment
from kvsim.batch.job import Job, Outcome, failed, run_case
from kvsim.errors import KvsimError, Problem

_LOOK_EVERY_S = 0.5
_LOCAL_STORE_BYTES = 100_000_000
"""Object store of a local Ray: cases and outcomes take kilobytes, its default takes a third of the memory."""


class OnRay:
    """One Ray task a case, as many at a time as there are CPUs.

    Parameters
    ----------
    workers : int or None
        Cases at a time; None takes all CPUs that Ray has.
    limits : Limits
        Bounds of one case. ``memory_bytes`` is what Ray is asked to reserve, 0 for nothing.
    address : str or None
        Address of a running cluster (``auto``, ``ray://host:10001``); None starts a local one and stops it at the end.

    Raises
    ------
    KvsimError
        Ray is not installed.
    """

    def __init__(self, workers: int | None, limits: Limits, address: str | None) -> None:
        self._ray = _import_ray()
        self._workers, self._limits, self._address = workers, limits, address

    def run(self, jobs: Sequence[Job]) -> Generator[Finished]:
        """Run all jobs, handed out in their order."""
        mine = not self._ray.is_initialized()
        if mine:
            self._connect()
        try:
            yield from self._results(list(jobs))
        finally:
            if mine:
                self._ray.shutdown()

    def _connect(self) -> None:
        local = {} if self._address else {"num_cpus": self._workers, "num_gpus": 0, "include_dashboard": False,
                                          "object_store_memory": _LOCAL_STORE_BYTES}
        path = worker_environment()["PYTHONPATH"]
        self._ray.init(address=self._address, log_to_driver=False, configure_logging=False,
                       runtime_env={"env_vars": {"PYTHONPATH": path}}, **local)

    def _results(self, jobs: list[Job]) -> Generator[Finished]:
        task = self._ray.remote(num_cpus=1, max_retries=self._limits.retries)(run_case)
        places = self._workers or max(int(self._ray.cluster_resources().get("CPU", 1)), 1)
        running: dict[Any, tuple[Job, float]] = {}
        jobs.reverse()
        while jobs or running:
            while jobs and len(running) < places:
                job = jobs.pop()
                running[task.remote(job)] = (job, time.monotonic())
            ready, _ = self._ray.wait(list(running), num_returns=1, timeout=_LOOK_EVERY_S)
            for reference in ready:
                yield running.pop(reference)[0], self._outcome(reference)
            yield from self._late(running)

    def _outcome(self, reference: Any) -> Outcome:
        try:
            return self._ray.get(reference)
        except self._ray.exceptions.RayError as err:
            return failed("killed", type(err).__name__, "its Ray worker died")

    def _late(self, running: dict[Any, tuple[Job, float]]) -> Generator[Finished]:
        """Cases that took too long, stopped and taken out of `running`."""
        limit_s = self._limits.timeout_s
        if limit_s is None:
            return
        for reference, (job, began) in list(running.items()):
            if time.monotonic() - began > limit_s:
                self._ray.cancel(reference, force=True)
                del running[reference]
                yield job, failed("timeout", "Timeout", f"took longer than {limit_s:g} s")


def _import_ray() -> Any:
    """The module ray, loaded when it is needed."""
    try:
        return importlib.import_module("ray")
    except ImportError:
        problem = Problem("executor", "", "'ray', which is not installed", "pip install 'kvsim[ray]'")
        raise KvsimError("cannot run on Ray", [problem]) from None
