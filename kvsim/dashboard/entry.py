"""What the browser opens: page configuration and navigation.

``app.py`` of a checkout calls `main`; an installed package runs this file itself.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable

import numpy as np
import streamlit as st
from PIL import Image

from kvsim.dashboard import state
from kvsim.dashboard.colours import TIER_COLOURS
from kvsim.profiles.store import default_store

ABOUT = "kvsim: KV-cache capacity and LLM serving-cost simulator. Every figure shown is computed from dated profiles."
PAGES = ("plan", "cost", "compare", "cache", "latency", "cluster", "sweep", "profiles", "method")
"""Modules of `kvsim.dashboard.pages`, which are the pages' addresses too; the first one opens."""


def main() -> None:
    """Configure the browser's page and show the page that was chosen."""
    st.set_page_config(page_title="kvsim", page_icon=icon(), layout="wide", menu_items={"About": ABOUT})
    st.set_option("client.toolbarMode", "viewer")
    state.begin(default_store())
    st.navigation([st.Page(page(name), title=name.capitalize(), url_path=name, default=name == PAGES[0])
                   for name in PAGES]).run()


def page(name: str) -> Callable[[], None]:
    """A page that is loaded when it is first shown, so that the opening one need not wait for the others."""
    def run() -> None:
        importlib.import_module(f"kvsim.dashboard.pages.{name}").page()

    return run


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
