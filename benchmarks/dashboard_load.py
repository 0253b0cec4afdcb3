"""How long the dashboard takes in a real browser: ``python -m benchmarks.dashboard_load [--runs N]``.

Prints medians and worst of N runs, with the load of the machine. Needs the dev extra and Chromium.
"""

from __future__ import annotations

import argparse
import os
import re
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Browser, Page, expect, sync_playwright
from playwright.sync_api import Error as PlaywrightError

APP = Path(__file__).resolve().parents[1] / "app.py"
CHROMIUM = os.environ.get("KVSIM_CHROMIUM", "/usr/bin/chromium")
TIMEOUT_MS = 120_000
ANALYTIC = re.compile("holds .* tokens of KV")
FIRST_SEED = re.compile("live sessions .* of prompt tokens are reused")
VERDICT = re.compile(r"serves .* agents? inside")
STEPS = ("capacity after load", "first simulated answer after load", "whole verdict after load",
         "page responds to a changed slider", "first simulated answer after a changed slider",
         "whole verdict after a changed slider")


@contextmanager
def server() -> Generator[str]:
    """A dashboard on a free loopback port; yields its address."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    flags = ("server.headless=true", "server.address=127.0.0.1", f"server.port={port}", "server.fileWatcherType=none",
             "browser.gatherUsageStats=false")
    command = [sys.executable, "-m", "streamlit", "run", str(APP), *(f"--{flag}" for flag in flags)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(timeout=20)


def measure(browser: Browser, url: str, sessions: int) -> tuple[float, ...]:
    """Seconds of `STEPS` in a fresh browser context, for numbers of sessions that nobody has asked for yet."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    context.set_default_timeout(TIMEOUT_MS)
    page = context.new_page()
    began = time.perf_counter()
    page.goto(f"{url}/?sessions={sessions}")
    loaded = [seen(page, what, began) for what in (ANALYTIC, FIRST_SEED, VERDICT)]
    page.get_by_role("slider", name="Live sessions").press("ArrowRight")
    began = time.perf_counter()
    at = f"at {sessions + 1} live sessions"
    changed = [seen(page, re.compile(what), began) for what in
               ("Simulating|first of 3 seeds", f"{at} .* of prompt tokens are reused", f"agents? inside .* {at}")]
    context.close()
    return (*loaded, *changed)


def seen(page: Page, what: re.Pattern[str], began: float) -> float:
    """Seconds until a text is on the page."""
    expect(page.get_by_text(what).first).to_be_visible()
    return time.perf_counter() - began


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5)
    runs = parser.parse_args().runs
    expect.set_options(timeout=TIMEOUT_MS)
    with server() as url, sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        wait_for(browser, url)
        # Two apart: the slider's step must not meet a number that another run has simulated.
        found = [measure(browser, url, 5 + 2 * k) for k in range(runs)]
        browser.close()
    print(f"{runs} runs, load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    for name, values in zip(STEPS, zip(*found, strict=True), strict=True):
        print(f"{name:<46} median {statistics.median(values):6.2f} s   worst {max(values):6.2f} s")


def wait_for(browser: Browser, url: str) -> None:
    """Load the server's program: its first visitor pays for that."""
    deadline = time.monotonic() + TIMEOUT_MS / 1000
    page = browser.new_page()
    while time.monotonic() < deadline:
        try:
            page.goto(f"{url}/method", timeout=TIMEOUT_MS)
            break
        except PlaywrightError as err:
            if "ERR_CONNECTION_REFUSED" not in str(err):
                raise
            time.sleep(0.2)
    expect(page.get_by_role("heading", name="Method", exact=True)).to_be_visible()
    page.close()


if __name__ == "__main__":
    main()
