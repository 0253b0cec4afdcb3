"""The Plan page in a real browser."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Page, expect

QUICK = "curve=4,8&sessions=4&duration_s=120&warmup_s=0&seeds=1"
"""Two short simulations."""


def open_plan(page: Page, url: str, query: str = QUICK) -> tuple[list[str], set[str]]:
    """Load the page and wait for the curve; returns errors on the console and hosts that were asked."""
    errors, hosts = list[str](), set[str]()
    page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
    page.on("request", lambda request: hosts.add(urlsplit(request.url).netloc))
    page.goto(f"{url}/?{query}")
    expect(page.get_by_text("All simulated points as a table")).to_be_visible()
    return errors, hosts - {""}


def test_page_shows_verdict_and_charts(page: Page, app_url: str, tmp_path: Path) -> None:
    errors, hosts = open_plan(page, app_url)
    expect(page.get_by_text(re.compile("Kimi K3 on 8 x B300.* holds"))).to_be_visible()
    expect(page.get_by_text(re.compile("per node-hour"))).to_be_visible()
    charts = page.locator(".js-plotly-plot")
    expect(charts).to_have_count(2)
    for k, title in enumerate(("Prompt tokens reused (%)", "GiB per GPU (fullest GPU)")):
        expect(charts.nth(k)).to_be_visible()
        expect(charts.nth(k)).to_contain_text(title)
    assert errors == []
    assert hosts == {urlsplit(app_url).netloc}, "the page asked other machines"
    shot = tmp_path / "plan.png"
    page.screenshot(path=shot, full_page=True)
    assert shot.stat().st_size > 20_000


@pytest.mark.parametrize("width", [800, 1280])
def test_nothing_sticks_out(page: Page, app_url: str, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 900})
    open_plan(page, app_url)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    for chart in page.locator(".js-plotly-plot").all():
        box = chart.bounding_box()
        assert box is not None
        assert box["x"] + box["width"] <= width


def test_keyboard_changes_sessions_and_a_reload_keeps_them(page: Page, app_url: str) -> None:
    open_plan(page, app_url)
    slider = page.get_by_role("slider", name="Live sessions")
    slider.focus()
    slider.press("ArrowRight")
    expect(page.get_by_text(re.compile("at 5 live sessions"))).to_be_visible()
    expect(page).to_have_url(re.compile("sessions=5"))
    page.reload()
    expect(page.get_by_text(re.compile("at 5 live sessions"))).to_be_visible()


def test_verdict_follows_sessions_and_the_dram_switch(page: Page, app_url: str) -> None:
    open_plan(page, app_url, "curve=16&sessions=4&duration_s=600&warmup_s=300&seeds=1")
    banner = page.get_by_text(re.compile("Kimi K3 on 8 x B300.* holds"))
    expect(banner).to_contain_text("Safe:")
    expect(banner).to_contain_text("same GPU, other model")
    slider = page.get_by_role("slider", name="Live sessions")
    slider.focus()
    for _ in range(12):
        slider.press("ArrowRight")
    expect(banner).to_contain_text("at 16 live sessions")
    expect(banner).to_contain_text("Collapsed:")
    switch = page.get_by_role("switch", name="DRAM tier")
    switch.focus()
    switch.press("Space")
    expect(banner).to_contain_text("Safe:")
    expect(banner).to_contain_text(re.compile("[0-9.]+% from DRAM"))
    expect(page.locator(".js-plotly-plot").first).to_contain_text("Hits in DRAM")
    expect(page).to_have_url(re.compile("dram=yes"))


def test_scenario_can_be_downloaded(page: Page, app_url: str) -> None:
    open_plan(page, app_url)
    with page.expect_download() as started:
        page.get_by_role("button", name="Scenario (YAML)").click()
    text = Path(started.value.path()).read_text(encoding="utf-8")
    assert "model: kimi-k3" in text
    assert "concurrency:" in text


def test_too_large_model_is_an_answer(page: Page, app_url: str) -> None:
    page.goto(f"{app_url}/?gpu=b200-sxm")
    expect(page.get_by_text(re.compile("does not fit"))).to_be_visible()
    expect(page.get_by_text(re.compile("fits on 16 GPUs"))).to_be_visible()
    expect(page.locator(".js-plotly-plot")).to_contain_text("missing")
    expect(page.get_by_text("Traceback")).to_have_count(0)
