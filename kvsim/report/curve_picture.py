"""Hit rate by capacity as a picture."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from kvsim.report.svg import Series, log_percent_chart

if TYPE_CHECKING:
    from kvsim.cache.curves.curves import Curves


def curves_svg(found: Curves) -> str:
    """Token-weighted hit rate against capacity, a line a policy, as SVG.

    Parameters
    ----------
    found : Curves
        Rows of any policies and capacities; the unlimited one is a horizontal line, which no capacity passes.

    Returns
    -------
    str
        A whole SVG document.
    """
    finite = [row for row in found.rows if math.isfinite(row.capacity_blocks)]
    names = dict.fromkeys(row.policy for row in finite)
    series = [Series(name, tuple(sorted((row.capacity_blocks * found.block_tokens, 100 * row.token_hit_rate)
                                        for row in finite if row.policy == name))) for name in names]
    return log_percent_chart(f"{found.label}: prompt tokens reused by capacity and policy",
                             ("Capacity (tokens)", "Prompt tokens reused (%)"), series, unlimited_marks(found))


def unlimited_marks(found: Curves) -> list[tuple[str, float]]:
    """Name and hit rate [%] of an unlimited cache, where it was asked for."""
    rates = sorted({row.token_hit_rate for row in found.rows if math.isinf(row.capacity_blocks)})
    return [(f"unlimited cache, {100 * rate:.1f} %", 100 * rate) for rate in rates]
