"""A sweep in a real browser: it runs beside the page, is cancelled, goes on, and is opened again."""

from __future__ import annotations

import re

import yaml
from playwright.sync_api import Page, expect

SWEEP = {"schema": "kvsim/sweep/1", "name": "browser", "base": "k3-b300-study", "replications": 4,
         "set": {"workload.duration_s": 900, "workload.warmup_s": 60},
         "axes": [{"grid": {"workload.concurrency": [4, 6, 8, 10, 12, 16]}}]}
"""24 cases of about a second."""
WRONG = "schema: kvsim/sweep/1\nname: x\nbase: no-such-scenario\n"


def open_sweep_page(page: Page, app_url: str, text: str) -> None:
    page.goto(f"{app_url}/?gpu=b200-sxm")
    page.get_by_role("link", name="Sweep", exact=True).click()
    page.get_by_text("a sweep file of yours").click()
    page.get_by_test_id("stMain").locator("input[type=file]").set_input_files({
        "name": "mine.yaml", "mimeType": "application/yaml", "buffer": text.encode()})


def test_sweep_runs_is_cancelled_goes_on_and_is_opened(page: Page, app_url: str) -> None:
    open_sweep_page(page, app_url, yaml.safe_dump(SWEEP))
    page.get_by_role("button", name="Run the sweep").click()
    expect(page.get_by_text(re.compile(r"^[1-9]\d* of 24 cases.* left\)$"))).to_be_visible()
    page.get_by_role("button", name="Cancel").click()
    expect(page.get_by_text("Stopped. Finished cases are kept")).to_be_visible()
    expect(page.get_by_text(re.compile("24 cases, [1-9][0-9]* finished, [1-9][0-9]* to run"))).to_be_visible()
    page.get_by_role("button", name="Go on").click()
    expect(page.get_by_text(re.compile("^Finished in "))).to_be_visible(timeout=240_000)
    expect(page.get_by_text("24 cases, 24 finished, 0 to run")).to_be_visible()
    expect(page.locator(".js-plotly-plot")).to_have_count(4)
    page.get_by_text("a folder with results").click()
    page.get_by_role("combobox", name=re.compile("Run here before")).click()
    page.get_by_role("option", name=re.compile("browser-")).first.click()
    expect(page.get_by_text("24 cases, 24 finished, 0 to run")).to_be_visible()
    with page.expect_download() as started:
        page.get_by_role("button", name="Report (HTML)").click()
    assert started.value.suggested_filename == "report.html"


def test_other_pages_can_be_used_while_a_sweep_runs(page: Page, app_url: str) -> None:
    open_sweep_page(page, app_url, yaml.safe_dump({**SWEEP, "name": "beside"}))
    page.get_by_role("button", name="Run the sweep").click()
    expect(page.get_by_role("button", name="Cancel")).to_be_visible()
    page.get_by_role("link", name="Method", exact=True).click()
    expect(page.get_by_text("Not modelled", exact=True)).to_be_visible()
    page.get_by_role("link", name="Sweep", exact=True).click()
    page.get_by_text("a folder with results").click()
    page.get_by_role("combobox", name=re.compile("Run here before")).click()
    page.get_by_role("option", name=re.compile("beside-")).first.click()
    expect(page.get_by_role("button", name="Cancel")).to_be_visible()
    page.get_by_role("button", name="Cancel").click()
    expect(page.get_by_text("Stopped. Finished cases are kept")).to_be_visible()


def test_wrong_sweep_is_told(page: Page, app_url: str) -> None:
    open_sweep_page(page, app_url, WRONG)
    expect(page.get_by_text("The base is not known here").or_(page.get_by_text("the base is not known here"))
           ).to_be_visible()
    expect(page.get_by_text("Traceback")).to_have_count(0)
