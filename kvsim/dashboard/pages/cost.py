"""Cost: what the traffic earns and what its tokens cost, under rented and owned hardware."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import streamlit as st

from kvsim.dashboard import cost_figures, money, show, verdict
from kvsim.dashboard.choices import Choices
from kvsim.dashboard.simulate import simulate_points
from kvsim.dashboard.start import opened
from kvsim.errors import KvsimError
from kvsim.profiles.store import default_store
from kvsim.report.bill import Bill
from kvsim.resolve import Resolved
from kvsim.scenario import Demand, Scenario
from kvsim.study import Row

MAX_TURNS_PER_HOUR = 1_000_000.0


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
        found = money.offers(resolved, default_store())
        chosen = money.offer(resolved, choices.compute, default_store())
        rows = simulate_points(choices, with_demand(resolved.scenario, turns), st.empty(), lambda _rows: None)
    except KvsimError as err:
        show.error(err)
    else:
        show_cost(choices, resolved, rows, (chosen, *(o for o in found if o.name != chosen.name)))


def with_demand(scenario: Scenario, turns_per_hour: float) -> Scenario:
    """The scenario with so many turns an hour asked for; 0 leaves demand unlimited."""
    if not turns_per_hour:
        return scenario
    demand = Demand(seats=1, active_frac_peak=1.0, turns_per_active_hour=turns_per_hour)
    return scenario.model_copy(update={"demand": demand})


def show_cost(choices: Choices, resolved: Resolved, rows: Sequence[Row], found: Sequence[money.Offer]) -> None:
    """Charts and tables, the chosen price profile first in `found`."""
    chosen, *others = found
    names = [o.name for o in others]
    usual = money.counterpart(chosen, found)
    left, right = st.columns(2)
    beside = left.selectbox("Price profile beside the chosen one", names, key="cost beside",
                            index=names.index(usual.name) if usual else None)
    mode = right.radio("What earns", money.MODES, format_func=lambda m: money.MODE_TEXT[m], key="cost mode")
    priced = [chosen, *(o for o in others if o.name == beside)]
    row = next(r for r in rows if r.concurrency == choices.sessions)
    st.info(cost_sentence(row, priced, mode), icon=":material/payments:")
    show_charts(rows, priced, mode, choices.sessions)
    st.subheader(f"At {choices.sessions} live sessions, by price profile")
    show.grid([offer_row(row, o, mode) for o in found], "Bill, break-even and contribution by price profile")
    st.subheader(f"The bill under {chosen.name}")
    show.table(bill_rows(chosen.bill), "Lines of the bill")
    st.caption(f"{resolved.scenario.hardware.num_gpus} GPUs are billed as {chosen.bill.units.text()}.")
    show_market(row)


def cost_sentence(row: Row, priced: Sequence[money.Offer], mode: money.Mode) -> str:
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


def show_charts(rows: Sequence[Row], priced: Sequence[money.Offer], mode: money.Mode, live: int) -> None:
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


def offer_row(row: Row, priced: money.Offer, mode: money.Mode) -> dict[str, Any]:
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
