"""How many of a given number of replicas should prefill, and whether apart is better than together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from kvsim.planning.pool import Workers
from kvsim.planning.trials import Limit, Measure, limits_of
from kvsim.report.report import Report, plain
from kvsim.scenario import Scenario, load_scenario
from kvsim.simulation import simulate


@dataclass(frozen=True, slots=True)
class Balance:
    """One way to use the replicas.

    ``link_frac``: what a prefill replica makes for its links while it computes, as a share of them; 0 where nothing is
    handed over. ``measures``: the limits of the SLO and what was measured.
    """

    name: str
    prefill: int
    decode: int
    hit_rate: float
    output_tokens_per_s: float
    goodput_requests_per_s: float
    ttft_s_p50: float
    ttft_s_p95: float
    tpot_s_p95: float
    usd_per_hour: float
    usd_per_mtok: float
    transferred_bytes: float
    link_frac: float
    measures: tuple[Measure, ...]

    @property
    def ok(self) -> bool:
        """Whether every limit of the SLO holds."""
        return all(measure.ratio <= 1.0 for measure in self.measures)


@dataclass(frozen=True, slots=True)
class BalanceTable:
    """All ways to use the replicas; ``best`` is the cheapest a token that keeps the SLO, None if none does."""

    name: str
    rows: tuple[Balance, ...]

    @property
    def best(self) -> Balance | None:
        """The cheapest that keeps the SLO."""
        return min((row for row in self.rows if row.ok), key=lambda row: row.usd_per_mtok, default=None)

    def text(self) -> str:
        """The table, and the best."""
        head = f"{'':<14} hit rate  output tok/s  goodput/s  TTFT p50 s  p95 s  TPOT p95 ms  $/Mtok  GB moved  SLO"
        best = self.best
        last = f"Cheapest within the SLO: {best.name}" if best else "No way of using them keeps the SLO"
        return "\n".join([head, *map(_line, self.rows), last])

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        best = self.best
        return {"name": self.name, "best": best.name if best else None, "rows": plain(self.rows)}


def _line(row: Balance) -> str:
    """A row of the table."""
    return (f"{row.name:<14} {row.hit_rate:>8.1%}  {row.output_tokens_per_s:>12.1f}  "
            f"{row.goodput_requests_per_s:>9.3f}  {row.ttft_s_p50:>10.2f}  {row.ttft_s_p95:>5.1f}  "
            f"{row.tpot_s_p95 * 1e3:>11.1f}  {row.usd_per_mtok:>6.3f}  {row.transferred_bytes / 1e9:>8,.0f}  "
            f"{'kept' if row.ok else 'broken'}")


def ways(scenario: Scenario) -> dict[str, Scenario]:
    """Every xPyD of a scenario's replicas, and all of them doing both, by name.

    Examples
    --------
    >>> list(ways(load_scenario("k3-2xb300-1p1d")))
    ['2 do both', '1P1D']
    """
    split = scenario.disaggregation
    assert split is not None
    total = scenario.num_replicas
    found = {f"{total} do both": scenario.model_copy(update={"disaggregation": None, "replicas": total})}
    for x in range(1, total):
        counts = {"prefill": split.prefill.model_copy(update={"replicas": x}),
                  "decode": split.decode.model_copy(update={"replicas": total - x})}
        found[f"{x}P{total - x}D"] = scenario.model_copy(update={"disaggregation": split.model_copy(update=counts)})
    return found


def balance(scenario: Scenario | str | Mapping[str, Any], run: Workers | None = None) -> BalanceTable:
    """Simulate every way to use a scenario's prefill and decode replicas, as many as it has together.

    Parameters
    ----------
    scenario : Scenario, str or mapping
        One with `disaggregation`.
    run : Workers, optional
        Where simulations run, see `kvsim.planning.pool.process_pool`; here one after the other by default.

    Raises
    ------
    KvsimError
        As `kvsim.simulation.simulate`.
    """
    checked = scenario if isinstance(scenario, Scenario) else load_scenario(scenario)
    tried = ways(checked)
    solve = partial(_solve, limits_of(checked.slo))
    jobs = list(tried.items())
    rows = [solve(job) for job in jobs] if run is None else run(solve, jobs)
    return BalanceTable(checked.name, tuple(rows))


def _solve(limits: tuple[Limit, ...], job: tuple[str, Scenario]) -> Balance:
    """One way, simulated."""
    name, scenario = job
    return balance_of(name, simulate(scenario), limits)


def balance_of(name: str, report: Report, limits: Sequence[Limit]) -> Balance:
    """One way to use the replicas, from its report and the SLO's limits."""
    use, latency = report.disaggregation, report.latency
    measures = tuple(Measure(kind, statistic, float(getattr(getattr(latency, kind), statistic)), limit)
                     for kind, statistic, limit in limits)
    return Balance(
        name, use.prefill_replicas if use else 0, use.decode_replicas if use else 0, report.hit_rate.total,
        report.throughput.output_tokens_per_s, report.goodput_requests_per_s, latency.ttft_s.p50, latency.ttft_s.p95,
        latency.tpot_s.p95, report.cost.usd_per_hour, report.cost.usd_per_mtok.blended,
        use.transferred_bytes if use else 0.0, use.busy_link_frac if use else 0.0, measures)
