"""What the browser opens: page configuration and navigation.

``app.py`` of a checkout calls `main`; an installed package runs this file itself.
"""

from __future__ import annotations

import numpy as np
import streamlit as st
from PIL import Image

from kvsim.dashboard.figures import TIER_COLOURS
from kvsim.dashboard.pages import cache, compare, cost, method, plan, profiles

ABOUT = "kvsim: KV-cache capacity and LLM serving-cost simulator. Every figure shown is computed from dated profiles."


def main() -> None:
    """Configure the browser's page and show the page that was chosen."""
    st.set_page_config(page_title="kvsim", page_icon=icon(), layout="wide", menu_items={"About": ABOUT})
    st.set_option("client.toolbarMode", "viewer")
    st.navigation([
        st.Page(plan.page, title="Plan", url_path="plan", default=True),
        st.Page(cost.page, title="Cost", url_path="cost"),
        st.Page(compare.page, title="Compare", url_path="compare"),
        st.Page(cache.page, title="Cache", url_path="cache"),
        st.Page(profiles.page, title="Profiles", url_path="profiles"),
        st.Page(method.page, title="Method", url_path="method"),
    ]).run()


def icon() -> Image.Image:
    """Three bars, one a cache tier; drawn here because Streamlit fetches named icons from the network.

    Examples
    --------
    >>> icon().size
    (32, 32)
    """
    image = np.zeros((32, 32, 4), np.uint8)
    for k, tier in enumerate(("hbm", "dram", "pool")):
        rgb = bytes.fromhex(TIER_COLOURS[tier].removeprefix("#"))
        image[3 + 9 * k:11 + 9 * k, 3:13 + 8 * k] = (*rgb, 255)
    return Image.fromarray(image)


if __name__ == "__main__":
    main()
