"""Every page beside Plan in a real browser: reached by the navigation, at two widths, nothing thrown or cut off."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, expect

QUICK = "curve=4&sessions=6&duration_s=120&warmup_s=0&seeds=1"
"""Two short simulations."""
PAGES = {
    "Cost": ("The market", 2),
    "Compare": ("Nothing is pinned yet.", 0),
}
"""Page -> a text that stands below all that takes time, and its number of charts."""


@pytest.mark.parametrize("title", PAGES)
def test_page_fits_both_widths(page: Page, app_url: str, title: str) -> None:
    last, charts = PAGES[title]
    page.set_viewport_size({"width": 1280, "height": 900})
    page.goto(f"{app_url}/?{QUICK}")
    page.get_by_role("link", name=title, exact=True).click()
    expect(page.get_by_role("heading", name=title, exact=True)).to_be_visible()
    expect(page.get_by_role("slider", name="Live sessions")).to_have_value("6")
    expect(page.get_by_text(last, exact=True).first).to_be_visible()
    expect(page.locator(".js-plotly-plot")).to_have_count(charts)
    for width in (1280, 800):
        page.set_viewport_size({"width": width, "height": 900})
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        for chart in page.locator(".js-plotly-plot").all():
            expect(chart).to_be_visible()
            page.wait_for_function("([node, width]) => node.getBoundingClientRect().right <= width",
                                   arg=[chart.element_handle(), width])
    expect(page.get_by_text("Traceback")).to_have_count(0)


def test_pinned_configuration_is_compared_and_kept_in_the_address(page: Page, app_url: str) -> None:
    page.goto(f"{app_url}/?{QUICK}")
    page.get_by_role("link", name="Compare", exact=True).click()
    page.get_by_role("button", name="Pin the current configuration as A").click()
    expect(page.get_by_text("No input differs: change a control.")).to_be_visible()
    page.get_by_role("switch", name="DRAM tier").press("Space")
    expect(page.get_by_role("cell", name="tiers", exact=True)).to_be_visible()
    expect(page).to_have_url(re.compile("a=sessions"))
    page.set_viewport_size({"width": 800, "height": 900})
    page.reload()
    expect(page.get_by_role("cell", name="tiers", exact=True)).to_be_visible()
    expect(page.locator(".js-plotly-plot")).to_have_count(1)
    assert page.evaluate("document.documentElement.scrollWidth") <= 800
