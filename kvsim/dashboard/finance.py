"""Simulated points in money, as ``kvsim report`` tells a sweep: no Streamlit, no further simulation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go

from kvsim.batch.cases import Case
from kvsim.batch.findings import Findings, findings_of, usd
from kvsim.batch.job import Outcome, report_columns
from kvsim.batch.table import SweepTable, table_of
from kvsim.dashboard.colours import GREY, OCHRE
from kvsim.dashboard.figures import figure, layout, line
from kvsim.planning.value import ContextPrice
from kvsim.report.report import Report
from kvsim.scenario import Scenario
from kvsim.study import Row


def table_of_rows(curves: Mapping[str, tuple[Scenario, Sequence[Row]]]) -> SweepTable:
    """Curves of live sessions as the table of a sweep over tiers and live sessions.

    Parameters
    ----------
    curves : mapping of str to (Scenario, rows)
        What the tiers are called -> the scenario with these tiers and its simulated points.
    """
    finished = [(name, scenario, row.concurrency, report) for name, (scenario, rows) in curves.items()
                for row in rows for report in row.reports]
    return table_of("dashboard", [_case(k, *found) for k, found in enumerate(finished)])


def _case(number: int, tiers: str, scenario: Scenario, concurrency: int | None, report: Report) -> tuple[Case, Outcome]:
    own = scenario.at(concurrency or 0, report.run.seed)
    data = {k: v for k, v in own.to_dict().items() if k not in ("name", "description", "study")}
    case = Case(number, {"tiers": tiers, "workload.concurrency": concurrency}, report.run.seed, data, own.digest)
    return case, {"status": "ok", "result": report_columns(report)}


def findings(curves: Mapping[str, tuple[Scenario, Sequence[Row]]]) -> Findings | None:
    """What the curves say in money; None where no API price is known."""
    return findings_of(table_of_rows(curves))


def stress_rows(found: Findings) -> list[dict[str, str]]:
    """Contribution under other API prices, and at lower hit rates, as rows of a table."""
    rows = [{"If": f"the API's prices are {frac:.0%} of today's", "Contribution ($ per node-month)": usd(value)}
            for frac, value in found.price_stress]
    lower = found.lower_hits
    if lower is not None:
        rows.append({"If": f"hit rate as with {lower.label}: {lower.mean('hit_rate.total'):.0%}",
                     "Contribution ($ per node-month)": usd(730.0 * lower.mean(
                         "cost.contribution_usd_per_node_hour"))})
    return rows


def long_context_figure(prices: Sequence[ContextPrice]) -> go.Figure:
    """Cost of fresh input [$ per million tokens] against the context before it [tokens], with the API's flat price."""
    xs = [float(p.context_tokens) for p in prices]
    ours = line("Cost while it is computed", xs, [p.usd_per_mtok for p in prices], OCHRE, "circle")
    flat = line("API price of fresh input", xs, [p.flat_usd_per_mtok for p in prices], GREY, "diamond-open")
    flat["line"]["dash"] = "dash"
    traces: list[dict[str, Any]] = [ours, *([flat] if prices[0].flat_usd_per_mtok > 0 else [])]
    for trace in traces:
        trace["hovertemplate"] = f"after %{{x:,.0f}} tokens: $%{{y:,.3f}}<extra>{trace['name']}</extra>"
    return figure(traces, layout(
        height=360, xaxis={"title": {"text": "Context before it (tokens)"}},
        yaxis={"title": {"text": "$ per million tokens of fresh input"}, "rangemode": "tozero", "automargin": True},
        showlegend=True, legend={"orientation": "h", "y": -0.25, "x": 0}, hovermode="closest"))


def long_context_alt(prices: Sequence[ContextPrice]) -> str:
    """The price of long context in words."""
    parts = [f"after {p.context_tokens:,} tokens {p.usd_per_mtok:.3f}" for p in prices]
    return f"Dollars per million tokens of fresh input: {'; '.join(parts)}; flat {prices[0].flat_usd_per_mtok:.2f}."
