"""What the loss of a node and a day below its peak do to a plan's fleet, as text."""

from __future__ import annotations

import math
from collections.abc import Iterator

from kvsim.planning.day import Day, Way
from kvsim.planning.results import Option
from kvsim.planning.survival import HITS_WINDOW_S, Loss, Phase, Survival, counted
from kvsim.report.bill import HOURS_PER_MONTH


def one_node_down(best: Option, live: int) -> str:
    """What is left without one node, by the sessions that kept and broke the SLO on a single replica.

    Says nothing of the time right after the loss, which has to be simulated.
    """
    whole = best.replicas + best.spares
    left = whole - best.replicas_per_node
    if left < 1:
        return f"one node down: nothing is left, {counted(whole, 'replica')} stand{'s' if whole == 1 else ''} on it"
    each = math.ceil(live / left)
    if each <= best.sessions_per_replica:
        said = "within the SLO if evenly spread and warm (--survive 1 simulates the loss)"
    elif best.broken is not None and each >= best.broken.sessions:
        said = "which breaks the SLO"
    else:
        said = f"more than the {best.sessions_per_replica} that are known to keep the SLO"
    return f"one node down: {counted(left, 'replica')} left would carry {each} sessions each, {said}"


def survival_text(found: Survival) -> str:
    """The fleets that lose nodes as a table, and the smallest that survives."""
    rule = found.rule
    seeds = "one seed" if found.seeds == 1 else f"medians of {found.seeds} seeds"
    title = (f"Losing {counted(rule.nodes, 'node')} at the peak, simulated: caches gone, requests begin again "
             f"elsewhere (router {found.router}, {seeds})")
    first, last = f"{rule.first_s / 60:g}", f"{(rule.first_s + rule.after_s) / 60:g}"
    head = (f"  {found.unit + 's':>6} {'replicas':>9} {'$/hour':>9}  {'before: hits, SLO':<25} "
            f"{f'first {first} min':<25} {f'minutes {first} to {last}':<25} {'worst hits':>10} {'back':>6} "
            f"{'retried':>7}")
    return "\n".join([title, head, *map(_loss_row, found.losses), *_survival_says(found)])


def _loss_row(loss: Loss) -> str:
    back = "no" if math.isinf(loss.back_s) else f"{loss.back_s / 60:.1f}m"
    stretches = " ".join(f"{phase_text(phase):<25}" for phase in (loss.before, loss.first, loss.after))
    return (f"  {loss.units:>6} {f'{loss.replicas}-{loss.lost}':>9} {loss.usd_per_hour:>9,.2f}  {stretches} "
            f"{loss.lowest_hit_rate_frac:>10.1%} {back:>6} {loss.retries:>7}")


def phase_text(phase: Phase) -> str:
    """Hit rate of a stretch, and whether the SLO held in it, or what broke it most."""
    if phase.ok:
        return f"{phase.hit_rate_frac:.1%}, kept"
    worst = max(phase.measures, key=lambda m: m.ratio)
    return f"{phase.hit_rate_frac:.1%}, {worst.text().partition(' (')[0].partition(' unknown')[0]}"


def _survival_says(found: Survival) -> Iterator[str]:
    """The answer, what it does not keep, and what was not simulated."""
    rule, smallest, last = found.rule, found.smallest, found.losses[-1] if found.losses else None
    when = "throughout" if rule.throughout else f"again {_minutes(rule.first_s)} after the loss"
    if found.skipped:
        yield f"Smaller fleets do not survive: {found.skipped}."
    if smallest is None:
        tried = f"none up to {counted(last.units, found.unit)}" if last else "none of those allowed"
        yield f"The smallest fleet that keeps the SLO {when}: {tried}; raise plan.survive.max_extra to look further."
        return
    extra = smallest.usd_per_hour - found.planned_usd_per_hour
    than = "as planned" if not extra else f"${abs(extra):,.2f} {'more' if extra > 0 else 'less'} than the plan's"
    yield (f"The smallest fleet that keeps the SLO {when}: {counted(smallest.units, found.unit)}, "
           f"${smallest.usd_per_hour:,.2f} an hour, {than}"
           + (f" {counted(found.planned_units, found.unit)}." if extra else "."))
    if not smallest.first.ok:
        worst = max(smallest.first.measures, key=lambda m: m.ratio)
        yield f"It misses the SLO in the first {_minutes(rule.first_s).removeprefix('1 ')}: {worst.text()}."
    if smallest.back_s:
        yield _hits_say(smallest)


def _hits_say(loss: Loss) -> str:
    window = f"{HITS_WINDOW_S / 60:g} minutes"
    if math.isinf(loss.back_s):
        return f"Its hits do not come back within the time simulated (worst {window}: {loss.lowest_hit_rate_frac:.1%})."
    return (f"Its hits fall to {loss.lowest_hit_rate_frac:.1%} (worst {window}) and are where they were "
            f"{loss.back_s / 60:.1f} minutes after the loss.")


def day_text(found: Day) -> str:
    """The ways to run a day as a table, and when an autoscaler pays."""
    mean = f"{found.live_peak / found.peak_over_mean:,.0f}"
    title = (f"Peak against mean: {found.live_peak:,} live sessions at the peak, {mean} on average, simulated over "
             f"{found.period_s / 3600:g} h{_scale_text(found)}")
    head = f"  {'replicas':<22} {'on average':>10} {'$/hour':>9} {'$/month':>11} {'of the peak':>11}  hits, SLO"
    ways = (found.always_up, found.autoscaled, found.perfect, found.mean_load)
    rows = [_way_row(way, found.always_up) for way in ways]
    return "\n".join([title, head, *rows, *_day_says(found)])


def _scale_text(found: Day) -> str:
    if found.simulated_replicas == found.replicas:
        return ""
    return f", {found.simulated_replicas} of the {found.replicas} replicas with their part of the sessions"


def _way_row(way: Way, whole: Way) -> str:
    seen = "not simulated: a bound" if way.phase is None else phase_text(way.phase)
    monthly = way.usd_per_hour * HOURS_PER_MONTH
    return (f"  {way.name:<22} {way.replicas:>10.2f} {way.usd_per_hour:>9,.2f} {monthly:>11,.0f} "
            f"{way.usd_per_hour / whole.usd_per_hour:>11.0%}  {seen}")


def _day_says(found: Day) -> Iterator[str]:
    """What the autoscaler asks for, and what its hours may cost."""
    if found.replicas == 1:
        yield "The fleet is one replica: there is nothing to scale."
        return
    if found.autoscaled.phase is not None and not found.autoscaled.phase.ok:
        yield ("No target that was tried keeps the SLO while the load swings: the autoscaled row is that of the "
               f"smallest, {found.target_in_flight:.1f} requests in flight a replica.")
        return
    yield (f"The autoscaler wants a replica for every {found.target_in_flight:.1f} requests in flight (a full one has "
           f"{found.full_in_flight:.1f}): the largest target tried that keeps the SLO.")
    yield (f"It pays while what is rented by the hour costs less than {found.worth_frac:.2f} times as much as what is "
           "kept; prices here are the plan's for both, by the replica.")


def _minutes(seconds: float) -> str:
    return f"{seconds / 60:g} minute{'' if seconds == 60 else 's'}"
