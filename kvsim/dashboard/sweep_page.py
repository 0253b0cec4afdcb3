"""A sweep as one page of HTML that needs nothing else: no server, no network."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from html import escape
from typing import Any

import plotly.graph_objects as go
from plotly.offline import get_plotlyjs

from kvsim.batch.doubts import BREAK_EVEN, MONTH, SEAT, Doubts
from kvsim.batch.findings import (
    BILL,
    CONTRIBUTION,
    HIT,
    HOURS_PER_MONTH,
    STRESS_HIT_POINTS,
    Findings,
    Group,
    PayBack,
    break_even_frac,
    findings_of,
    groups_of,
    usd,
    usd_per_seat_month,
)
from kvsim.batch.points import cell, columns_of, trace_lines
from kvsim.batch.spec import Batch
from kvsim.batch.table import SweepTable, html_table
from kvsim.report.html import lines_html
from kvsim.report.report import NOT_AS_RECORDED, plain
from kvsim.report.statistics import MeanInterval
from kvsim.simulation import package_version

Figures = dict[str, go.Figure]

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#9A6F00", "#6E7B8B")
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "cross", "x")
CONCURRENCY = "workload.concurrency"
NO_MONEY = "No case has a contribution: no API price is known, or nothing finished."

STYLE = """
:root { color-scheme: light }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; color: #1a1a1a }
h1 { font-size: 1.6rem } h2 { font-size: 1.2rem; margin-top: 2.2rem }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(13rem, 1fr)); gap: .8rem; padding: 0 }
.card { border: 1px solid #c8c8c8; border-radius: 6px; padding: .7rem .9rem; list-style: none }
.card b { display: block; font-size: 1.5rem } .card span { display: block; color: #444; font-size: .9rem }
.scroll { overflow-x: auto } table { border-collapse: collapse; font-size: .9rem }
th, td { padding: .25rem .7rem; border-bottom: 1px solid #ddd; text-align: right }
th:first-child, td:first-child { text-align: left }
li { overflow-wrap: anywhere } .loss { color: #a02000 } small { color: #444 }
@media print { .later { break-before: page } }
"""

def sweep_page(table: SweepTable, batch: Batch, doubts: Doubts | None = None) -> str:
    """The page of a sweep.

    Parameters
    ----------
    table : SweepTable
        Its results; failed cases are listed.
    batch : Batch
        What was run, for the provenance.
    doubts : Doubts, optional
        What the ranges of figures do to the best point; without, the page says that it is not known.

    Returns
    -------
    str
        HTML with its style, charts and the charting library inside. What a finance head reads comes first.
    """
    found = findings_of(table)
    groups = groups_of(table)
    figures = {**(_swing_figures(found, doubts) if found and doubts else {}), **sweep_figures(found, groups)}
    parts = [
        f"<h1>{escape(batch.name)}</h1><p>{escape(batch.description)}</p>",
        _first_page(found, doubts) if found else f"<p>{NO_MONEY}</p>",
        *(["<h2 class='later'>Charts</h2>"] if figures else []), *(chart_slot(name) for name in figures),
        "<h2>Every point</h2>", scroll(_points_table(groups)),
        lines_html(NOT_AS_RECORDED, trace_lines(table), "h2"), _failures(table), _provenance(table, batch),
    ]
    return document(batch.name, "\n".join(parts), figures)


def sweep_figures(found: Findings | None, groups: Sequence[Group]) -> Figures:
    """Charts of a sweep by title: money where it is known, and curves where live sessions vary."""
    return {**(_money_figures(found) if found else {}), **_curve_figures(groups)}


def _first_page(found: Findings, doubts: Doubts | None) -> str:
    best = found.best
    items = "".join(f"<li class='card'><span>{escape(title)}</span><b>{escape(value)}</b>"
                    + "".join(f"<span>{escape(note)}</span>" for note in notes if note) + "</li>"
                    for title, value, *notes in _cards(found, doubts))
    flips = "".join(f"<li>{escape(fact)}</li>" for fact in found.flips)
    return (f"<p>Best point: <strong>{escape(best.label)}</strong>; {_basis_text(best)}</p>"
            f"<ul class='cards'>{items}</ul>{_doubts_text(doubts)}"
            f"<h2>What would turn it around</h2><ol>{flips}</ol>"
            f"<h2>Stress</h2>{scroll(_stress_table(found, doubts))}{_hit_text(found)}")


def _cards(found: Findings, doubts: Doubts | None) -> list[tuple[str, ...]]:
    """Headlines: what, how much, and notes below."""
    month = found.per_month
    break_even = found.best.spread(break_even_frac)
    return [
        ("Contribution per node-month", usd(month.mean), _interval_text(month, usd), _span_text(doubts, MONTH, usd)),
        _seat_card(found, doubts),
        ("Break-even utilisation", _percent(found.break_even_frac), "share of this load that pays the bill",
         _interval_text(break_even, _percent), _span_text(doubts, BREAK_EVEN, _percent)),
        ("DRAM pays back in", _months(found.pay_back), _pay_back_text(found.pay_back)),
    ]


def _seat_card(found: Findings, doubts: Doubts | None) -> tuple[str, ...]:
    """The bill for a seat; for a live session where the scenario does not say how many seats share one."""
    best, seat = found.best, found.usd_per_seat_month
    if not math.isnan(seat):
        return ("Bill per seat and month", usd_cents(seat), "at the stated demand",
                _interval_text(best.spread(usd_per_seat_month), usd_cents), _span_text(doubts, SEAT, usd_cents))
    live = best.scenario.workload.concurrency
    each = HOURS_PER_MONTH * best.mean(BILL) / live if live else math.nan
    return ("Bill per live session and month", usd_cents(each),
            "per seat it is this times the share of seats that are live at the peak: state it as demand")


def _span_text(doubts: Doubts | None, what: str, form: Callable[[float], str]) -> str:
    if doubts is None:
        return ""
    low, high = doubts.spans[what]
    return f"5 to 95 % over the ranges of figures: {form(low)} to {form(high)}"


def _doubts_text(doubts: Doubts | None) -> str:
    if doubts is None:
        return "<p><small>What the ranges of assumed and measured figures do to it has not been drawn.</small></p>"
    what = f"{doubts.draws} draws of {doubts.figures} figures together, each from its range"
    return f"<p><small>Ranges of figures: {what}, on the traffic of the first seed.</small></p>"


def _basis_text(best: Group) -> str:
    first = best.rows[0]
    seeds = f"{len(best.rows)} {'seed' if len(best.rows) == 1 else 'seeds'}"
    dated = [f"prices as of {first['cost.as_of']}"] if first.get("cost.as_of") else []
    trust = [str(first["cost.trust"])] if first.get("cost.trust") else []
    return escape("; ".join([seeds, *dated, *trust, f"{HOURS_PER_MONTH:.0f} hours a month at this load"]) + ".")


def _interval_text(span: MeanInterval, form: Callable[[float], str]) -> str:
    if math.isnan(span.low):
        return "one seed: no interval of the traffic"
    return f"95 % of the traffic: {form(span.low)} to {form(span.high)}, {span.count} seeds"


def _months(found: PayBack | None) -> str:
    if found is None:
        return "not known"
    return "never" if math.isinf(found.months) else f"{found.months:.1f} months"


def _pay_back_text(found: PayBack | None) -> str:
    if found is None:
        return "the sweep has no pair with and without DRAM"
    low, stated, high = found.capex_usd
    gain = found.gain_usd_per_node_month
    spread = "" if math.isnan(gain.low) else f" (95 %: {usd(gain.low)} to {usd(gain.high)})"
    return (f"{found.with_.tier_gb:,.0f} GB for {usd(stated)} ({usd(low)} to {usd(high)}); {found.with_.label} brings "
            f"{usd(gain.mean)}{spread} more per node-month than {found.without.label}")


def _stress_table(found: Findings, doubts: Doubts | None) -> str:
    rows = [[f"API price x {frac:g}", usd(value)] for frac, value in found.price_stress]
    for stress in doubts.stresses if doubts else ():
        turns = "; turns the decision" if stress.flips else ""
        rows.append([f"{stress.what} (simulated, first seed)", usd(HOURS_PER_MONTH * stress.first_usd) + turns])
    return html_table(["stress", "contribution per node-month"], rows)


def _hit_text(found: Findings) -> str:
    lower = found.lower_hits
    points = f"{100 * STRESS_HIT_POINTS:.0f} points"
    if lower is None:
        return f"<p>No point of this sweep has a hit rate {points} lower.</p>"
    return (f"<p>Hit rate {points} or more lower (simulated, {escape(lower.label)}): {lower.mean(HIT):.1%}, "
            f"contribution {usd(HOURS_PER_MONTH * lower.mean(CONTRIBUTION))} per node-month.</p>")


def _money_figures(found: Findings) -> Figures:
    fracs, values = zip(*found.price_stress, strict=True)
    line = {"type": "scatter", "mode": "lines+markers", "x": [100 * f for f in fracs], "y": list(values),
            "line": {"color": COLOURS[0]}}
    zero = {"type": "line", "x0": 0, "x1": 1, "xref": "paper", "y0": 0, "y1": 0, "line": {"dash": "dot", "width": 1.5}}
    layout = axes("API price (% of today's)", "Contribution ($ per node-month)", shapes=[zero], showlegend=False)
    return {"Contribution against the API price": go.Figure({"data": [line], "layout": layout})}


def _swing_figures(found: Findings, doubts: Doubts) -> Figures:
    """Each figure at either end of its range, as bars from the contribution at nominal figures."""
    shown = [swing for swing in doubts.swings if swing.width_usd > 0][::-1]
    if not shown:
        return {}
    middle = found.per_month.mean
    names = [f"{s.figure}<br>{s.low:g} to {s.high:g} {s.unit}" for s in shown]
    bars = [{"type": "bar", "orientation": "h", "name": name, "y": names, "base": middle, "marker": {"color": colour},
             "x": [getattr(s, end) - middle for s in shown], "width": 0.6}
            for name, end, colour in (("low end", "usd_at_low", COLOURS[1]), ("high end", "usd_at_high", COLOURS[0]))]
    layout = axes("Contribution ($ per node-month)", "", height=140 + 44 * len(shown), barmode="overlay")
    layout["yaxis"] |= {"automargin": True, "tickfont": {"size": 11}}
    return {"What moves the contribution most": go.Figure({"data": bars, "layout": layout})}


def _curve_figures(groups: Sequence[Group]) -> Figures:
    """Hit rate, output and contribution against live sessions, where the sweep varies them."""
    if not any(CONCURRENCY in group.axes for group in groups):
        return {}
    curves = _curves(groups)
    wanted = (("Hit rate", HIT, 100.0, "Prompt tokens reused (%)"),
              ("Output", "throughput.output_tokens_per_s", 1.0, "Output (tokens/s)"),
              ("Contribution", CONTRIBUTION, 1.0, "Contribution ($ per node-hour)"))
    return {f"{title} against live sessions": go.Figure({
        "data": [_curve(name, members, (column, scale), n) for n, (name, members) in enumerate(curves.items())],
        "layout": axes("Live sessions", unit)}) for title, column, scale, unit in wanted}


def _curves(groups: Sequence[Group]) -> dict[str, list[Group]]:
    """Points by what they share beside the number of live sessions."""
    curves: dict[str, list[Group]] = {}
    for group in groups:
        named = [part for part in group.label.split(" ") if not part.startswith("concurrency=")]
        curves.setdefault(" ".join(named) or "all", []).append(group)
    return curves


def _curve(name: str, members: Sequence[Group], what: tuple[str, float], number: int) -> dict[str, Any]:
    column, scale = what
    ys = [[scale * float(row[column]) for row in g.rows if row.get(column) is not None] for g in members]
    kept = [(g, y) for g, y in zip(members, ys, strict=True) if y]
    middle = [sum(y) / len(y) for _, y in kept]
    up, down = [max(y) for _, y in kept], [min(y) for _, y in kept]
    colour = COLOURS[number % len(COLOURS)]
    return {"type": "scatter", "mode": "lines+markers", "name": name, "x": [g.axes[CONCURRENCY] for g, _ in kept],
            "y": middle, "line": {"color": colour},
            "marker": {"symbol": SYMBOLS[number % len(SYMBOLS)], "size": 9},
            "error_y": {"type": "data", "symmetric": False, "array": [u - m for u, m in zip(up, middle, strict=True)],
                        "arrayminus": [m - d for m, d in zip(middle, down, strict=True)]}}


def axes(x: str, y: str, **more: Any) -> dict[str, Any]:
    """Layout of a chart on a white page with two titled axes."""
    return {"height": 380, "margin": {"l": 60, "r": 10, "t": 20, "b": 50}, "paper_bgcolor": "white",
            "plot_bgcolor": "white", "xaxis": {"title": {"text": x}, "gridcolor": "#e6e6e6"},
            "yaxis": {"title": {"text": y}, "gridcolor": "#e6e6e6"}, "legend": {"orientation": "h", "y": -0.22},
            "showlegend": True, **more}


def _points_table(groups: Sequence[Group]) -> str:
    columns = columns_of(groups)
    head = ["point", "seeds", *(title for title, _, _ in columns), "binds"]
    return html_table(head, [[g.label, str(len(g.rows)), *(cell(g, c) for c in columns),
                              str(g.rows[0].get("limits.binding", "-"))] for g in groups])


def _failures(table: SweepTable) -> str:
    if not table.failed:
        return ""
    rows = [[row["label"], row["error.kind"], row["error.message"]] for row in table.failed]
    return "<h2>Failed cases</h2>" + scroll(html_table(["case", "kind", "error"], rows))


def _provenance(table: SweepTable, batch: Batch) -> str:
    versions = sorted({str(v) for v in table.columns.get("run.version", []) if v})
    profiles: dict[str, str] = {}
    for text in table.columns.get("run.profiles", []):
        profiles |= json.loads(text) if text else {}
    rows = [["sweep", batch.digest], ["cases", f"{len(table)}, {len(table.failed)} failed"],
            ["simulated by kvsim", ", ".join(versions) or "-"], ["page by kvsim", package_version()],
            *([f"profile {name}", digest] for name, digest in sorted(profiles.items()))]
    written = escape(json.dumps(plain(batch.to_dict()), indent=1))
    return ("<h2>Provenance</h2>" + scroll(html_table(["what", "version or digest"], rows))
            + f"<details><summary>The sweep as run</summary><pre>{written}</pre></details>")


def document(title: str, body: str, figures: Figures) -> str:
    """The whole page; charts are drawn by the library that it carries."""
    draw = "".join(f"Plotly.newPlot({json.dumps(_anchor(name))}, {_spec(figure)}, {{displaylogo: false, "
                   "responsive: true});\n" for name, figure in figures.items())
    script = f"<script>{get_plotlyjs()}</script><script>{draw}</script>" if figures else ""
    return (f"<!doctype html><html lang='en'><head><meta charset='utf-8'><title>{escape(title)}</title>"
            f"<style>{STYLE}</style></head><body><main>{body}</main>{script}</body></html>\n")


def _spec(figure: go.Figure) -> str:
    """Data and layout as arguments of a call; "</" must not end the script."""
    spec: dict[str, Any] = json.loads(str(figure.to_json()))  # pyright: ignore[reportUnknownMemberType]
    spec["layout"].pop("template", None)
    return ", ".join(json.dumps(spec[key]).replace("</", "<\\/") for key in ("data", "layout"))


def chart_slot(name: str) -> str:
    """Where a chart of `document` goes, with its title."""
    return f"<figure><figcaption>{escape(name)}</figcaption><div id='{_anchor(name)}'></div></figure>"


def _anchor(name: str) -> str:
    return name.lower().replace(" ", "-").replace("'", "")


def scroll(table: str) -> str:
    """A table that scrolls by itself where the page is narrower."""
    return f"<div class='scroll'>{table}</div>"


def _percent(frac: float) -> str:
    return "-" if math.isnan(frac) else "never" if math.isinf(frac) else f"{frac:.0%}"


def usd_cents(value: float) -> str:
    """Dollars and cents, or that they are not known.

    >>> usd_cents(12.3), usd_cents(float("nan"))
    ('$12.30', 'not known')
    """
    return f"${value:,.2f}" if math.isfinite(value) else "not known"
