"""Every page beside Plan in a real browser: reached by the navigation, at two widths, nothing thrown or cut off."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Literal

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.conftest import STEP_TIMEOUT_MS

QUICK = "curve=4&sessions=6&duration_s=120&warmup_s=0&seeds=1"
"""Two short simulations."""
PAGES = {
    "Cost": ("Take it along", 3),
    "Cache": ("Take it along", 4),
    "Latency": ("Take it along", 3),
    "Cluster": ("Take it along", 2),
    "Sweep": ("What to run or open", 0),
    "Profiles": ("A model of your own", 0),
    "Method": ("Not modelled", 0),
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
    if title != "Profiles":
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


def test_uploaded_trace_is_counted_and_a_bad_one_is_told(page: Page, app_url: str) -> None:
    page.goto(f"{app_url}/?{QUICK}")
    page.get_by_role("link", name="Cache", exact=True).click()
    page.get_by_test_id("stMain").get_by_text("a trace of your own").click()
    upload = page.get_by_test_id("stMain").locator("input[type=file]")
    lines = [json.dumps({"timestamp": k, "input_length": 1024, "output_length": 5, "hash_ids": [k % 2, 7 + k % 2]})
             for k in range(8)]
    upload.set_input_files({"name": "mine.jsonl", "mimeType": "application/json",
                            "buffer": "\n".join([*lines, "nonsense"]).encode()})
    expect(page.get_by_text("mine.jsonl:9: got 'nonsense'")).to_be_visible()
    expect(page.get_by_text("mine.jsonl: 8 requests, 16 blocks of 512 tokens, 4 distinct")).to_be_visible()
    upload.set_input_files({"name": "bad.txt", "mimeType": "text/plain", "buffer": b"nothing, here"})
    expect(page.get_by_text("bad.txt is of no known format")).to_be_visible()
    expect(page.get_by_text("Traceback")).to_have_count(0)


def test_choices_survive_a_page_without_controls(page: Page, app_url: str) -> None:
    page.goto(f"{app_url}/?{QUICK}&dram=yes")
    page.get_by_role("link", name="Profiles", exact=True).click()
    expect(page.get_by_text("A model of your own", exact=True)).to_be_visible()
    page.get_by_role("link", name="Method", exact=True).click()
    expect(page.get_by_role("slider", name="Live sessions")).to_have_value("6")
    expect(page.get_by_role("switch", name="DRAM tier")).to_be_checked()
    expect(page).to_have_url(re.compile("dram=yes"))


def test_config_becomes_a_model_profile(page: Page, app_url: str) -> None:
    page.goto(f"{app_url}/profiles")
    upload = page.locator("input[type=file]").first
    config = {"model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
              "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256,
              "max_position_embeddings": 131072, "torch_dtype": "bfloat16"}
    upload.set_input_files({"name": "config.json", "mimeType": "application/json",
                            "buffer": json.dumps(config).encode()})
    expect(page.get_by_text("my-model: a valid model profile.")).to_be_visible()
    with page.expect_download() as started:
        page.get_by_role("button", name="Model profile (YAML)").click()
    assert "schema: kvsim/model/1" in Path(started.value.path()).read_text(encoding="utf-8")


def test_log_is_held_against_the_configuration_and_its_pool_is_used(page: Page, app_url: str) -> None:
    page.goto(f"{app_url}/?{QUICK}")
    page.get_by_role("link", name="Profiles", exact=True).click()
    page.get_by_text("the configuration of the other pages").click()
    page.locator("input[type=file]").nth(1).set_input_files(
        {"name": "k3.log", "mimeType": "text/plain", "buffer": b"Available KV cache memory: 40.00 GiB\n"})
    said = re.compile(r"The engine holds 40\.00 GiB of KV per GPU: .* than the predicted")
    expect(page.get_by_text(said)).to_be_visible()
    page.get_by_role("button", name="Use this pool on the other pages").click()
    page.get_by_role("link", name="Method", exact=True).click()
    expect(page.get_by_role("spinbutton", name="Logged pool")).to_have_value("40.00")
    expect(page).to_have_url(re.compile("logged_gib=40"))


def test_own_trace_is_planned_at_its_times_and_by_clients(page: Page, app_url: str) -> None:
    page.goto(f"{app_url}/?{QUICK}")
    sidebar = page.get_by_test_id("stSidebar")
    sidebar.get_by_text("A trace of your own", exact=True).click()
    lines = [json.dumps({"timestamp": 1000 * k, "input_length": 8192, "output_length": 5,
                         "hash_ids": [100 * (k % 2) + i for i in range(16)]}) for k in range(40)]
    lines.append("nonsense")
    sidebar.locator("input[type=file]").set_input_files(
        {"name": "mine.jsonl", "mimeType": "application/json", "buffer": "\n".join(lines).encode()})
    expect(page.get_by_text("mine.jsonl at 1 times its recorded rate").first).to_be_visible()
    expect(page.get_by_text("Rows of traces that were not played as recorded")).to_be_visible()
    expect(page.get_by_text("mine.jsonl:41: got 'nonsense'")).to_be_visible()
    expect(page.get_by_role("slider", name="Live sessions")).to_be_disabled()
    expect(page).to_have_url(re.compile("pace=open"))
    page.reload()
    expect(page.get_by_text("mine.jsonl at 1 times its recorded rate").first).to_be_visible()
    page.get_by_role("link", name="Latency", exact=True).click()
    expect(page.get_by_text("this page needs live sessions")).to_be_visible()
    sidebar.get_by_text("live sessions, or clients of single requests").click()
    expect(page.get_by_role("heading", name="Distributions")).to_be_visible()
    sidebar.get_by_role("button", name="Back to the preset").click()
    expect(page).not_to_have_url(re.compile("trace="))
    expect(page.get_by_text("Traceback")).to_have_count(0)


SHOTS = os.environ.get("KVSIM_SCREENSHOTS")
"""Folder in which pictures of all pages are kept, for people to look at."""


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_page_is_drawn_in_both_themes(browser: Browser, app_url: str, theme: Literal["light", "dark"],
                                            tmp_path: Path) -> None:
    folder = Path(SHOTS) if SHOTS else tmp_path
    folder.mkdir(parents=True, exist_ok=True)
    for width in (1280, 800):
        context = browser.new_context(viewport={"width": width, "height": 1000}, color_scheme=theme)
        context.set_default_timeout(STEP_TIMEOUT_MS)
        page = context.new_page()
        page.goto(f"{app_url}/?{QUICK}")
        for title, (last, charts) in {"Plan": ("Take it along", 3), **PAGES}.items():
            if width == 800 and page.get_by_test_id("stExpandSidebarButton").is_visible():
                page.get_by_test_id("stExpandSidebarButton").click()
            page.get_by_role("link", name=title, exact=True).click()
            expect(page.get_by_role("heading", name=title, exact=True)).to_be_visible()
            expect(page.get_by_text(last, exact=True).first).to_be_visible()
            if charts:
                expect(page.locator(".js-plotly-plot .main-svg").first).to_be_visible()
            expect(page.get_by_text("Traceback")).to_have_count(0)
            shot = folder / f"{title.lower()}-{theme}-{width}.png"
            page.screenshot(path=shot)
            assert shot.stat().st_size > 10_000
        context.close()
