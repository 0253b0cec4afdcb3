"""Two scenarios, reports or sweeps side by side: pairs on the same random numbers, differences with intervals."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from kvsim.batch.folder import MANIFEST
from kvsim.batch.job import flatten
from kvsim.batch.sweep import SweepOptions, open_sweep, sweep
from kvsim.batch.table import SweepTable
from kvsim.errors import Problem, ScenarioError
from kvsim.report.report import Report
from kvsim.report.statistics import MeanInterval, mean_interval
from kvsim.scenario import Scenario, load_scenario

HEADLINES = (
    "hit_rate.total", "throughput.output_tokens_per_s", "throughput.total_tokens_per_s_per_gpu",
    "goodput.requests_per_s", "latency.ttft_s.p50", "latency.ttft_s.p95", "latency.tpot_s.p50", "latency.tpot_s.p95",
    "preemptions", "cost.usd_per_hour", "cost.usd_per_mtok.blended", "cost.usd_per_mtok.output_all_in",
    "cost.contribution_usd_per_node_hour", "cost.contribution_usd_per_turn",
)
"""Figures that the text shows; all others are in the data."""

_NO_RESULTS = ("case", "seed", "run.seed", "run.wall_s")

Source = Scenario | Report | SweepTable | str | Path | Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Change:
    """An input that differs: its dotted name in the scenario and both values (None: not written)."""

    field: str
    a: Any
    b: Any


@dataclass(frozen=True, slots=True)
class Difference:
    """One figure: means of A and B over all pairs, and the difference B - A pair by pair."""

    name: str
    a: float
    b: float
    difference: MeanInterval


@dataclass(frozen=True, slots=True)
class Comparison:
    """What differs between A and B.

    Attributes
    ----------
    a, b : str
        What was compared.
    changes : tuple of Change
        Inputs that differ in some pair, nothing else.
    differences : tuple of Difference
        Every figure that both have, by name.
    num_pairs : int
        Pairs of cases that see the same random numbers.
    unpaired : tuple of str
        Cases of either side without a partner, or failed.
    """

    a: str
    b: str
    changes: tuple[Change, ...]
    differences: tuple[Difference, ...]
    num_pairs: int
    unpaired: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Side:
    """One case: what it is paired by, its inputs and its figures, all under dotted names."""

    key: str
    inputs: dict[str, Any]
    figures: dict[str, Any]


def compare(a: Source, b: Source, replications: int = 5, options: SweepOptions | None = None) -> Comparison:
    """Compare two scenarios, reports or sweeps.

    Parameters
    ----------
    a, b : Scenario, Report, SweepTable, str, Path or mapping
        Scenarios (or their path or name) are simulated with seeds seed, seed + 1, ...; a report (or the JSON file
        of one) is taken as it is; so is a sweep's table or folder, whose cases are paired by axes and seed.
    replications : int
        Seeds of each scenario. With one there is no interval.
    options : SweepOptions, optional
        How scenarios are run.

    Returns
    -------
    Comparison
        Differences B - A. Pairs have the same seed, hence the same traffic: its noise cancels.

    Raises
    ------
    ScenarioError
        Neither of these, or not one pair.

    Examples
    --------
    >>> tiny = {"name": "tiny", "model": "llama-3.1-8b", "hardware": {"gpu": "h200", "num_gpus": 1},
    ...     "workload": {"fixed": {"num_requests": 4, "input_tokens": 100, "output_tokens": 5}, "concurrency": 1}}
    >>> found = compare(tiny, {**tiny, "engine": {"kv_dtype": "fp8"}}, 2, SweepOptions("inline"))
    >>> [change.field for change in found.changes], found.num_pairs
    (['engine.kv_dtype'], 2)
    """
    how = options or SweepOptions()
    (name_a, left), (name_b, right) = (_sides(source, replications, how) for source in (a, b))
    pairs, unpaired = _paired(left, right)
    if not pairs:
        raise ScenarioError("nothing to compare", [
            Problem("compare", "", f"{len(left)} and {len(right)} cases, none of them with a partner",
                    "cases with the same seed, and sweeps with the same axes")])
    return Comparison(name_a, name_b, _changes(pairs), _differences(pairs), len(pairs), tuple(unpaired))


def changed(source: str | Path, overrides: Sequence[str]) -> Source:
    """A scenario with some fields set; any source where nothing is.

    Raises
    ------
    ScenarioError
        Results, of which nothing can be changed; or as `load_scenario`.

    Examples
    --------
    >>> changed("k3-b300-dram", ["tiers=[]"]).tiers, changed("before.json", [])
    ((), 'before.json')
    """
    if not overrides:
        return source
    if _is_sweep(source) or _is_report(source):
        kind = "a sweep" if _is_sweep(source) else "a report"
        raise ScenarioError("fields of results cannot be changed", [
            Problem(str(source), overrides[0], f"{kind}, which has run already", "a scenario")])
    return load_scenario(source, overrides)


def comparison_text(found: Comparison) -> str:
    """A comparison as text: changed inputs, then headline figures."""
    lines = [f"A: {found.a}", f"B: {found.b}", "", "changed inputs" if found.changes else "no input differs"]
    lines += [f"  {change.field}: {_shown(change.a)} -> {_shown(change.b)}" for change in found.changes]
    lines += ["", f"{'mean of ' + str(found.num_pairs) + ' pairs, same seeds':<42}{'A':>12}{'B':>12}{'B - A':>12}"
              f"  95 % interval"]
    shown = [d for name in HEADLINES for d in found.differences if d.name == name]
    lines += [_difference_line(d) for d in shown]
    if found.num_pairs < 2:
        lines.append("one pair: the difference has no interval")
    lines += [f"left out: {what}" for what in found.unpaired]
    return "\n".join(lines)


def _difference_line(d: Difference) -> str:
    span = d.difference
    interval = "-" if math.isnan(span.low) else f"[{span.low:,.4g}, {span.high:,.4g}]"
    mark = "" if math.isnan(span.low) or span.low <= 0 <= span.high else " *"
    return f"  {d.name:<40}{d.a:>12,.4g}{d.b:>12,.4g}{span.mean:>12,.4g}  {interval}{mark}"


def _shown(value: Any) -> str:
    return "(not written)" if value is None else str(value)


def _sides(source: Source, replications: int, options: SweepOptions) -> tuple[str, list[_Side]]:
    """A source's name and its cases."""
    if isinstance(source, Report):
        return source.name, [_reported(source.to_dict())]
    if isinstance(source, SweepTable):
        return source.name, _rows(source)
    if isinstance(source, str | Path):
        if _is_sweep(source):
            return str(source), _rows(open_sweep(source))
        if _is_report(source):
            return str(source), _report_file(Path(source))
    scenario = source if isinstance(source, Scenario) else load_scenario(source)
    batch = {"name": scenario.name, "base": scenario.to_dict(), "replications": replications}
    return scenario.name, _rows(sweep(batch, options=options))


def _is_sweep(source: str | Path) -> bool:
    """Whether it is the folder of a sweep."""
    return (Path(source) / MANIFEST).is_file()


def _is_report(source: str | Path) -> bool:
    """Whether it is a file of results."""
    return Path(source).suffix == ".json" and Path(source).is_file()


def _report_file(path: Path) -> list[_Side]:
    """Cases of a JSON file that ``kvsim run --json`` wrote: one report, or those of a study."""
    try:
        data: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if "cases" not in data:
            return [_reported(data)]
        return [_reported(case["report"], f"workload.concurrency={case['concurrency']} ") for case in data["cases"]]
    except (OSError, ValueError, KeyError, TypeError) as err:
        reason = f"JSON without {err}" if isinstance(err, KeyError) else getattr(err, "strerror", None) or str(err)
        raise ScenarioError("not a report", [
            Problem(str(path), "", reason, "JSON that kvsim run --json wrote")]) from None


def _reported(report: Mapping[str, Any], point: str = "") -> _Side:
    figures = flatten({k: v for k, v in report.items() if k not in ("name", "ledger", "scenario")})
    return _Side(f"{point}seed={report['run']['seed']}", _inputs(report["scenario"]), figures)


def _rows(table: SweepTable) -> list[_Side]:
    axes = [name for name in table.columns if name.startswith("axis.")]
    return [_Side(" ".join([*(f"{name.removeprefix('axis.')}={row[name]}" for name in axes), f"seed={row['seed']}"]),
                  _inputs(json.loads(row["scenario"])), row) for row in table]


def _inputs(scenario: Mapping[str, Any]) -> dict[str, Any]:
    """A scenario's fields that can be a reason for a difference, defaults written out."""
    whole = Scenario.from_dict({"name": "case", **scenario}).to_dict()
    return flatten({k: v for k, v in whole.items() if k not in ("name", "description", "seed", "study")})


def _paired(left: list[_Side], right: list[_Side]) -> tuple[list[tuple[_Side, _Side]], list[str]]:
    mine, theirs = ({side.key: side for side in sides if _has_result(side)} for sides in (left, right))
    keys = dict.fromkeys(side.key for side in (*left, *right))
    pairs = [(mine[key], theirs[key]) for key in keys if key in mine and key in theirs]
    return pairs, [key for key in keys if key not in mine or key not in theirs]


def _has_result(side: _Side) -> bool:
    return side.figures.get("status", "ok") == "ok"


def _changes(pairs: list[tuple[_Side, _Side]]) -> tuple[Change, ...]:
    found: dict[str, Change] = {}
    for a, b in pairs:
        for field in dict.fromkeys((*a.inputs, *b.inputs)):
            if a.inputs.get(field) != b.inputs.get(field) and field not in found:
                found[field] = Change(field, a.inputs.get(field), b.inputs.get(field))
    return tuple(found[field] for field in sorted(found))


def _differences(pairs: list[tuple[_Side, _Side]]) -> tuple[Difference, ...]:
    names = sorted(set(pairs[0][0].figures) & set(pairs[0][1].figures))
    found: list[Difference] = []
    for name in names:
        values = [(a.figures.get(name), b.figures.get(name)) for a, b in pairs]
        if name not in _NO_RESULTS and all(_is_number(v) for pair in values for v in pair):
            found.append(_difference(name, cast("list[tuple[float, float]]", values)))
    return tuple(found)


def _difference(name: str, values: list[tuple[float, float]]) -> Difference:
    mean_a, mean_b = (statistics.fmean(side) for side in zip(*values, strict=True))
    return Difference(name, mean_a, mean_b, mean_interval([b - a for a, b in values]))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
