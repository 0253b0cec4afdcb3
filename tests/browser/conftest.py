"""Browser tests: one dashboard server and one Chromium for all of them, a fresh browser context for each."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

START_TIMEOUT_S = 180.0
STEP_TIMEOUT_MS = 90_000

# Assertions wait as long as actions do; five seconds, their default, is less than a simulation on a busy machine.
# Nothing waits longer than it must: every wait ends with the state that it is for.
expect.set_options(timeout=STEP_TIMEOUT_MS)

# No sandbox: Chromium refuses one to root. The others keep it from calling its maker's servers.
CHROMIUM_FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
]


def free_port() -> int:
    """A TCP port of the loopback that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def is_healthy(url: str) -> bool:
    """Whether the Streamlit server answers."""
    try:
        with urlopen(f"{url}/_stcore/health", timeout=5) as answer:
            return bool(answer.status == 200)
    except (URLError, OSError):
        return False


def wait_until_healthy(url: str, server: subprocess.Popen[bytes], log: Path) -> None:
    """Wait for the server's first answer; fail with its log when it dies or takes too long."""
    deadline = time.monotonic() + START_TIMEOUT_S
    while not is_healthy(url):
        if server.poll() is not None or time.monotonic() > deadline:
            pytest.fail(f"the dashboard did not start:\n{log.read_text(errors='replace')}", pytrace=False)
        time.sleep(0.2)


@contextmanager
def streamlit_server(app: Path, folder: Path) -> Generator[str]:
    """Run ``streamlit run app`` on a free loopback port, its log and its sweeps in `folder`; yields its address."""
    port, log = free_port(), folder / "server.log"
    command = [
        sys.executable, "-m", "streamlit", "run", app.name, "--server.headless=true", "--server.address=127.0.0.1",
        f"--server.port={port}", "--server.fileWatcherType=none", "--browser.gatherUsageStats=false",
    ]
    with log.open("wb") as output:
        server = subprocess.Popen(command, cwd=app.parent, stdout=output, stderr=subprocess.STDOUT,
                                  env={**os.environ, "KVSIM_SWEEPS": str(folder / "sweeps")})
    try:
        wait_until_healthy(f"http://127.0.0.1:{port}", server, log)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait(timeout=20)


@pytest.fixture(scope="session")
def app_url(browser: Browser, repo_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of a running dashboard that has loaded its program: the first visitor of a server waits for that."""
    folder = tmp_path_factory.mktemp("streamlit")
    with streamlit_server(repo_root / "app.py", folder) as url:
        context = browser.new_context()
        page = context.new_page()
        page.goto(f"{url}/method", timeout=1e3 * START_TIMEOUT_S)
        expect(page.get_by_role("heading", name="Method", exact=True)).to_be_visible(timeout=1e3 * START_TIMEOUT_S)
        context.close()
        yield url


@pytest.fixture(scope="session")
def browser(chromium: Path) -> Iterator[Browser]:
    """A headless Chromium; Playwright gives it a new, empty profile folder."""
    with sync_playwright() as driver:
        instance = driver.chromium.launch(executable_path=chromium, headless=True, args=CHROMIUM_FLAGS)
        yield instance
        instance.close()


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """An empty page in a context of its own; the test fails if the page's scripts threw an error."""
    context = browser.new_context(viewport={"width": 1400, "height": 1000})
    context.set_default_timeout(STEP_TIMEOUT_MS)
    page = context.new_page()
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    yield page
    context.close()
    assert not errors, f"errors in the page's scripts: {errors}"
