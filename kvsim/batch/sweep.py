"""Run a sweep: what is missing, anywhere, into one table."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kvsim.batch.cases import Case, expand, value_at
from kvsim.batch.executors import ExecutorName, Limits, make_executor
from kvsim.batch.folder import REQUESTS, Folder
from kvsim.batch.job import CASE_FAULTS, Job, Outcome, failed, fault_kind
from kvsim.batch.spec import Batch, load_batch
from kvsim.batch.table import SweepTable, need_parquet, table_of
from kvsim.errors import Problem, ScenarioError
from kvsim.scenario import with_value
from kvsim.simulation import simulate

PROBE_S = 0.3
"""A shortened case that takes so long [s] says enough about the whole."""
PROBE_FRACS = (0.125, 0.25, 0.5, 1.0)


@dataclass(frozen=True, slots=True)
class SweepOptions:
    """How a sweep is run; none of it changes a result.

    Attributes
    ----------
    executor : "process", "inline" or "ray"
        Where cases run.
    workers : int or None
        Cases at a time; None takes all cores.
    limits : Limits
        Bounds of one case.
    requests : bool
        Also write a Parquet file with a row a request for every case.
    retry_failed : bool
        Run the cases again that failed before.
    address : str or None
        A Ray cluster.
    """

    executor: ExecutorName = "process"
    workers: int | None = None
    limits: Limits = field(default_factory=Limits)
    requests: bool = False
    retry_failed: bool = False
    address: str | None = None


@dataclass(frozen=True, slots=True)
class SweepProgress:
    """How far a sweep is: cases in all, found finished, run now; of those failed; and the last one's label."""

    total: int
    reused: int
    done: int
    failed: int
    label: str


@dataclass(frozen=True, slots=True)
class Status:
    """State of a sweep's folder: counts of cases, and the largest worker seen [bytes]."""

    total: int
    ok: int
    failed: int
    missing: int
    peak_bytes: int


ProgressFunction = Callable[[SweepProgress], None]


def sweep(batch: Batch | str | Path | Mapping[str, Any], out: str | Path | None = None,
          options: SweepOptions | None = None, progress: ProgressFunction | None = None) -> SweepTable:
    """Run every case of a sweep that has no result yet.

    Parameters
    ----------
    batch : Batch, str, Path or mapping
        A sweep, the path or shipped name of one, or plain data.
    out : str or Path, optional
        Folder of the results (see `kvsim.batch.folder.Folder`); a sweep that was stopped goes on there. Without
        one, nothing is kept but the table that is returned.
    options : SweepOptions, optional
        Where it runs and within which bounds.
    progress : callable, optional
        Called with `SweepProgress` after every case.

    Returns
    -------
    SweepTable
        A row a case in the sweep's order; cases that failed are rows with their error.

    Raises
    ------
    ScenarioError
        The sweep is wrong, not one case of it is a scenario, or `out` cannot be used.
    KvsimError
        A package that was asked for is missing.

    Examples
    --------
    >>> base = {"name": "tiny", "model": "llama-3.1-8b", "hardware": {"gpu": "h200", "num_gpus": 1},
    ...     "workload": {"fixed": {"num_requests": 4, "input_tokens": 100, "output_tokens": 5}, "concurrency": 1}}
    >>> table = sweep({"name": "t", "base": base, "axes": [{"grid": {"workload.concurrency": [1, 2]}}]},
    ...     options=SweepOptions("inline"))
    >>> table["axis.workload.concurrency"], table["run.num_requests"]
    ([1, 2], [4, 4])
    """
    chosen, how = load_batch(batch), options or SweepOptions()
    cases = expand(chosen)
    folder = None if out is None else _prepared(Folder(out), chosen)
    found = known_outcomes(cases, folder, how)
    jobs = _jobs(cases, found, folder, how)
    if folder is not None and jobs:
        folder.drop_table()
    _run(jobs, found, _Watch(cases, len(jobs), folder, progress), how)
    table = table_of(chosen.name, [(case, found[case.digest]) for case in cases], len(jobs))
    if folder is not None:
        table.write_parquet(folder.table_path)
    return table


def open_sweep(path: str | Path) -> SweepTable:
    """The table of a sweep's folder, with the cases that have finished so far, with whatever version and profiles.

    Raises
    ------
    ScenarioError
        Not a sweep's folder.
    """
    folder = Folder(path)
    batch = folder.batch()
    cases = expand(batch)
    found = known_outcomes(cases, None, SweepOptions())
    kept = {case.digest: folder.outcome(case.digest, any_basis=True) for case in cases}
    found |= {digest: outcome for digest, outcome in kept.items() if outcome is not None}
    return table_of(batch.name, [(case, found[case.digest]) for case in cases if case.digest in found])


def status_of(batch: Batch, out: str | Path) -> Status:
    """How many cases of a sweep have finished in a folder."""
    cases = expand(batch)
    found = known_outcomes(cases, Folder(out), SweepOptions())
    states = [found[case.digest]["status"] if case.digest in found else "missing" for case in cases]
    peak = max((outcome.get("peak_bytes", 0) for outcome in found.values()), default=0)
    return Status(len(cases), states.count("ok"), states.count("failed"), states.count("missing"), peak)


def known_outcomes(cases: Sequence[Case], folder: Folder | None, options: SweepOptions) -> dict[str, Outcome]:
    """Outcomes by digest that need no run: what the folder holds, and cases that are no scenarios."""
    found: dict[str, Outcome] = {}
    for case in cases:
        kept = folder.outcome(case.digest) if folder is not None else None
        if case.fault is not None:
            found[case.digest] = failed(fault_kind(case.fault), type(case.fault).__name__, str(case.fault))
        elif kept is not None and folder is not None and _counts(kept, case.digest, folder, options):
            found[case.digest] = kept
    return found


def estimate_s(cases: Sequence[Case], found: Mapping[str, Outcome], workers: int) -> float:
    """About how long the missing cases take [s].

    From the times of finished cases where there are any; else from three cases (first, middle, last), shortened:
    wrong where cases in between take much longer.
    """
    missing = list({case.digest: case for case in cases if case.digest not in found}.values())
    if not missing:
        return 0.0
    took = [float(outcome["wall_s"]) for outcome in found.values() if "wall_s" in outcome]
    if not took:
        # Loads the program and the profiles, which is no case's time.
        _wall_s(shortened(missing[0].data, PROBE_FRACS[0]))
        took = [_probe_s(missing[i]) for i in sorted({0, len(missing) // 2, len(missing) - 1})]
    return statistics.mean(took) * len(missing) / min(workers, len(missing))


def _probe_s(case: Case) -> float:
    """Time of a case [s]: runs of an eighth, a quarter, ... of it until one takes long enough, extended in a line."""
    past_s, past_frac = 0.0, 0.0
    for frac in PROBE_FRACS:
        took_s = _wall_s(shortened(case.data, frac))
        if took_s > PROBE_S or frac == 1.0:
            return took_s + (took_s - past_s) / (frac - past_frac) * (1.0 - frac)
        past_s, past_frac = took_s, frac
    return past_s


def shortened(data: dict[str, Any], frac: float) -> dict[str, Any]:
    """A scenario with a share of its requests, or of its time where it states one.

    >>> shortened({"workload": {"fixed": {"num_requests": 80}}}, 0.125)
    {'workload': {'fixed': {'num_requests': 10}}}
    """
    for name, least in (("workload.fixed.num_requests", 1), ("workload.duration_s", 1.0), ("workload.warmup_s", 0.0)):
        value = value_at(data, name)
        if isinstance(value, int | float):
            data = with_value(data, name, max(type(value)(value * frac), least))
    return data


def _wall_s(data: dict[str, Any]) -> float:
    began = time.perf_counter()
    # A case that fails does so in the sweep too: the time until then is what it takes.
    with suppress(*CASE_FAULTS):
        simulate({"name": "probe", **data})
    return time.perf_counter() - began


def _counts(kept: Outcome, digest: str, folder: Folder, options: SweepOptions) -> bool:
    """Whether a kept outcome does for this run."""
    if kept["status"] != "ok":
        return not options.retry_failed
    return not options.requests or folder.requests_path(digest).is_file()


def _prepared(folder: Folder, batch: Batch) -> Folder:
    need_parquet()
    folder.start(batch)
    return folder


def _jobs(cases: Sequence[Case], found: Mapping[str, Outcome], folder: Folder | None,
          options: SweepOptions) -> list[Job]:
    """What is to be run, every digest once."""
    if options.requests and folder is None:
        raise ScenarioError("nowhere to write requests", [
            Problem("sweep", "requests", "no folder", f"a folder, whose {REQUESTS}/ they go to")])
    wanted = {case.digest: case for case in cases if case.digest not in found}
    return [Job(digest, case.data, str(folder.requests_path(digest).absolute())
                if options.requests and folder is not None else None) for digest, case in wanted.items()]


class _Watch:
    """Keeps outcomes as they come and tells how far the sweep is."""

    def __init__(self, cases: Sequence[Case], num_jobs: int, folder: Folder | None,
                 progress: ProgressFunction | None) -> None:
        self.folder, self.progress = folder, progress
        self.labels = {case.digest: case.label for case in cases}
        self.total, self.done, self.failed = len(self.labels), 0, 0
        self.reused = self.total - num_jobs

    def finished(self, job: Job, outcome: Outcome) -> None:
        if self.folder is not None:
            self.folder.save(job.digest, outcome)
        self.done += 1
        self.failed += outcome["status"] != "ok"
        if self.progress is not None:
            self.progress(SweepProgress(self.total, self.reused, self.done, self.failed, self.labels[job.digest]))


def _run(jobs: list[Job], found: dict[str, Outcome], watch: _Watch, options: SweepOptions) -> None:
    if not jobs:
        return
    executor = make_executor(options.executor, options.workers, options.limits, options.address)
    with closing(executor.run(jobs)) as results:
        for job, outcome in results:
            found[job.digest] = outcome
            watch.finished(job, outcome)
