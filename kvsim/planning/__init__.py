"""The cheapest way to serve a demand within its SLOs, and what the next dollar buys."""

from __future__ import annotations

from kvsim.planning.plan import plan
from kvsim.planning.results import PlanResult
from kvsim.planning.search import PlanOptions

__all__ = ["PlanOptions", "PlanResult", "plan"]
