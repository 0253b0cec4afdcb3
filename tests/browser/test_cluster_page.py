"""The Cluster page in a real browser: the loss of a replica, routers, a link for somebody else."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.conftest import STEP_TIMEOUT_MS

QUICK = "curve=4&sessions=6&replicas=2&router=session_affinity&duration_s=240&warmup_s=0&seeds=1"
"""A short simulation a router."""


def open_cluster(page: Page, url: str, query: str = QUICK) -> None:
    page.goto(f"{url}/cluster?{query}")
    expect(page.get_by_text("Take it along", exact=True).first).to_be_visible()
    expect(page.locator(".js-plotly-plot")).to_have_count(2)


@pytest.mark.parametrize("width", [800, 1280])
def test_nothing_sticks_out(page: Page, app_url: str, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 900})
    open_cluster(page, app_url)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    over_time = ("Requests in flight", "Prompt tokens reused (%)", "replica 1")
    shown = (over_time, ("round_robin", "llm_d", "$ per M tokens"))
    for chart, texts in zip(page.locator(".js-plotly-plot").all(), shown, strict=True):
        box = chart.bounding_box()
        assert box is not None
        assert box["x"] + box["width"] <= width
        for text in texts:
            expect(chart).to_contain_text(text)


def test_a_lost_replica_is_drawn_and_goes_into_the_link(page: Page, browser: Browser, app_url: str) -> None:
    open_cluster(page, app_url)
    stops = page.get_by_role("spinbutton", name="Replica 0 stops at (s)")
    stops.fill("60")
    stops.press("Enter")
    said = re.compile("Replica 0 stops 60 s into the measured time")
    expect(page.get_by_text(said)).to_be_visible()
    expect(page).to_have_url(re.compile("lost_s=60"))
    sentence = page.get_by_text(said).inner_text()
    context = browser.new_context()
    context.set_default_timeout(STEP_TIMEOUT_MS)
    other = context.new_page()
    other.goto(page.url)
    expect(other.get_by_text(said)).to_have_text(sentence)
    context.close()


def test_replicas_are_chosen_in_the_sidebar_and_kept_on_other_pages(page: Page, app_url: str) -> None:
    open_cluster(page, app_url, f"{QUICK}&lost_s=60")
    page.get_by_role("spinbutton", name="Replicas").fill("3")
    page.get_by_role("spinbutton", name="Replicas").press("Enter")
    expect(page.get_by_text(re.compile("on 3 replicas of 8 x B300")).first).to_be_visible()
    expect(page.get_by_role("cell", name="2P1D", exact=True)).to_be_visible()
    page.get_by_role("link", name="Latency", exact=True).click()
    expect(page.get_by_role("heading", name="Latency", exact=True)).to_be_visible()
    expect(page).to_have_url(re.compile("lost_s=60"))
    page.get_by_role("link", name="Cluster", exact=True).click()
    expect(page.get_by_role("spinbutton", name="Replica 0 stops at (s)")).to_have_value("60")
    expect(page.get_by_text("Traceback")).to_have_count(0)
