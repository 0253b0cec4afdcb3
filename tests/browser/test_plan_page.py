"""The Plan page in a real browser."""

from __future__ import annotations

import json
import re
from pathlib import Path
from urllib.parse import urlsplit

import pyarrow.parquet as parquet
import pytest
from playwright.sync_api import Browser, Page, expect

from kvsim.scenario import load_scenario
from kvsim.workload.readers.read import read_trace
from kvsim.workload.readers.reading import ReadOptions
from tests.browser.conftest import STEP_TIMEOUT_MS

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
    expect(page.get_by_text(re.compile("per node-hour")).first).to_be_visible()
    charts = page.locator(".js-plotly-plot")
    expect(charts).to_have_count(3)
    for k, title in enumerate(("Live sessions", "Prompt tokens reused (%)", "GiB per GPU (fullest GPU)")):
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
    expect(page.get_by_text(re.compile("at 5 live sessions")).first).to_be_visible()
    expect(page).to_have_url(re.compile("sessions=5"))
    page.reload()
    expect(page.get_by_text(re.compile("at 5 live sessions")).first).to_be_visible()


def test_verdict_follows_sessions_and_the_dram_switch(page: Page, app_url: str) -> None:
    open_plan(page, app_url, "curve=16&sessions=4&duration_s=600&warmup_s=300&seeds=1")
    banner = page.get_by_test_id("stAlert").filter(has_text="holds")
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
    expect(page.locator(".js-plotly-plot").nth(1)).to_contain_text("Hits in DRAM")
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


def test_share_link_shows_the_same_headline_to_somebody_else(page: Page, browser: Browser, app_url: str) -> None:
    open_plan(page, app_url)
    page.get_by_role("switch", name="DRAM tier").press("Space")
    expect(page).to_have_url(re.compile("dram=yes"))
    banner = re.compile("Kimi K3 on 8 x B300 serves")
    expect(page.get_by_text(re.compile("DRAM tier of 1,889 GB behind it, at|DRAM tier of 1,889 GB behind it"))
           ).to_be_visible()
    headline = page.get_by_text(banner).first.inner_text()
    context = browser.new_context()
    context.set_default_timeout(STEP_TIMEOUT_MS)
    other = context.new_page()
    other.goto(page.url)
    expect(other.get_by_text(banner).first).to_have_text(headline)
    context.close()


def test_downloads_are_read_back(page: Page, app_url: str, tmp_path: Path) -> None:
    open_plan(page, app_url)
    expect(page.get_by_role("button", name="Requests (CSV)")).to_be_visible()
    paths: dict[str, Path] = {}
    for name in ("Scenario (YAML)", "Report (JSON)", "Requests (CSV)", "Requests (Parquet)"):
        with page.expect_download() as started:
            page.get_by_role("button", name=name).click()
        paths[name] = tmp_path / started.value.suggested_filename
        started.value.save_as(paths[name])
    scenario = load_scenario(paths["Scenario (YAML)"])
    assert scenario.study is not None
    assert scenario.study.concurrency == (4, 8)
    report = json.loads(paths["Report (JSON)"].read_text(encoding="utf-8"))["cases"][0]["report"]
    assert report["run"]["digest"] == scenario.at(4, 0).digest
    columns = {"timestamp": "arrival_s", "input_tokens": "prompt_tokens", "output_tokens": "output_tokens"}
    trace, _ = read_trace(paths["Requests (CSV)"], ReadOptions(mapping=columns))
    assert len(trace) >= report["run"]["num_requests"]
    table = parquet.read_table(paths["Requests (Parquet)"])
    assert table.num_rows >= len(trace)


def test_pinned_configuration_gives_the_metrics_differences(page: Page, app_url: str) -> None:
    open_plan(page, app_url)
    page.get_by_role("button", name="Pin as A").click()
    expect(page.get_by_text("+0.0 from A").first).to_be_visible()
    page.get_by_role("switch", name="DRAM tier").press("Space")
    expect(page.get_by_text(re.compile("Differences are from A"))).to_be_visible()
    expect(page.get_by_text(re.compile("[+−][0-9.,]+ from A")).first).to_be_visible()
