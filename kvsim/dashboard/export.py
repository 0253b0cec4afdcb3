"""What a page hands out: the scenario and its report as files, and how to repeat them from a shell or in Python."""

from __future__ import annotations

import csv
import io
import json
import math
import shlex
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

import numpy as np
import yaml
from numpy.typing import NDArray

from kvsim.dashboard.choices import REFERENCE, Choices
from kvsim.scenario import Scenario, load_scenario
from kvsim.study import Row

NO_RESULT = ("schema", "name", "description")
"""Parts of a scenario that change no result, so that a command need not set them."""


def scenario_yaml(choices: Choices, scenario: Scenario) -> str:
    """The scenario with all points and seeds of the page, as a file that ``kvsim run`` takes."""
    return yaml.safe_dump(_as_study(choices, scenario), sort_keys=False, width=110, allow_unicode=True)


def report_json(row: Row) -> str:
    """Reports of the chosen number of live sessions, one a seed, under the stable names."""
    return json.dumps({"concurrency": row.concurrency, "cases": [
        {"concurrency": row.concurrency, "seed": r.run.seed, "report": r.to_dict()} for r in row.reports]},
        indent=1, sort_keys=True, allow_nan=False)


def request_columns(row: Row) -> dict[str, NDArray[Any]]:
    """Columns with a row a request that arrived, of every seed; times in s, status 0 = finished.

    Sessions have further turns that the end of a run cuts off: those have no row.
    """
    records = [(r.records, np.isfinite(r.records.arrival_s)) for r in row.reports]
    names = [f.name for f in fields(row.reports[0].records) if f.name != "refusals"]
    seeds = [np.full(int(came.sum()), r.run.seed, np.int64)
             for r, (_, came) in zip(row.reports, records, strict=True)]
    return {"seed": np.concatenate(seeds),
            **{n: np.concatenate([getattr(r, n)[came] for r, came in records]) for n in names}}


def requests_csv(row: Row) -> str:
    """`request_columns` as CSV; what did not happen is empty."""
    columns = request_columns(row)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    for values in zip(*(column.tolist() for column in columns.values()), strict=True):
        writer.writerow(["" if isinstance(v, float) and math.isnan(v) else v for v in values])
    return text.getvalue()


def requests_parquet(row: Row) -> bytes:
    """`request_columns` as Parquet.

    Raises
    ------
    KvsimError
        pyarrow is not installed.
    """
    from kvsim.batch.table import write_parquet

    with TemporaryDirectory() as folder:
        path = Path(folder) / "requests.parquet"
        write_parquet(request_columns(row), path)
        return path.read_bytes()


def command(choices: Choices, scenario: Scenario) -> str:
    """A command that simulates all points of the page."""
    sets = [f"  --set {shlex.quote(text)}" for text in overrides(_as_study(choices, scenario))]
    return " \\\n".join([f"kvsim run {REFERENCE}", *sets])


def python(scenario: Scenario) -> str:
    """Python that simulates the chosen number of live sessions with the first seed."""
    sets = "".join(f"    {text!r},\n" for text in overrides(scenario.to_dict()))
    return (f"import kvsim\n\nscenario = kvsim.load_scenario({REFERENCE!r}, [\n{sets}])\n"
            "report = kvsim.simulate(scenario)\n"
            "print(report.hit_rate, report.throughput, report.cost.contribution_usd_per_node_hour)")


def launch_line(scenario: Scenario) -> str:
    """The engine's own command line for a scenario, with what it cannot say as comments.

    Raises
    ------
    KvsimError
        As `kvsim.interop.export_command`.
    """
    from kvsim.interop import export_command

    return export_command(scenario).text()


def overrides(wanted: Mapping[str, Any]) -> list[str]:
    """``--set`` arguments that turn the reference scenario into the wanted one.

    Examples
    --------
    >>> scenario = load_scenario(REFERENCE, ["engine.kv_dtype=bf16", "engine.kv_bytes_per_gpu=null"])
    >>> overrides(scenario.to_dict())
    ['engine.kv_dtype="bf16"', 'engine.kv_bytes_per_gpu=null']
    """
    old, new = (_flat({k: v for k, v in data.items() if k not in NO_RESULT})
                for data in (load_scenario(REFERENCE).to_dict(), wanted))
    changed = [name for name in dict.fromkeys((*new, *old)) if old.get(name) != new.get(name)]
    return [f"{name}={json.dumps(new.get(name))}" for name in changed]


def _as_study(choices: Choices, scenario: Scenario) -> dict[str, Any]:
    study = {"concurrency": list(choices.points), "replications": choices.seeds}
    return {**scenario.to_dict(), "study": study}


def _flat(data: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested mappings as dotted names; lists, empty mappings and the study stay whole."""
    flat: dict[str, Any] = {}
    for key, value in data.items():
        name = f"{prefix}{key}"
        whole = not isinstance(value, Mapping) or not value or name == "study"
        flat |= {name: value} if whole else _flat(cast("Mapping[str, Any]", value), f"{name}.")
    return flat
