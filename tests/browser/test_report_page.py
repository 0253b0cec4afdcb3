"""The page of ``kvsim report`` from a file, in a browser without a network."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import Browser, Page, expect

from kvsim.batch.sweep import sweep
from kvsim.cli import main
from tests.sweep.helpers import INLINE, batch, tiny

CHARTS = ("What moves the contribution most", "Contribution against the API price", "Hit rate against live sessions",
          "Output against live sessions", "Contribution against live sessions")


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a small sweep, as the commands make it."""
    folder = tmp_path_factory.mktemp("report")
    prices = {"compute": "rental-2026-09", "api": "moonshot-k3"}
    sweep(batch({"grid": {"workload.concurrency": [1, 2, 4]}}, base=tiny(prices=prices), replications=2),
          folder / "o", INLINE)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["kvsim", "report", str(folder / "o"), "-o", str(folder / "r.html"), "--workers", "1",
                                   "--uncertainty", "4"])
        main()
    return folder / "r.html"


@pytest.fixture
def opened(browser: Browser, report: Path) -> Iterator[tuple[Page, list[str]]]:
    """The page in a context that is offline, and every address that it asked for."""
    context = browser.new_context(viewport={"width": 1200, "height": 1000}, offline=True)
    page, asked = context.new_page(), list[str]()
    page.on("request", lambda request: asked.append(request.url))
    page.goto(report.as_uri())
    yield page, asked
    context.close()


def test_charts_are_drawn_without_a_network(opened: tuple[Page, list[str]], report: Path) -> None:
    page, asked = opened
    charts = page.locator(".js-plotly-plot")
    expect(charts).to_have_count(len(CHARTS))
    assert asked == [report.as_uri()]
    for figure, title in zip(page.locator("figure").all(), CHARTS, strict=True):
        expect(figure).to_contain_text(title)
        assert figure.locator("svg path.js-line, svg .point path, svg .bars path").count() > 0, f"{title} is empty"


def test_screenshot_of_each_chart_is_not_blank(opened: tuple[Page, list[str]], tmp_path: Path) -> None:
    """Many colours, and ink over much of the width: neither a white box nor a message in one corner."""
    page, _ = opened
    for chart in page.locator(".js-plotly-plot").all():
        expect(chart.locator(".xtick").first).to_be_visible()
        pixels = np.asarray(Image.open(io.BytesIO(chart.screenshot())).convert("RGB"))
        assert len(np.unique(pixels.reshape(-1, 3), axis=0)) > 30
        assert (pixels != pixels[:1]).any(axis=(0, 2)).mean() > 0.8


@pytest.mark.parametrize("width", [800, 1200])
def test_first_screen_is_money_and_nothing_sticks_out(opened: tuple[Page, list[str]], width: int) -> None:
    page, _ = opened
    page.set_viewport_size({"width": width, "height": 1000})
    for text in ("Contribution per node-month", "Bill per live session and month", "Break-even utilisation",
                 "DRAM pays back in", "What would turn it around"):
        box = page.get_by_text(text, exact=True).first.bounding_box()
        assert box is not None
        assert box["y"] < 1000, f"{text} is below the first screen"
    expect(page.get_by_text("over the ranges of figures").first).to_be_visible()
    # Charts follow the window with a delay.
    page.wait_for_function("most => document.documentElement.scrollWidth <= most", arg=width)
