"""The cheapest way to serve a demand within its SLOs, and what the next dollar buys."""

from __future__ import annotations

from kvsim.planning.search import PlanOptions, PlanResult, plan

__all__ = ["PlanOptions", "PlanResult", "plan"]
