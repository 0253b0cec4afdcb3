"""Colours and hatchings: one a cache tier on every chart, all with a contrast of 3:1 on light and on dark pages."""

from __future__ import annotations

from types import MappingProxyType

TIER_COLOURS = MappingProxyType({"hbm": "#0072B2", "dram": "#D55E00", "nvme": "#009E73", "pool": "#CC79A7"})
"""One colour a cache tier, on every chart."""
TIER_PATTERNS = MappingProxyType({"hbm": "", "dram": "/", "nvme": "\\", "pool": "x"})
"""One hatching a tier, for those who cannot tell the colours."""
GREY, SLATE, OCHRE, VIOLET, OLIVE, PLUM = "#808080", "#6E7B8B", "#9A6F00", "#8F63C9", "#7A8B00", "#B0517A"
"""Colours that no cache tier has."""
