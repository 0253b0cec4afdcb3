"""A sweep's findings in money, as pages show them."""

from __future__ import annotations

import math

import streamlit as st

from kvsim.batch.findings import HOURS_PER_MONTH, Findings, usd
from kvsim.dashboard import show
from kvsim.report.statistics import MeanInterval


def show_findings(found: Findings) -> None:
    """Headlines of the best point, and what would turn it around."""
    st.markdown(f"Best point: **{found.best.label}**, {HOURS_PER_MONTH:.0f} hours a month at this load.")
    with st.container(horizontal=True):
        show.metric("Earns ($/node-month)", usd(found.per_month.mean), interval_text(found.per_month))
        frac, seat = found.break_even_frac, found.usd_per_seat_month
        show.metric("Break-even utilisation", f"{frac:.0%}" if frac <= 10 else "never",
                    "Share of this load that pays the bill.")
        if not math.isnan(seat):
            show.metric("Bill ($/seat-month)", f"${seat:,.2f}", "For the seats that were stated.")
        if found.pay_back is not None:
            months = found.pay_back.months
            show.metric("DRAM pays back (months)", "never" if math.isinf(months) else f"{months:.1f}",
                        f"{found.pay_back.with_.label} against {found.pay_back.without.label}: "
                        f"{usd(found.pay_back.gain_usd_per_node_month.mean)} more per node-month, for "
                        f"{usd(found.pay_back.capex_usd[1])} of memory.")
    st.caption(interval_text(found.per_month).replace("$", "\\$"))
    st.markdown("\n".join(["What would turn it around:", "", *(f"- {fact}".replace("$", "\\$")
                                                              for fact in found.flips)]))


def interval_text(month: MeanInterval) -> str:
    """The contribution's interval in words."""
    if math.isnan(month.low):
        return "One seed: the contribution has no interval."
    return (f"95 % interval of the contribution: {usd(month.low)} to {usd(month.high)} per node-month over "
            f"{month.count} seeds: the chance of the traffic alone, not the assumptions.")
