"""Every page beside Plan in a real browser: reached by the navigation, at two widths, nothing thrown or cut off."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

QUICK = "curve=4&sessions=6&duration_s=120&warmup_s=0&seeds=1"
"""Two short simulations."""
PAGES = {
    "Cost": ("The market", 2),
    "Cache": ("All capacities as a table", 2),
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
    page.get_by_text("a trace of your own").click()
    upload = page.locator("input[type=file]")
    lines = [json.dumps({"timestamp": k, "input_length": 1024, "output_length": 5, "hash_ids": [k % 2, 7 + k % 2]})
             for k in range(8)]
    upload.set_input_files({"name": "mine.jsonl", "mimeType": "application/json",
                            "buffer": "\n".join(lines).encode()})
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
    upload = page.locator("input[type=file]")
    config = {"model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
              "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256,
              "max_position_embeddings": 131072, "torch_dtype": "bfloat16"}
    upload.set_input_files({"name": "config.json", "mimeType": "application/json",
                            "buffer": json.dumps(config).encode()})
    expect(page.get_by_text("my-model: a valid model profile.")).to_be_visible()
    with page.expect_download() as started:
        page.get_by_role("button", name="Model profile (YAML)").click()
    assert "schema: kvsim/model/1" in Path(started.value.path()).read_text(encoding="utf-8")
