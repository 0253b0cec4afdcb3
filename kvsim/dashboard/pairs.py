"""Two configurations on the same random numbers: what was changed, and what it changes."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any, NamedTuple

from kvsim.comparison import HEADLINES, Change, Comparison, Difference, compare
from kvsim.dashboard.results import TIER_TEXT
from kvsim.report.statistics import mean_interval
from kvsim.study import Row


class Shown(NamedTuple):
    """How a headline figure is told: its title with the unit, what it is multiplied by, and its digits."""

    title: str
    scale: float
    digits: int


TITLES: dict[str, Shown] = {
    "hit_rate.total": Shown("Prompt tokens reused (%)", 100.0, 1),
    "throughput.output_tokens_per_s": Shown("Output (tokens/s)", 1.0, 1),
    "throughput.total_tokens_per_s_per_gpu": Shown("All tokens (tokens/s/GPU)", 1.0, 0),
    "goodput.requests_per_s": Shown("Goodput (requests/s)", 1.0, 3),
    "latency.ttft_s.p50": Shown("TTFT p50 (s)", 1.0, 2),
    "latency.ttft_s.p95": Shown("TTFT p95 (s)", 1.0, 2),
    "latency.tpot_s.p50": Shown("TPOT p50 (ms)", 1e3, 1),
    "latency.tpot_s.p95": Shown("TPOT p95 (ms)", 1e3, 1),
    "preemptions": Shown("Preemptions", 1.0, 1),
    "cost.usd_per_hour": Shown("Bill ($/h)", 1.0, 2),
    "cost.usd_per_mtok.blended": Shown("Blended ($/Mtok)", 1.0, 3),
    "cost.usd_per_mtok.output_all_in": Shown("Output, all in ($/Mtok)", 1.0, 2),
    "cost.contribution_usd_per_node_hour": Shown("Contribution ($/node-h)", 1.0, 2),
    "cost.contribution_usd_per_turn": Shown("Contribution ($/turn)", 1.0, 4),
}
"""Headline figures for people."""


def paired(a: Row, b: Row) -> Comparison:
    """Compare two points seed by seed.

    Parameters
    ----------
    a, b : Row
        Runs with the same seeds, in the same order.

    Returns
    -------
    Comparison
        Means over the seeds; differences B - A pair by pair with the 95 % interval of Student's t.

    Raises
    ------
    ScenarioError
        Runs of different seeds.
    """
    each = [compare(x, y) for x, y in zip(a.reports, b.reports, strict=True)]
    by_name = [{d.name: d for d in found.differences} for found in each]
    common = [name for name in by_name[0] if all(name in found for found in by_name)]
    merged = tuple(_merged([found[name] for found in by_name]) for name in common)
    return replace(each[0], differences=merged, num_pairs=len(each))


def _merged(found: Sequence[Difference]) -> Difference:
    """One figure over all pairs."""
    return Difference(found[0].name, fmean(d.a for d in found), fmean(d.b for d in found),
                      mean_interval([d.difference.mean for d in found]))


def change_rows(changes: Sequence[Change]) -> list[dict[str, str]]:
    """Inputs that differ as rows of a table."""
    return [{"Input": c.field, **{side: tiers_text(v) if c.field == "tiers" else _value(v)
                                for side, v in (("A", c.a), ("B", c.b))}} for c in changes]


def difference_rows(found: Comparison) -> list[dict[str, str]]:
    """Headline figures as rows of a table; a star marks an interval without 0."""
    by_name = {d.name: d for d in found.differences}
    return [_difference_row(by_name[name]) for name in HEADLINES if name in by_name]


def _difference_row(d: Difference) -> dict[str, str]:
    title, scale, digits = TITLES[d.name]
    span = d.difference

    def shown(value: float) -> str:
        return f"{scale * value:,.{digits}f}".replace("-", "−")

    sure = not math.isnan(span.low)
    apart = sure and not span.low <= 0.0 <= span.high
    return {"Figure": title, "A": shown(d.a), "B": shown(d.b), "B − A": shown(span.mean) + (" *" if apart else ""),
            "95 % interval": f"{shown(span.low)} to {shown(span.high)}" if sure else "–"}


def tiers_text(written: str) -> str:
    """Tiers as the comparison writes them, for people.

    >>> tiers_text('[{"kind": "dram", "capacity": 1.889e12, "write": "eager"}]'), tiers_text("[]")
    ('DRAM 1,889 GB, eager', 'none')
    """
    tiers: list[dict[str, Any]] = json.loads(written)
    return "; ".join(f"{TIER_TEXT[t['kind']]} {t['capacity'] / 1e9:,.0f} GB, {t['write']}" for t in tiers) or "none"


def _value(value: Any) -> str:
    if value is None:
        return "not written"
    return f"{value:,g}" if isinstance(value, float) else str(value)
