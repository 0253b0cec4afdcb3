"""A plan as text: the cheapest option first, then the others, then why the rest fails."""

from __future__ import annotations

import math

from kvsim.planning.changes import changes_text
from kvsim.planning.fleet_text import day_text, one_node_down, survival_text
from kvsim.planning.results import Option, PlanInterval, PlanResult
from kvsim.report.bill import bill_text


def plan_text(result: PlanResult) -> str:
    """A plan as text."""
    need, best = result.need, result.best
    seats = f"{need.seats:,} seats, " if need.seats else ""
    lines = [f"{result.scenario}: {seats}{need.live_sessions:,} live sessions ({need.how})", "", *_best_lines(best)]
    if result.interval is not None:
        lines.append(_interval_line(result.interval))
    if result.survival is None:
        lines.append(one_node_down(best, need.live_sessions))
    lines += [line for part in (result.survival and survival_text(result.survival),
                                result.day and day_text(result.day)) if part for line in ("", part)]
    lines += ["", "Options", *(_option_row(o) for o in result.options)]
    if result.changes:
        lines += ["", changes_text(result.changes, "The next best dollar: every single change from the cheapest")]
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
        lines.append(f"${best.usd_per_seat_month:,.2f} a seat and month, {_seats(best.seats_per_node)} seats a node")
    return lines


def _seats(number: float) -> str:
    """Seats a node: with a decimal where that says something.

    >>> _seats(2000.0), _seats(3.25)
    ('2,000', '3.2')
    """
    return f"{number:,.0f}" if number >= 10 else f"{number:,.1f}"


def _option_row(option: Option) -> str:
    spares = f"+{option.spares}" if option.spares else ""
    return (f"  ${option.usd_per_hour:>9,.2f} an hour  {option.replicas}{spares} x ({option.name}), "
            f"{option.sessions_per_replica} sessions each, {option.trial.worst.text()}; {option.trust}")


def _interval_line(found: PlanInterval) -> str:
    """How far price and sessions move."""
    usd, sessions = found.usd_per_hour, found.sessions_per_replica
    high = f"${usd.high:,.2f}" if math.isfinite(usd.high) else "no fleet (a single session breaks the SLO)"
    return (f"interval: ${usd.low:,.2f} to {high} an hour, {sessions.low:.0f} to {sessions.high:.0f} sessions a "
            f"replica: extremes of {found.draws} draws of {len(found.figures)} figures' ranges and {found.seeds} seeds")
