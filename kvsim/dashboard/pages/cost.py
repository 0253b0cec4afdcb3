"""Cost: what the traffic earns and what its tokens cost, under rented and owned hardware."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import streamlit as st

from kvsim.dashboard import cost_figures, finance, money, show, verdict
from kvsim.dashboard.choices import Choices, scenario_of
from kvsim.dashboard.findings_view import show_findings
from kvsim.dashboard.simulate import simulate_points
from kvsim.dashboard.start import opened
from kvsim.dashboard.takeaway import take_along
from kvsim.errors import KvsimError
from kvsim.planning import offers
from kvsim.planning.value import long_context_prices
from kvsim.profiles.store import default_store
from kvsim.report.bill import Bill
from kvsim.resolve import Resolved
from kvsim.scenario import Demand, Scenario
from kvsim.study import Row

MAX_TURNS_PER_HOUR = 1_000_000.0
MAX_SEATS = 1_000_000
LONG_CONTEXTS = 16
"""Contexts up to the longest at which fresh input is priced."""


def page() -> None:
    """The whole page."""
    begun = opened("Cost", "What the traffic earns per node-hour, and our price floor beside the market's.")
    if begun is None:
        return
    choices, resolved = begun
    turns = st.number_input("Peak demand (turns per hour and replica, 0 = unlimited)", 0.0, MAX_TURNS_PER_HOUR,
                            step=100.0, format="%.0f", key="cost demand",
                            help="How many requests customers have in the peak hour; only the mode that is limited by "
                                 "demand uses it.")
    try:
        found = offers.offers(resolved, default_store())
        chosen = offers.offer(resolved, choices.compute, default_store())
        rows = simulate_points(choices, with_demand(resolved.scenario, turns), st.empty(), lambda _rows: None)
    except KvsimError as err:
        show.error(err)
    else:
        show_cost(choices, resolved, rows, (chosen, *(o for o in found if o.name != chosen.name)))
        show_long_context(resolved, chosen)
        show_finance(choices, rows)
        take_along(choices, resolved.scenario, next(r for r in rows if r.concurrency == choices.sessions))


def with_demand(scenario: Scenario, turns_per_hour: float) -> Scenario:
    """The scenario with so many turns an hour asked for; 0 leaves demand unlimited."""
    if not turns_per_hour:
        return scenario
    demand = Demand(seats=1, active_frac_peak=1.0, turns_per_active_hour=turns_per_hour)
    return scenario.model_copy(update={"demand": demand})


def show_cost(choices: Choices, resolved: Resolved, rows: Sequence[Row], found: Sequence[offers.Offer]) -> None:
    """Charts and tables, the chosen price profile first in `found`."""
    chosen, *others = found
    names = [o.name for o in others]
    usual = offers.counterpart(chosen, found)
    left, right = st.columns(2)
    beside = left.selectbox("Price profile beside the chosen one", names, key="cost beside",
                            index=names.index(usual.name) if usual else None)
    mode = right.radio("What earns", money.MODES, format_func=lambda m: money.MODE_TEXT[m], key="cost mode")
    priced = [chosen, *(o for o in others if o.name == beside)]
    row = next(r for r in rows if r.concurrency == choices.sessions)
    st.info(cost_sentence(row, priced, mode), icon=":material/payments:")
    show.not_as_recorded(row.reports)
    show_charts(rows, priced, mode, choices.sessions)
    st.subheader(f"At {choices.sessions} live sessions, by price profile")
    show.grid([offer_row(row, o, mode) for o in found], "Bill, break-even and contribution by price profile")
    st.subheader(f"The bill under {chosen.name}")
    show.table(bill_rows(chosen.bill), "Lines of the bill")
    st.caption(f"{resolved.scenario.hardware.num_gpus} GPUs are billed as {chosen.bill.units.text()}.")
    show_market(row)


def cost_sentence(row: Row, priced: Sequence[offers.Offer], mode: money.Mode) -> str:
    """What the chosen number of sessions earns under each price, and where our floor lies; Markdown."""
    parts = [f"**{verdict.usd(money.contribution(row, o, mode))} per node-hour** with {o.label}, break-even at "
             f"{usd_per_mtok(money.break_even(row, o))} per million tokens" for o in priced]
    floor = money.market_floor(row, mode)
    market = ("no provider's price of this model is known" if math.isnan(floor) else
              f"the market's floor for the same turns is {usd_per_mtok(floor)}")
    return (f"At **{row.concurrency} live sessions**, billing {money.MODE_TEXT[mode]}: {'; '.join(parts)}; {market}. "
            f"{verdict.trust_sentence(row)}")


def usd_per_mtok(value: float) -> str:
    r"""Dollars per million tokens as Markdown.

    >>> usd_per_mtok(0.2241)
    '\\$0.224'
    """
    return f"\\${value:,.3f}"


def show_charts(rows: Sequence[Row], priced: Sequence[offers.Offer], mode: money.Mode, live: int) -> None:
    """Contribution, then prices."""
    st.subheader("Contribution by live sessions")
    if math.isnan(money.contribution(rows[0], priced[0], mode)):
        st.caption("No API price of this model is known: what it earns cannot be said.")
    else:
        show.chart(cost_figures.contribution_figure(rows, priced, mode, live), "contribution",
                   cost_figures.contribution_alt(rows, priced, mode))
    st.caption("Only requests inside the SLO earn. Billing hits as they happen sells every miss as fresh input: where "
               "the SLO is loose, that rewards a bad cache. Billing as if every reusable token had hit is what "
               "customers expect who see a price for cached input.")
    st.subheader("Our price floor and the market's")
    show.chart(cost_figures.price_figure(rows, priced, mode, live), "prices",
               cost_figures.price_alt(rows, priced, mode))
    how = ("with our misses bought as fresh input there too, so that a collapsed cache lifts it" if mode == "hits" else
           "reusing all that can be reused")
    st.caption("All tokens count, cached input too. The market's floor is what the cheapest provider would charge for "
               f"the same turns at its list price, {how}; break-even is our whole bill on them, whatever earns. The "
               "axis is logarithmic.")


def offer_row(row: Row, priced: offers.Offer, mode: money.Mode) -> dict[str, Any]:
    """One price profile as a row; units stand in the column names."""
    return {
        "Price profile": priced.name, "Basis": priced.bill.basis, "As of": priced.bill.as_of,
        "Provider": priced.bill.provider, "Bill ($/h)": round(priced.bill.usd_per_hour, 2),
        "Break-even ($/Mtok)": round(money.break_even(row, priced), 3),
        "Contribution ($/node-h)": round(money.contribution(row, priced, mode), 2),
    }


def bill_rows(bill: Bill) -> list[dict[str, str]]:
    """Lines of a bill as rows of a table."""
    rows = [{"For": b.what, "$ per hour": f"{b.usd_per_hour:,.2f}", "How": b.how, "Kind": b.kind} for b in bill.lines]
    return [*rows, {"For": "all", "$ per hour": f"{bill.usd_per_hour:,.2f}", "How": "", "Kind": "derived"}]


def show_market(row: Row) -> None:
    """Every provider's price for the mix of tokens of one run."""
    market = row.reports[0].cost.market
    if not market:
        return
    st.subheader("The market")
    show.table([{"Provider": m.provider, "As of": m.as_of, "Input": f"{m.input:,.2f}",
                 "Cached input": f"{m.cached_input:,.2f}", "Output": f"{m.output:,.2f}",
                 "This mix": f"{m.blended:,.3f}"} for m in market], "Providers' prices, cheapest first")
    st.caption("$ per million tokens; the last column is the first seed's mix at each provider's prices.")


def show_long_context(resolved: Resolved, chosen: offers.Offer) -> None:
    """What fresh input costs after a long context, under a flat price."""
    st.subheader("The price of long context")
    longest = resolved.limits.max_model_len
    contexts = [round(longest * share / LONG_CONTEXTS) for share in range(LONG_CONTEXTS + 1)]
    prices = long_context_prices(resolved, chosen.bill.usd_per_hour, contexts)
    show.chart(finance.long_context_figure(prices), "long context", finance.long_context_alt(prices))
    st.caption("A full prefill step after so much context, on an engine that does nothing else: what the tokens cost "
               "while they are computed. Where the line crosses the flat price, longer contexts lose money.")


def show_finance(choices: Choices, rows: Sequence[Row]) -> None:
    """The page for a finance head: the best point with and without DRAM, in months."""
    st.subheader("In months, for the budget")
    left, right = st.columns(2)
    seats = left.number_input("Seats (0 = not stated)", 0, MAX_SEATS, step=50, key="cost seats",
                              help="People who may use the service; an active one keeps one live session.")
    active = right.slider("Active in the peak hour (%)", 1, 100, 20, key="cost active")
    try:
        curves = with_and_without_dram(choices, rows, seats, active / 100)
        found = finance.findings(curves)
    except KvsimError as err:
        show.error(err)
        return
    if found is None:
        st.caption("No API price of this model is known: what it earns cannot be said.")
        return
    show_findings(found)
    show.table(finance.stress_rows(found), "Contribution under other API prices and lower hit rates")


def with_and_without_dram(choices: Choices, rows: Sequence[Row], seats: int,
                          active_frac: float) -> dict[str, tuple[Scenario, Sequence[Row]]]:
    """The page's curve, and the one that the DRAM switch would give.

    Raises
    ------
    KvsimError
        The other one cannot be simulated.
    """
    other = replace(choices, dram=not choices.dram)
    own, opposite = scenario_of(choices), scenario_of(other)
    if other.dram_gb <= 0:
        return {"none": (with_seats(own, seats, active_frac), rows)}
    others = simulate_points(other, opposite, st.empty(), lambda _rows: None)
    names = (f"DRAM {choices.dram_gb:,.0f} GB", "none") if choices.dram else ("none", f"DRAM {other.dram_gb:,.0f} GB")
    return {names[0]: (with_seats(own, seats, active_frac), rows),
            names[1]: (with_seats(opposite, seats, active_frac), others)}


def with_seats(scenario: Scenario, seats: int, active_frac: float) -> Scenario:
    """The scenario with so many seats; 0 states none."""
    if not seats:
        return scenario
    return scenario.model_copy(update={"demand": Demand(seats=seats, active_frac_peak=active_frac)})
