"""What the page Cluster simulates: replicas behind routers, one lost, prefill and decode apart; no Streamlit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, get_args

from kvsim.dashboard.choices import RANGES, Choices, scenario_of
from kvsim.dashboard.results import RESOURCE_TEXT
from kvsim.dashboard.verdict import seconds, usd
from kvsim.planning.balance import Balance, ways
from kvsim.profiles.model import MlaAttention
from kvsim.profiles.store import default_store
from kvsim.report.replicas import ClusterUse
from kvsim.report.report import Report
from kvsim.scenario import DisaggregationPart, FailurePart, RolePart, RouterName, RouterPart, Scenario

FEWEST = 2
"""Replicas of the smallest cluster that is shown."""
MOST_APART = 4
"""Replicas up to which prefill and decode apart are simulated without being asked for."""
RANKS_ROUTER = "vllm_dp"


def cluster_choices(choices: Choices) -> Choices:
    """The choices with at least `FEWEST` replicas, live sessions in proportion.

    Examples
    --------
    >>> from kvsim.dashboard.choices import default_choices
    >>> from kvsim.profiles.store import default_store
    >>> found = cluster_choices(default_choices(default_store()))
    >>> found.replicas, found.sessions
    (2, 16)
    """
    if choices.replicas >= FEWEST:
        return choices
    most = int(RANGES["sessions"][1])
    return replace(choices, replicas=FEWEST, sessions=min(FEWEST * choices.sessions, most))


def cluster_scenario(choices: Choices) -> Scenario:
    """The cluster without any loss.

    Raises
    ------
    ScenarioError
        A value that no scenario takes.
    """
    return scenario_of(cluster_choices(choices))


def with_loss(scenario: Scenario, choices: Choices, measured_from_s: float) -> Scenario:
    """The cluster whose first replica stops when the choices say, counted from the begin of the measured time [s]."""
    if not choices.lost_s:
        return scenario
    back_s = measured_from_s + choices.back_s if choices.back_s > choices.lost_s else None
    lost = FailurePart(replica=0, at_s=measured_from_s + choices.lost_s, recover_s=back_s)
    return scenario.model_copy(update={"failures": (lost,)})


def routers_of(scenario: Scenario) -> tuple[RouterName, ...]:
    """Routers that make sense for a scenario; vLLM's own only between attention-DP ranks."""
    return tuple(r for r in get_args(RouterName) if r != RANKS_ROUTER or scenario.layout.dp > 1)


def behind(scenario: Scenario, router: RouterName) -> Scenario:
    """The same replicas behind another router, with its usual parameters."""
    return scenario.model_copy(update={"router": RouterPart(kind=router)})


def apart(scenario: Scenario) -> dict[str, Scenario]:
    """Every way to divide the replicas between prefill and decode, and all of them doing both, by name.

    Decode replicas of a model with a latent stripe it over their whole TP group (DCP), so that it is sent once instead
    of once a rank.
    """
    model, layout = default_store().get("model", scenario.model), scenario.layout
    if any(isinstance(spec, MlaAttention) for spec in model.attention.values()):
        layout = layout.model_copy(update={"dcp": layout.tp})
    split = DisaggregationPart(prefill=RolePart(replicas=1),
                               decode=RolePart(replicas=scenario.num_replicas - 1, layout=layout))
    return ways(scenario.model_copy(update={"disaggregation": split, "replicas": 1}))


def replica_rows(use: ClusterUse) -> list[dict[str, str]]:
    """A row a replica; units stand in the column names."""
    return [{"Replica": str(i), "Requests": f"{r.requests:,}", "Hit rate (%)": f"{100 * r.hit_rate:.1f}",
             "Computed (Mtok)": f"{r.prompt_tokens_computed / 1e6:,.2f}",
             "Output (tokens/s)": f"{r.output_tokens_per_s:,.1f}", "TTFT p95": seconds(r.ttft_s_p95),
             "In flight": f"{r.in_flight:.1f}", "Busy (%)": f"{100 * r.busy_frac:.0f}",
             "Up (%)": f"{100 * r.up_frac:.0f}"} for i, r in enumerate(use.replicas)]


def router_rows(found: Sequence[tuple[str, Report]]) -> list[dict[str, str]]:
    """A row a router."""
    return [{"Router": name, "Hit rate (%)": f"{100 * r.hit_rate.total:.1f}", "TTFT p95": seconds(r.latency.ttft_s.p95),
             "TPOT p95 (ms)": f"{1e3 * r.latency.tpot_s.p95:,.1f}",
             "Blended ($/Mtok)": usd3(r.cost.usd_per_mtok.blended),
             "Contribution ($/node-h)": usd(r.cost.contribution_usd_per_node_hour),
             "Imbalance": f"{r.cluster.imbalance_computed:.2f}" if r.cluster else "–",
             "Binds": RESOURCE_TEXT[r.limits.binding]} for name, r in found]


def apart_rows(found: Sequence[Balance]) -> list[dict[str, str]]:
    """A row a way to divide the replicas."""
    return [{"Replicas": row.name, "Inside the SLO": "yes" if row.ok else "no",
             "Hit rate (%)": f"{100 * row.hit_rate:.1f}", "TTFT p95": seconds(row.ttft_s_p95),
             "TPOT p95 (ms)": f"{1e3 * row.tpot_s_p95:,.1f}",
             "Output (tokens/s)": f"{row.output_tokens_per_s:,.0f}", "Blended ($/Mtok)": usd3(row.usd_per_mtok),
             "KV sent (GB)": f"{row.transferred_bytes / 1e9:,.0f}"} for row in found]


def usd3(value: float) -> str:
    r"""Dollars a million tokens; a dash where they are not known.

    >>> usd3(0.3242), usd3(float("nan"))
    ('\\$0.324', '–')
    """
    return "–" if value != value else f"\\${value:,.3f}"


def best_sentence(found: Sequence[Balance]) -> str:
    """Which way to divide the replicas is the cheapest inside the SLO; Markdown."""
    inside = [row for row in found if row.ok]
    if not inside:
        return "No way of using them keeps the SLO."
    best = min(inside, key=lambda row: row.usd_per_mtok)
    return f"Cheapest inside the SLO: **{best.name}**, {usd3(best.usd_per_mtok)} per million tokens."


def loss_sentence(before: Report, after: Report, choices: Choices) -> str:
    """What the loss of a replica did to the whole measured time; Markdown."""
    retries = after.cluster.retries if after.cluster else 0
    back = f", back and empty at {choices.back_s:,} s" if choices.back_s > choices.lost_s else ""
    return (f"Replica 0 stops {choices.lost_s:,} s into the measured time{back}: {retries:,} requests begin again "
            f"elsewhere. Hit rate **{after.hit_rate.total:.1%}** instead of {before.hit_rate.total:.1%}, TTFT p95 "
            f"**{seconds(after.latency.ttft_s.p95)}** instead of {seconds(before.latency.ttft_s.p95)}.")


def metrics_of(report: Report) -> list[tuple[str, str, str]]:
    """Label, value and meaning of the cluster's figures."""
    use, slo = report.cluster, Scenario.from_dict(report.scenario).slo
    figures: list[tuple[str, Any, str]] = [
        ("Prompt tokens reused", f"{report.hit_rate.total:.1%}",
         f"An unlimited cache that all replicas share would reach {report.hit_rate.ideal:.1%}."),
        ("TTFT p95", seconds(report.latency.ttft_s.p95), _goal(slo.ttft_s.get("p95"))),
        ("TPOT p95", f"{1e3 * report.latency.tpot_s.p95:,.1f} ms", _goal(slo.tpot_s.get("p95"))),
        ("Output (tokens/s)", f"{report.throughput.output_tokens_per_s:,.0f}", "Of all replicas."),
        ("$ per M tokens", f"${report.cost.usd_per_mtok.blended:,.3f}",
         f"The bill of ${report.cost.usd_per_hour:,.2f} an hour on all tokens, cached input too."),
        ("Imbalance", f"{use.imbalance_computed:.2f}" if use else "–",
         "Prompt tokens that the busiest replica computed, over the mean of all: 1 is even."),
    ]
    return figures


def _goal(limit_s: float | None) -> str:
    return "No objective is set." if limit_s is None else f"The objective is {limit_s:g} s."
