"""What all tests share: places of outside data, what must not be skipped, Hypothesis profiles, markers.

Environment variables
---------------------
KVSIM_TRACES, KVSIM_ENGINE_CASES
    Folders with the published request traces and with the engine cases; default ``../shared/traces`` and
    ``../shared/engine_cases`` beside the checkout.
KVSIM_CHROMIUM
    The browser's executable, default ``/usr/bin/chromium``.
KVSIM_REQUIRE
    Comma-separated: ``traces``, ``engine-cases``, ``browser``. A test that lacks one of these is skipped; if the name
    is listed here it fails instead, so that an automatic run cannot pass by leaving its tests out.
HYPOTHESIS_PROFILE
    ``dev`` (default) or ``ci`` (same examples every time).
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NoReturn

import pytest
from hypothesis import HealthCheck, settings

ROOT = Path(__file__).resolve().parent.parent

MARKERS = {
    "traces": "needs the published request traces (KVSIM_TRACES)",
    "engine_cases": "needs the recorded engine cases (KVSIM_ENGINE_CASES)",
    "browser": "drives the dashboard in Chromium (KVSIM_CHROMIUM)",
    "slow": "takes more than a few seconds; leave out with -m 'not slow'",
    "timed": "limits CPU seconds: leave out where a tracer slows everything, with -m 'not timed'",
    "theory": "compares with a closed form or an exact bound",
    "golden": "compares with a published or measured number",
}

_FIXTURE_MARKERS = {"traces": "traces", "engine_cases": "engine_cases", "chromium": "browser"}

settings.register_profile("dev", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "dev"))


def pytest_configure(config: pytest.Config) -> None:
    """Declare the markers."""
    for name, meaning in MARKERS.items():
        config.addinivalue_line("markers", f"{name}: {meaning}")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give a test the markers of the fixtures that it uses; browser tests share one worker, and with it one server."""
    for item in items:
        names: set[str] = set(getattr(item, "fixturenames", []))
        for fixture, marker in _FIXTURE_MARKERS.items():
            if fixture in names:
                item.add_marker(marker)
        if "chromium" in names:
            item.add_marker(pytest.mark.xdist_group("browser"))


def required() -> set[str]:
    """What KVSIM_REQUIRE lists."""
    return {name.strip() for name in os.environ.get("KVSIM_REQUIRE", "").split(",")} - {""}


def missing(name: str, message: str) -> NoReturn:
    """Skip the test, or fail it where KVSIM_REQUIRE demands ``name``."""
    if name in required():
        pytest.fail(f"{message} (KVSIM_REQUIRE lists {name!r})", pytrace=False)
    pytest.skip(message)


def outside_folder(name: str, variable: str, default: str) -> Path:
    """The folder that an environment variable names, or its default beside the checkout."""
    folder = Path(os.environ.get(variable) or ROOT.parent / "shared" / default).resolve()
    if not folder.is_dir() or not any(folder.iterdir()):
        missing(name, f"no {name} found: set {variable} to their folder")
    return folder


@pytest.fixture(scope="session")
def repo_root() -> Path:
    """Top of the checkout."""
    return ROOT


@pytest.fixture(scope="session")
def traces() -> Path:
    """Folder of the published request traces."""
    return outside_folder("traces", "KVSIM_TRACES", "traces")


@pytest.fixture(scope="session")
def engine_cases() -> Path:
    """Folder of the recorded runs of a real scheduler."""
    return outside_folder("engine-cases", "KVSIM_ENGINE_CASES", "engine_cases")


@pytest.fixture(scope="session")
def chromium() -> Path:
    """The browser's executable."""
    path = Path(os.environ.get("KVSIM_CHROMIUM") or "/usr/bin/chromium")
    if not os.access(path, os.X_OK):
        missing("browser", "no Chromium found: install it, or set KVSIM_CHROMIUM to its executable")
    return path
