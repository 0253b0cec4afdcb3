"""Cluster: replicas behind a router, what each does, what the loss of one does, and other ways to use them."""

from __future__ import annotations

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from kvsim.dashboard import cluster_figures as figures
from kvsim.dashboard import clusters, show
from kvsim.dashboard.choices import RANGES, Choices
from kvsim.dashboard.simulate import simulate_case
from kvsim.dashboard.start import opened
from kvsim.dashboard.takeaway import take_along
from kvsim.dashboard.verdict import machine_title, model_title
from kvsim.errors import KvsimError
from kvsim.planning.balance import Balance, balance_of
from kvsim.planning.trials import limits_of
from kvsim.report.report import Report
from kvsim.resolve import Resolved, resolve
from kvsim.scenario import Scenario
from kvsim.study import Row


def page() -> None:
    """The whole page."""
    begun = opened("Cluster", "Several replicas behind a router: what each does, what the loss of one does, and which "
                              "router, or which division into prefill and decode, serves the same traffic best.",
                   needs_sessions=False)
    if begun is None:
        return
    choices = begun[0]
    try:
        scenario = clusters.cluster_scenario(choices)
        resolved = resolve(scenario)
        show_what(choices, resolved)
        metrics, place = st.container(horizontal=True), st.empty()
        plain = simulate_case(scenario, place, "Simulating the cluster")
        show_loss_controls()
        report = simulate_case(clusters.with_loss(scenario, choices, plain.run.measured_from_s), place,
                               "Simulating the loss")
        show_replicas(report, plain, choices, metrics)
        show_routers(scenario, choices)
        show_apart(scenario)
    except KvsimError as err:
        show.error(err)
        return
    take_along(clusters.cluster_choices(choices), Scenario.from_dict(report.scenario),
               Row(scenario.workload.concurrency, (report,)))


def show_what(choices: Choices, resolved: Resolved) -> None:
    """Which cluster the page is about."""
    scenario = resolved.scenario
    live = "" if choices.is_open else f", {scenario.workload.concurrency} live sessions in all"
    st.markdown(f"**{model_title(resolved.model)} on {machine_title(resolved)}** behind **{scenario.router_name}**"
                f"{live}, one seed.")
    if choices.replicas < clusters.FEWEST:
        st.caption(f"The sidebar has one replica: shown are {clusters.FEWEST} of them with as many live sessions each. "
                   "Set Replicas and Router under Several replicas for others.")


def show_loss_controls() -> None:
    """When the first replica stops, and when it is back."""
    st.subheader("Replicas over time")
    left, right = st.columns(2)
    for place, key, label, about in (
            (left, "lost_s", "Replica 0 stops at (s)",
             "Of the measured time; 0 = never. Its cache, its lower tiers and what it was doing are lost."),
            (right, "back_s", "It is back at (s)", "Of the measured time, with empty caches; 0 = never.")):
        low, high = (int(bound) for bound in RANGES[key])
        place.number_input(label, low, high, step=60, key=key, help=about)


def show_replicas(report: Report, plain: Report, choices: Choices, metrics: DeltaGenerator) -> None:
    """Chart and table of the replicas, and the cluster's figures above."""
    with metrics:
        for label, value, about in clusters.metrics_of(report):
            show.metric(label, value, about)
    show.not_as_recorded([report])
    if choices.lost_s:
        st.markdown(clusters.loss_sentence(plain, report, choices))
    show.chart(figures.over_time(report), "replicas over time", figures.over_time_alt(report))
    more = len(report.tracks) - figures.MOST_TRACKS
    others = f" The first {figures.MOST_TRACKS} replicas; {more} more stand in the table." if more > 0 else ""
    st.caption(f"Averages over {figures.BINS} equal stretches. Hits are those of the requests that a replica gave "
               f"their first token. Dotted lines: a replica stopped, or was back.{others}")
    assert report.cluster is not None
    show.table(clusters.replica_rows(report.cluster), "Replicas, one a row")


def show_routers(scenario: Scenario, choices: Choices) -> None:
    """The same replicas and traffic behind every router."""
    st.subheader("Routers side by side")
    place, routers = st.empty(), clusters.routers_of(scenario)
    found = [(router, simulate_case(clusters.behind(scenario, router), place, f"Simulating router {router}",
                                    k / len(routers)))
             for k, router in enumerate(routers)]
    show.chart(figures.side_by_side(found), "routers", figures.side_by_side_alt(found))
    lost = " No replica is lost here." if choices.lost_s else ""
    st.caption("The same replicas and traffic behind each router with its usual parameters, one seed: what is close "
               f"together is not told apart.{lost}")
    show.table(clusters.router_rows(found), "Routers, one a row")


def show_apart(scenario: Scenario) -> None:
    """Prefill and decode on replicas of their own, against all of them doing both."""
    st.subheader("Prefill and decode apart")
    asked = st.toggle("Simulate every division of the replicas", value=scenario.num_replicas <= clusters.MOST_APART,
                      key="cluster apart")
    if not asked:
        count = scenario.num_replicas
        st.caption(f"{count} replicas can be divided in {count - 1} ways, each of them a simulation.")
        return
    try:
        found = divided(scenario)
    except KvsimError as err:
        show.error(err)
        return
    show.table(clusters.apart_rows(found), "Ways to divide the replicas, one a row")
    st.markdown(clusters.best_sentence(found))
    st.caption("xPyD: x replicas prefill, y decode and get each prompt's KV over the node's network cards when its "
               "prefill is over. Decode replicas have no tiers; of a model with a latent, they stripe it over their TP "
               "group.")


def divided(scenario: Scenario) -> list[Balance]:
    """Every division of the replicas, simulated.

    Raises
    ------
    KvsimError
        As `kvsim.simulation.simulate`.
    """
    place, tried = st.empty(), clusters.apart(scenario)
    limits = limits_of(scenario.slo)
    return [balance_of(name, simulate_case(way, place, f"Simulating {name}", k / len(tried)), limits)
            for k, (name, way) in enumerate(tried.items())]
