"""How far a result can be trusted: figures drawn from their ranges, intervals, and what would flip a decision."""

from __future__ import annotations

from kvsim.uncertainty.draws import (
    DrawnStore,
    Ranged,
    Values,
    drawn_value,
    figures,
    latin_hypercube,
    ranged_figures,
)
from kvsim.uncertainty.intervals import COVERED_FRAC, DECIDING, Uncertainty, measured, uncertainty, uncertainty_text
from kvsim.uncertainty.stress import Stress, decision_flips, flips_text

__all__ = ["COVERED_FRAC", "DECIDING", "DrawnStore", "Ranged", "Stress", "Uncertainty", "Values", "decision_flips",
           "drawn_value", "figures", "flips_text", "latin_hypercube", "measured", "ranged_figures", "uncertainty",
           "uncertainty_text"]
