"""kvsim: KV-cache capacity and LLM serving-cost simulator.

Examples
--------
>>> import kvsim
>>> kvsim.kv_capacity("kimi-k3", "b300", 8, tp=8, kv_dtype="fp8", kv_bytes_per_gpu="42.23 GiB").capacity.num_blocks
2135
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kvsim.batch.sweep import sweep
    from kvsim.capacity import kv_capacity
    from kvsim.comparison import compare
    from kvsim.planning import plan
    from kvsim.planning.price_table import price_table
    from kvsim.report.report import Report
    from kvsim.scenario import Scenario, load_scenario
    from kvsim.simulation import simulate

__all__ = ["Report", "Scenario", "compare", "kv_capacity", "load_scenario", "plan", "price_table", "simulate",
           "sweep"]

_HOMES = {
    "compare": "kvsim.comparison",
    "sweep": "kvsim.batch.sweep",
    "Report": "kvsim.report.report",
    "Scenario": "kvsim.scenario",
    "kv_capacity": "kvsim.capacity",
    "load_scenario": "kvsim.scenario",
    "plan": "kvsim.planning",
    "price_table": "kvsim.planning.price_table",
    "simulate": "kvsim.simulation",
}


def __getattr__(name: str) -> Any:
    """Load a public name when it is first used, so that ``import kvsim`` stays fast."""
    if name not in _HOMES:
        from kvsim.errors import nearest

        hint = "" if name.startswith("_") else nearest(name, __all__)
        raise AttributeError(f"module 'kvsim' has no attribute {name!r}" + (f"; {hint}" if hint else ""))
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
