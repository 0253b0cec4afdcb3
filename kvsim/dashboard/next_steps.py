"""What else could be done with the traffic: other platforms at their prices, and the next best dollar."""

from __future__ import annotations

import math

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from kvsim.dashboard import dollar, show, state, verdict
from kvsim.dashboard.choices import Choices
from kvsim.dashboard.platforms import Deal, Platform, best_of, deal, list_price, platform_text, platforms
from kvsim.dashboard.simulate import Bar, simulate_point
from kvsim.dashboard.sweeps import duration
from kvsim.errors import KvsimError
from kvsim.profiles.store import default_store
from kvsim.scenario import Scenario
from kvsim.study import Row

CARD_WIDTH = 190
MAX_USD_PER_GPU_HOUR = 1_000.0


def show_platforms(choices: Choices) -> None:
    """A card a platform, on the same traffic; prices can be changed in place."""
    st.subheader("The same traffic on other platforms")
    st.caption(f"{choices.sessions} live sessions on {choices.replicas * choices.num_gpus} GPUs each, at the price "
               "profile's rent a GPU unless the sidebar states one: put your contract's price. Pools other than "
               "the logged one are predicted.")
    places = platforms(choices, default_store())
    with st.container(horizontal=True):
        cards = [st.container(border=True, width=CARD_WIDTH) for _ in places]
    progress = st.empty()
    deals = [_show_platform(card, place, choices, Bar(progress, f"Simulating {place.title}", k / len(places)))
             for k, (card, place) in enumerate(zip(cards, places, strict=True))]
    progress.empty()
    best = best_of(deals)
    if best is not None:
        st.markdown(f"Best at these prices: **{places[best].title}**, "
                    f"**{verdict.usd(_contribution(deals[best]))} an hour**.")


def _contribution(found: Deal | None) -> float:
    return math.nan if found is None else found.contribution_usd_per_hour


def _show_platform(card: DeltaGenerator, platform: Platform, choices: Choices,
                   bar: Bar) -> Deal | None:
    """One card; what it earns, or None where that is not known."""
    card.markdown(f"**{platform.title}**")
    if platform.resolved is None:
        card.caption("does not fit")
        card.caption(platform.obstacle)
        return None
    usual = list_price(platform.choices, default_store())
    if math.isnan(usual):
        card.caption("no price is known")
        return None
    paid = card.number_input("$ per GPU-hour", 0.0, MAX_USD_PER_GPU_HOUR, usual, step=0.05, format="%.2f",
                             key=f"price {platform.choices.gpu} {usual:g}")
    try:
        row = simulate_point(platform.resolved.scenario, choices.sessions, choices.seeds, bar)
        found = deal(platform, row, paid, default_store())
    except KvsimError as err:
        card.caption(err.message.splitlines()[0])
        return None
    _show_deal(card, platform, row, found)
    return found


def _show_deal(card: DeltaGenerator, platform: Platform, row: Row, found: Deal) -> None:
    card.metric("Contribution ($ an hour)", verdict.usd(found.contribution_usd_per_hour).replace("\\", ""),
                help="Revenue of the requests inside the SLO less the bill of all GPUs and tiers.")
    card.caption(f"Loses money above {verdict.usd(found.break_even_usd_per_gpu_hour)} per GPU-hour; all tokens cost "
                 f"\\${found.break_even_usd_per_mtok:,.3f} a million.")
    card.caption(platform_text(platform, row))


def show_dollar(scenario: Scenario) -> None:
    """Every single change from today, found beside the page."""
    st.subheader("The next best dollar")
    st.caption("Every single change from today's replicas: live sessions inside the SLO, found by bisection with two "
               "seeds, and what an extra one costs. Takes a few minutes, beside the page.")
    name = f"dollar {scenario.digest}"
    job = state.jobs().find(name)
    if job is not None and job.state == "running":
        st.fragment(_watch, run_every=1.0)(name)
        return
    if job is not None and job.state == "done":
        show.table(dollar.change_rows(job.result), "Changes from today, the cheapest extra session first")
        return
    if job is not None and job.error is not None:
        show.error(job.error)
    st.button("Find the next best dollar", icon=":material/search:", on_click=_start, args=(name, scenario))


def _start(name: str, scenario: Scenario) -> None:
    state.jobs().start(name, dollar.work_of(scenario, scenario.num_replicas))


def _watch(name: str) -> None:
    """Drawn again and again until the search ends."""
    job = state.jobs().find(name)
    if job is None or job.state != "running":
        st.rerun()
    st.info(f"{job.text}: {duration(job.elapsed_s)} so far. The other pages can be used.", icon=":material/hourglass:")
    st.button("Stop searching", on_click=job.cancel, disabled=job.stopping)
