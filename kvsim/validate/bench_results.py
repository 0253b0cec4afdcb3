"""Results of benchmark clients (vLLM's ``bench serve``, GuideLLM, AIPerf) against a scenario."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

from kvsim.errors import Problem, TraceError
from kvsim.report.report import Report, plain
from kvsim.scenario import Scenario
from kvsim.simulation import simulate

PERCENTILES = ("p50", "p90", "p95", "p99")


@dataclass(frozen=True, slots=True)
class BenchResult:
    """One benchmark as its client reported it.

    Attributes
    ----------
    tool : str
        Which client wrote it.
    label : str
        Name of the benchmark inside its file.
    concurrency : int or None
        Most requests in flight, where the file says so.
    figures : dict of str to float
        Figures under the names of a report (``throughput.output_tokens_per_s``, ``latency.ttft_s.p50``), base units.
    """

    tool: str
    label: str
    concurrency: int | None
    figures: dict[str, float]


@dataclass(frozen=True, slots=True)
class ComparedFigure:
    """A measured and a predicted figure."""

    name: str
    measured: float
    predicted: float

    @property
    def error_frac(self) -> float:
        """Predicted / measured - 1."""
        return self.predicted / self.measured - 1.0


@dataclass(frozen=True, slots=True)
class ComparedResult:
    """One benchmark beside what a scenario predicts for it."""

    result: BenchResult
    figures: tuple[ComparedFigure, ...]


@dataclass(frozen=True, slots=True)
class ResultsComparison:
    """All benchmarks of a file."""

    compared: tuple[ComparedResult, ...]

    def errors_frac(self) -> list[float]:
        """|predicted / measured - 1| of every figure."""
        return [abs(f.error_frac) for c in self.compared for f in c.figures]

    def score(self) -> str:
        """The last line: median and worst error over all figures."""
        errors = self.errors_frac()
        return (f"results: median error {100 * statistics.median(errors):.1f} %, worst {100 * max(errors):.1f} % "
                f"of {len(errors)} figures")

    def text(self) -> str:
        """A table for people; the last line is the score."""
        lines: list[str] = []
        for c in self.compared:
            asked = "" if c.result.concurrency is None else f", concurrency {c.result.concurrency}"
            lines.append(f"{c.result.tool} {c.result.label}{asked}: measured, predicted, error")
            lines += [f"  {f.name:34s} {f.measured:12.4f} {f.predicted:12.4f} {100 * f.error_frac:+7.1f} %"
                      for f in c.figures]
        return "\n".join([*lines, self.score()])

    def to_dict(self) -> dict[str, Any]:
        """Plain data; errors as shares of 1."""
        errors = self.errors_frac()
        return {
            "results": [
                {**plain(c.result), "figures": [{**plain(f), "error_frac": f.error_frac} for f in c.figures]}
                for c in self.compared],
            "score": {"compared_figures": len(errors), "median_error_frac": statistics.median(errors),
                      "worst_error_frac": max(errors)}}


def compare_results(path: str | Path, scenario: Scenario,
                    run: Callable[[Scenario], Report] = simulate) -> ResultsComparison:
    """Simulate a scenario and compare it with what a benchmark client measured.

    Parameters
    ----------
    path : str or Path
        JSON of vLLM's ``bench serve --save-result``, GuideLLM or AIPerf.
    scenario : Scenario
        What was served. Where the file states a concurrency, it replaces the scenario's (unless requests come
        at a rate).
    run : callable, optional
        Simulates a scenario.

    Raises
    ------
    TraceError
        The file cannot be read, or is of an unknown format.
    """
    reports: dict[int | None, Report] = {}
    compared: list[ComparedResult] = []
    for result in read_results(path):
        asked = result.concurrency if scenario.workload.concurrency is not None else None
        if asked not in reports:
            reports[asked] = run(scenario if asked is None else scenario.at(asked, scenario.seed))
        compared.append(_compared(result, reports[asked]))
    return ResultsComparison(tuple(compared))


def read_results(path: str | Path) -> list[BenchResult]:
    """Read what a benchmark client wrote.

    Raises
    ------
    TraceError
        The file cannot be read, is of an unknown format, or holds no figure.
    """
    data = _load(Path(path))
    for knows, read in _FORMATS.values():
        if knows(data):
            results = [r for r in read(data) if r.figures]
            if not results:
                problem = Problem(str(path), "", "no figure of a finished benchmark", "throughput or latency")
                raise TraceError(f"{path} holds no result", [problem])
            return results
    problem = Problem(str(path), "", f"keys {', '.join(list(data)[:8]) or 'none'}", f"JSON of {', '.join(_FORMATS)}")
    raise TraceError(f"{path} is of an unknown format", [problem])


def _load(path: Path) -> dict[str, Any]:
    """The one JSON object of a file."""
    try:
        data: Any = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as err:
        reason = getattr(err, "strerror", None) or str(err)
        raise TraceError(f"cannot read {path}", [Problem(str(path), "", reason, "a JSON file")]) from None
    if not isinstance(data, dict):
        problem = Problem(str(path), "", f"a {type(data).__name__}", f"JSON of {', '.join(_FORMATS)}")
        raise TraceError(f"{path} is of an unknown format", [problem])
    return cast("dict[str, Any]", data)


def _compared(result: BenchResult, report: Report) -> ComparedResult:
    """Figures that both sides have."""
    predicted = _report_figures(report)
    return ComparedResult(result, tuple(
        ComparedFigure(name, value, predicted[name]) for name, value in result.figures.items()
        if math.isfinite(predicted.get(name, math.nan))))


def _report_figures(report: Report) -> dict[str, float]:
    """A report's figures by name; all tokens of all GPUs together, as clients count them."""
    rates = report.throughput
    found = {"throughput.requests_per_s": rates.requests_per_s,
             "throughput.output_tokens_per_s": rates.output_tokens_per_s,
             "throughput.total_tokens_per_s": rates.output_tokens_per_s + rates.input_tokens_per_s}
    for name in ("ttft_s", "tpot_s", "itl_s", "e2e_s"):
        spread = getattr(report.latency, name)
        found |= {f"latency.{name}.{part}": float(getattr(spread, part)) for part in ("mean", *PERCENTILES)}
    return found


def _is_vllm(data: Mapping[str, Any]) -> bool:
    return "output_throughput" in data and "mean_ttft_ms" in data


def _read_vllm(data: Mapping[str, Any]) -> Iterable[BenchResult]:
    """Flat JSON of vLLM's ``bench serve``: one flat object, latencies in ms."""
    pairs = {"throughput.requests_per_s": data.get("request_throughput"),
             "throughput.output_tokens_per_s": data.get("output_throughput"),
             "throughput.total_tokens_per_s": data.get("total_token_throughput")}
    figures = _numbers(pairs.items())
    for ours, theirs in (("ttft_s", "ttft"), ("tpot_s", "tpot"), ("itl_s", "itl"), ("e2e_s", "e2el")):
        parts = {"mean": data.get(f"mean_{theirs}_ms"), "p50": data.get(f"median_{theirs}_ms")}
        parts |= {p: data.get(f"{p}_{theirs}_ms") for p in PERCENTILES if data.get(f"{p}_{theirs}_ms") is not None}
        figures |= _numbers(((f"latency.{ours}.{part}", value) for part, value in parts.items()), 1e-3)
    yield BenchResult("vllm bench serve", str(data.get("model_id", "")), _count(data.get("max_concurrency")), figures)


def _is_guidellm(data: Mapping[str, Any]) -> bool:
    found: Any = data.get("benchmarks")
    return isinstance(found, list) and all(isinstance(b, dict) and "metrics" in b for b in cast("list[Any]", found))


def _read_guidellm(data: Mapping[str, Any]) -> Iterable[BenchResult]:
    """GuideLLM: a list of benchmarks, each metric by outcome; request latency in s, the others in ms."""
    for number, benchmark in enumerate(data["benchmarks"]):
        metrics = benchmark["metrics"]
        figures = _numbers((f"throughput.{ours}", _inner(metrics, theirs, "successful", "mean"))
                           for ours, theirs in (("requests_per_s", "requests_per_second"),
                                                ("output_tokens_per_s", "output_tokens_per_second"),
                                                ("total_tokens_per_s", "tokens_per_second")))
        for ours, theirs, scale in (("ttft_s", "time_to_first_token_ms", 1e-3),
                                    ("itl_s", "inter_token_latency_ms", 1e-3), ("e2e_s", "request_latency", 1.0)):
            good: Any = _inner(metrics, theirs, "successful")
            parts = {"mean": _inner(good, "mean"), "p50": _inner(good, "median")}
            parts |= {p: value for p in PERCENTILES if (value := _inner(good, "percentiles", p)) is not None}
            figures |= _numbers(((f"latency.{ours}.{p}", value) for p, value in parts.items()), scale)
        yield BenchResult("guidellm", f"benchmark {number}", _strategy_concurrency(benchmark), figures)


def _strategy_concurrency(benchmark: Mapping[str, Any]) -> int | None:
    """Streams of a GuideLLM benchmark, in its newer or older place."""
    for place in ("config", "args"):
        strategy: Any = _inner(benchmark, place, "strategy") or {}
        for key in ("streams", "max_concurrency"):
            if _count(strategy.get(key)) is not None:
                return _count(strategy.get(key))
    return None


def _is_aiperf(data: Mapping[str, Any]) -> bool:
    return all(isinstance(data.get(name), dict) for name in ("request_throughput", "request_latency"))


def _read_aiperf(data: Mapping[str, Any]) -> Iterable[BenchResult]:
    """AIPerf: a metric an object with its unit; latencies in ms unless it says otherwise."""
    figures = _numbers((f"throughput.{ours}", _inner(data, theirs, "avg"))
                       for ours, theirs in (("requests_per_s", "request_throughput"),
                                            ("output_tokens_per_s", "output_token_throughput"),
                                            ("total_tokens_per_s", "total_token_throughput")))
    for ours, theirs in (("ttft_s", "time_to_first_token"), ("itl_s", "inter_token_latency"),
                         ("e2e_s", "request_latency")):
        metric: Any = data.get(theirs) or {}
        scale = {"s": 1.0, "sec": 1.0, "us": 1e-6}.get(str(metric.get("unit", "ms")), 1e-3)
        parts = {"mean": metric.get("avg")} | {p: metric.get(p) for p in PERCENTILES}
        figures |= _numbers(((f"latency.{ours}.{part}", value) for part, value in parts.items()), scale)
    loadgen: Any = _inner(data, "input_config", "loadgen") or {}
    yield BenchResult("aiperf", str(data.get("benchmark_id", "")), _count(loadgen.get("concurrency")), figures)


def _inner(data: Mapping[str, Any], *path: str) -> Any:
    """A value inside mappings, None where one is missing."""
    found: Any = data
    for key in path:
        found = cast("Mapping[str, Any]", found).get(key) if isinstance(found, Mapping) else None
    return found


def _numbers(pairs: Iterable[tuple[str, Any]], scale: float = 1.0) -> dict[str, float]:
    """Pairs with a finite, positive number, scaled."""
    return {name: value * scale for name, value in pairs
            if isinstance(value, int | float) and math.isfinite(value) and value > 0}


def _count(value: Any) -> int | None:
    """A positive whole number, else None."""
    return int(value) if isinstance(value, int | float) and math.isfinite(value) and value >= 1 else None


_FORMATS: Mapping[str, tuple[Callable[[Mapping[str, Any]], bool],
                             Callable[[Mapping[str, Any]], Iterable[BenchResult]]]] = MappingProxyType({
    "vllm bench serve --save-result": (_is_vllm, _read_vllm),
    "GuideLLM": (_is_guidellm, _read_guidellm),
    "AIPerf": (_is_aiperf, _read_aiperf),
})
"""Known formats: how to tell one, how to read it."""
