"""The one sentence at the top of the Plan page, made of results alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import MappingProxyType

from kvsim.billing import CALIBRATED, GIVEN, PHYSICS, SAME_GPU
from kvsim.dashboard.headroom import Served, served
from kvsim.dashboard.results import (
    CONTRIBUTION,
    HIT,
    IDEAL,
    OUTPUT,
    RESOURCE_TEXT,
    TIER_TEXT,
    TTFT_P95,
    binding,
    binds_from,
    median,
    reached_frac,
    tier_hits,
    tiers_hit,
    zone_of,
)
from kvsim.profiles.hardware import ApiPriceProfile
from kvsim.profiles.model import ModelProfile
from kvsim.resolve import Resolved
from kvsim.scenario import Scenario
from kvsim.study import Row
from kvsim.units import gib, si

TRUST_TEXT = MappingProxyType({
    CALIBRATED: "measured with this model on this GPU", SAME_GPU: "kernels measured on this GPU, not this model",
    PHYSICS: "no kernel was measured on this GPU", GIVEN: "the scenario states the step time",
})
"""Trust marks for people."""


def model_title(model: ModelProfile) -> str:
    """A model's name for people.

    >>> from kvsim.profiles.store import default_store
    >>> model_title(default_store().get("model", "kimi-k3"))
    'Kimi K3'
    """
    return (model.hf_repo or model.name).rsplit("/", 1)[-1].replace("-", " ")


def machine_title(resolved: Resolved) -> str:
    """GPUs for people, e.g. "8 x B300", "2 replicas of 8 x B300"."""
    gpu = resolved.gpu.name.upper().removesuffix("-SXM").replace("-", " ")
    scenario = resolved.scenario
    several = f"{scenario.num_replicas} replicas of " if scenario.num_replicas > 1 else ""
    return f"{several}{scenario.hardware.num_gpus} x {gpu}"


def capacity_sentence(resolved: Resolved) -> str:
    """What the pool holds, and whether a log or the prediction says so."""
    capacity = resolved.capacity
    pool = gib(capacity.num_blocks * max(capacity.geometry.block_bytes))
    if resolved.predicted is not None or resolved.budget.kv_bytes <= 0:
        basis = f"as logged ({pool} per GPU)"
    else:
        low, high = resolved.budget.kv_bytes_range
        basis = f"as predicted ({pool} per GPU; between {gib(low)} and {gib(high)} with the assumed figures' ranges)"
    each = " in each replica" if resolved.scenario.num_replicas > 1 else ""
    return (f"**{model_title(resolved.model)} on {machine_title(resolved)}** holds "
            f"**{si(capacity.kv_tokens, 'tokens')} of KV**{each} {basis}{tier_sentence(resolved.scenario)}")


def traffic_sentence(resolved: Resolved, rows: Sequence[Row], live: int) -> str:
    """What happens at `live` sessions, and from where on the pool binds."""
    row = next(r for r in rows if r.concurrency == live)
    limit = resolved.scenario.slo.ttft_s.get("p95")
    ttft = median(row, TTFT_P95)
    goal = "" if limit is None else f" ({'within' if ttft <= limit else 'misses'} the SLO of {limit:g} s)"
    return (f"at **{live} live sessions** {median(row, HIT):.1%} of prompt tokens are reused "
            f"({tier_clause(row)}ideal {median(row, IDEAL):.1%}), TTFT p95 is {seconds(ttft)}{goal} and "
            f"{median(row, OUTPUT):,.0f} output tokens/s come out; {binding_clause(rows)}")


def tier_clause(row: Row) -> str:
    """Which tiers the reused tokens came from; nothing where HBM is the only one."""
    tiers = tiers_hit([row])
    if tiers == ["hbm"]:
        return ""
    shares = tier_hits(row)
    return ", ".join(f"{shares[tier]:.1%} from {TIER_TEXT[tier]}" for tier in tiers) + "; "


def tier_sentence(scenario: Scenario) -> str:
    """The tiers below HBM, as a clause of the capacity.

    >>> from kvsim.scenario import load_scenario
    >>> tier_sentence(load_scenario("k3-b300-dram"))
    ', and a DRAM tier of 1,889 GB behind it'
    """
    return "".join(f", and a {TIER_TEXT[t.kind]} tier of {t.capacity / 1e9:,.0f} GB behind it" for t in scenario.tiers)


def trust_sentence(row: Row) -> str:
    """How far the speed can be trusted, and from when the price of the hardware is."""
    cost = row.reports[0].cost
    dated = f"; hardware price as of {cost.as_of}" if cost.as_of else ""
    return f"Trust in the speed: **{cost.trust}** ({TRUST_TEXT[cost.trust]}){dated}."


def binding_clause(rows: Sequence[Row]) -> str:
    """From how many live sessions on KV capacity binds, as far as it was simulated."""
    counts = sorted(row.concurrency or 0 for row in rows)
    first = binds_from(rows)
    if first is None:
        return f"KV capacity does not bind up to {counts[-1]}, the most that was simulated"
    below = [n for n in counts if n < first]
    return f"KV capacity binds from {first} on" + (f", not yet at {below[-1]}" if below else "")


def money_sentence(row: Row, api: ApiPriceProfile | None) -> str:
    """Contribution per node-hour, and what earns; escaped for Markdown."""
    contribution = median(row, CONTRIBUTION)
    if api is None or math.isnan(contribution):
        return f"no API price is known, the hardware costs {usd(row.reports[0].cost.usd_per_hour)} an hour"
    return (f"contribution is **{usd(contribution)} per node-hour** at {api.provider}'s price "
            f"(only requests inside the SLO earn, hits are billed as they happen)")


def verdict(resolved: Resolved, rows: Sequence[Row], live: int, api: ApiPriceProfile | None) -> str:
    """The whole verdict as Markdown: one sentence, and below it what it rests on."""
    row = next(r for r in rows if r.concurrency == live)
    zone = zone_of(reached_frac(row))
    return (f"**{zone.capitalize()}:** {headline(resolved, rows, live)}.\n\n{capacity_sentence(resolved)}; "
            f"{traffic_sentence(resolved, rows, live)}; {money_sentence(row, api)}. {trust_sentence(row)}")


def headline(resolved: Resolved, rows: Sequence[Row], live: int) -> str:
    """How many agents are served inside the SLO, how sure that is, what binds, and what it earns; Markdown."""
    row = next(r for r in rows if r.concurrency == live)
    found = served(sorted(rows, key=lambda r: r.concurrency or 0), resolved.scenario)
    earns = median(row, CONTRIBUTION)
    money = "" if math.isnan(earns) else f"; contribution **{usd(earns)} per node-hour** at {live} live sessions"
    return (f"**{model_title(resolved.model)} on {machine_title(resolved)}** serves **{agents_text(found)}** "
            f"{f'inside {found.limits}' if found.limits else '(no SLO is set)'} [{span_text(found, row)}]; "
            f"at {live}, {RESOURCE_TEXT[binding(row)]} binds{money}")


def agents_text(found: Served) -> str:
    """A number of agents for people.

    >>> agents_text(Served(7, 6, 9, False, 4, "")), agents_text(Served(0, 0, 0, False, 4, ""))
    ('7 agents', 'fewer than 4 agents')
    """
    if not found.sessions:
        return f"fewer than {found.fewest} agents"
    return f"{'at least ' if found.at_least else ''}{found.sessions:,} agent{'' if found.sessions == 1 else 's'}"


def span_text(found: Served, row: Row) -> str:
    """Spread over the seeds and the trust mark."""
    seeds = len(row.reports)
    spread = f"{found.low:,} to {found.high:,} over {seeds} seeds" if seeds > 1 else "one seed"
    return f"{spread}; {row.reports[0].cost.trust}"


def usd(value: float) -> str:
    r"""Dollars as Markdown that is not taken for a formula; a dash where they are not known.

    >>> usd(-3.5)
    '−\\$3.50'
    """
    return "–" if math.isnan(value) else f"{'−' if value < 0 else ''}\\${abs(value):,.2f}"


def seeds_text(count: int) -> str:
    """So many seeds, in words.

    >>> seeds_text(1), seeds_text(3)
    ('one seed', '3 seeds')
    """
    return "one seed" if count == 1 else f"{count} seeds"


def seconds(value: float) -> str:
    """Seconds with two or no decimals; a dash where nothing was measured.

    >>> seconds(1.234), seconds(99.4), seconds(float("nan"))
    ('1.23 s', '99 s', '–')
    """
    if math.isnan(value):
        return "–"
    return f"{value:.2f} s" if value < 10 else f"{value:,.0f} s"
