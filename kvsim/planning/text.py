"""A plan as text: the cheapest option first, then the others, then why the rest fails."""

from __future__ import annotations

import math

from kvsim.planning.search import Option, PlanResult
from kvsim.report.bill import bill_text


def plan_text(result: PlanResult) -> str:
    """A plan as text."""
    need, best = result.need, result.best
    lines = [f"{result.scenario}: {need.live_sessions:,} live sessions ({need.how})", "", *_best_lines(best), "",
             "Options", *(_option_row(o) for o in result.options)]
    if result.rejected:
        lines += ["", "Why not", *(f"  {r.name}: {r.why}" for r in result.rejected)]
    return "\n".join([*lines, "", f"{result.simulations} simulations"])


def _best_lines(best: Option) -> list[str]:
    spares = f" and {best.spares} spare" if best.spares else ""
    power = f", {best.power_kw:,.0f} kW" if math.isfinite(best.power_kw) else ""
    measures = "; ".join(m.text() for m in best.trial.measures)
    replicas = f"{best.replicas} replica{'' if best.replicas == 1 else 's'}"
    lines = [f"Cheapest: {replicas}{spares} of {best.name}", bill_text(best.bill),
             f"{best.sessions_per_replica} sessions a replica: {measures}{power}",
             f"speed: {best.trust}; prices as of {best.bill.as_of} ({best.bill.basis})"]
    if best.broken is not None:
        lines.append(f"{best.broken.sessions} sessions a replica break the SLO: {best.broken.worst.text()}")
    if math.isfinite(best.usd_per_seat_month):
        lines.append(f"${best.usd_per_seat_month:,.2f} a seat and month, {best.seats_per_node:,.1f} seats a node")
    return lines


def _option_row(option: Option) -> str:
    spares = f"+{option.spares}" if option.spares else ""
    return (f"  ${option.usd_per_hour:>9,.2f} an hour  {option.replicas}{spares} x ({option.name}), "
            f"{option.sessions_per_replica} sessions each, {option.trial.worst.text()}; {option.trust}")
