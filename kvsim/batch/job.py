"""One case of a sweep from plain data to a plain outcome: what every executor runs."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, cast

from kvsim.engine.types import RunRecords
from kvsim.errors import InfeasibleError, KvsimError, SimulationError
from kvsim.report.report import Report

Outcome = dict[str, Any]
"""``{"status": "ok", "result": {...}}`` or ``{"status": "failed", "error": {kind, type, message}}``;
beside them ``wall_s`` and ``peak_bytes``."""

CASE_FAULTS = (KvsimError, ArithmeticError, AssertionError, AttributeError, ImportError, LookupError, MemoryError,
               OSError, RuntimeError, TypeError, ValueError)
"""What a case may raise without taking the sweep with it; Ctrl-C is not among them."""

_LEFT_OUT = ("name", "ledger", "scenario")
_AS_TEXT = ("run.profiles",)


@dataclass(frozen=True, slots=True)
class Job:
    """A case to run: its digest, the scenario as plain data, where to write its requests, if anywhere, and figures
    that replace those of profiles: ``[kind, name, path, value]`` each.
    """

    digest: str
    data: dict[str, Any]
    requests_path: str | None = None
    figures: list[list[Any]] | None = None

    def to_json(self) -> str:
        """One line that `from_json` reads."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, line: str) -> Job:
        """What `to_json` wrote."""
        return cls(**json.loads(line))


def run_case(job: Job) -> Outcome:
    """Simulate one case.

    Parameters
    ----------
    job : Job
        What to run.

    Returns
    -------
    dict
        Outcome; the same for the same case wherever it runs, but for ``wall_s`` and ``peak_bytes``.

    Examples
    --------
    >>> run_case(Job("0", {"model": "no-such-model", "hardware": {"gpu": "h200", "num_gpus": 1},
    ...     "workload": {"fixed": {"num_requests": 1, "input_tokens": 8, "output_tokens": 2}}}))["error"]["kind"]
    'input'
    """
    from kvsim.simulation import simulate

    began = time.perf_counter()
    try:
        report = simulate({"name": "case", **job.data}, **_store(job))
        if job.requests_path is not None:
            write_requests(report.records, Path(job.requests_path))
        outcome: Outcome = {"status": "ok", "result": report_columns(report)}
    except CASE_FAULTS as err:
        outcome = failed(fault_kind(err), type(err).__name__, str(err))
    return {**outcome, "wall_s": time.perf_counter() - began, "peak_bytes": peak_bytes()}


def _store(job: Job) -> dict[str, Any]:
    """The profiles of a case, where they are not the usual ones."""
    if not job.figures:
        return {}
    from kvsim.profiles.store import default_store
    from kvsim.uncertainty import DrawnStore

    values = {(kind, name, tuple(path)): value for kind, name, path, value in job.figures}
    return {"store": DrawnStore(default_store(), values)}


def failed(kind: str, what: str, message: str) -> Outcome:
    """The outcome of a case that has no report.

    >>> failed("timeout", "Timeout", "took longer than 1 s")["status"]
    'failed'
    """
    return {"status": "failed", "error": {"kind": kind, "type": what, "message": message}}


def fault_kind(err: BaseException) -> str:
    """Whose fault an error is: infeasible (an answer), input, memory, or bug.

    >>> fault_kind(InfeasibleError("does not fit")), fault_kind(ZeroDivisionError())
    ('infeasible', 'bug')
    """
    if isinstance(err, InfeasibleError):
        return "infeasible"
    if isinstance(err, KvsimError) and not isinstance(err, SimulationError):
        return "input"
    return "memory" if isinstance(err, MemoryError) else "bug"


def report_columns(report: Report) -> dict[str, Any]:
    """A report under its stable dotted names, without what differs between equal runs (``run.wall_s``)."""
    columns = flatten({k: v for k, v in report.to_dict().items() if k not in _LEFT_OUT})
    columns.pop("run.wall_s", None)
    return columns


def flatten(data: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested mappings as dotted names; lists become JSON text.

    >>> flatten({"a": {"b": 1}, "c": [1, 2]})
    {'a.b': 1, 'c': '[1, 2]'}
    """
    flat: dict[str, Any] = {}
    for key, value in data.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and name not in _AS_TEXT:
            flat |= flatten(cast("Mapping[str, Any]", value), f"{name}.")
        else:
            flat[name] = json.dumps(value, sort_keys=True) if isinstance(value, list | Mapping) else value
    return flat


def write_requests(records: RunRecords, path: Path) -> None:
    """A Parquet file with a row a request, written in one piece."""
    from kvsim.batch.table import write_parquet

    columns = {f.name: getattr(records, f.name) for f in fields(records) if f.name != "refusals"}
    write_parquet(columns, path)


def peak_bytes() -> int:
    """Largest resident memory of this process so far [bytes]; 0 where the system does not say."""
    try:
        status = Path("/proc/self/status").read_text(encoding="ascii")
    except OSError:
        return 0
    return next((1024 * int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM")), 0)
