"""What outlives one run of a page: choices of the session, the page's address, reports by scenario digest."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import fields, replace
from threading import Lock
from typing import Any, cast
from urllib.parse import parse_qsl, urlencode

import streamlit as st

from kvsim.dashboard.choices import Choices, from_query, reconcile, to_query
from kvsim.dashboard.jobs import Jobs
from kvsim.errors import Problem
from kvsim.profiles.store import ProfileStore
from kvsim.report.report import Report
from kvsim.scenario import Scenario
from kvsim.simulation import simulate

MAX_REPORTS = 256
"""Reports kept by the server; a report of an hour's traffic is about 1 MB."""

_CHOICES, _PROBLEMS, _PINNED, _PAGE = "choices", "address problems", "pinned", "page with controls"
PIN = "a"
"""The address's name of the pinned configuration, itself an address."""
ALL_DEFAULTS = "default"
"""What stands there when the pinned configuration is the one that the dashboard opens with."""


class ReportCache:
    """Reports by scenario digest, the least recently used forgotten first; shared by all sessions of a server."""

    def __init__(self, max_reports: int = MAX_REPORTS) -> None:
        self.max_reports = max_reports
        self._reports: OrderedDict[str, Report] = OrderedDict()
        self._lock = Lock()

    def find(self, scenario: Scenario) -> Report | None:
        """The report of a scenario that has been simulated."""
        with self._lock:
            report = self._reports.get(scenario.digest)
            if report is not None:
                self._reports.move_to_end(scenario.digest)
            return report

    def report(self, scenario: Scenario, progress: Callable[[float], None] | None = None) -> Report:
        """The report of a scenario, simulated if it is not known; errors are not kept.

        Raises
        ------
        KvsimError
            As `kvsim.simulation.simulate`.
        """
        found = self.find(scenario)
        if found is not None:
            return found
        report = simulate(scenario, progress)
        with self._lock:
            self._reports[scenario.digest] = report
            while len(self._reports) > self.max_reports:
                self._reports.popitem(last=False)
        return report


@st.cache_resource
def reports() -> ReportCache:
    """The server's one cache."""
    return ReportCache()


@st.cache_resource
def jobs() -> Jobs:
    """The server's long work."""
    return Jobs()


def current(store: ProfileStore, page: str) -> tuple[Choices, tuple[Problem, ...]]:
    """Choices of this run, and what in the address could not be followed.

    The session's first run takes them from the address (`begin`), later ones from the controls. They are written back
    to the controls' keys, so that a control that another one has ruled out shows the value that is used. ``page`` is
    the name of the page that draws the controls, which says with `drawn` that it did.
    """
    begin(store)
    previous = cast("Choices", st.session_state[_CHOICES])
    choices = reconcile(replace(previous, **_said_by_controls()), previous, store)
    changed = choices != previous
    st.session_state[_CHOICES] = choices
    if changed:
        st.session_state[_PROBLEMS] = ()
    same_page = st.session_state.get(_PAGE) == page
    if not same_page:
        st.session_state[_PAGE] = None
    _tell_controls(choices, all_of_them=not same_page)
    st.query_params.from_dict({**to_query(choices, store), **_pin_query(store)})
    return choices, st.session_state[_PROBLEMS]


def drawn(page: str) -> None:
    """Note that a page has drawn its controls: one that was interrupted before tells them their values once more."""
    st.session_state[_PAGE] = page


def begin(store: ProfileStore) -> None:
    """In a session's first run: choices and pinned configuration as the address says.

    Must come before the navigation's links reach the browser: whoever clicks one at once ends the first run, and the
    next one's address has nothing left in it.
    """
    if _CHOICES in st.session_state:
        return
    st.session_state[_CHOICES], problems = from_query(st.query_params, store)
    if PIN in st.query_params:
        st.session_state[_PINNED], wrong = from_query(dict(parse_qsl(st.query_params[PIN])), store)
        problems += wrong
    st.session_state[_PROBLEMS] = problems


def pinned(store: ProfileStore) -> Choices | None:
    """The configuration that was pinned, as far as it is still possible."""
    found = cast("Choices | None", st.session_state.get(_PINNED))
    return None if found is None else reconcile(found, found, store)


def chosen(store: ProfileStore) -> Choices:
    """What the controls of the other pages say, for a page without controls."""
    begin(store)
    return cast("Choices", st.session_state[_CHOICES])


def adopt(choices: Choices) -> None:
    """Set all controls; for callbacks, which come before a page's controls are drawn."""
    st.session_state[_CHOICES] = choices
    st.session_state[_PROBLEMS] = ()
    _tell_controls(choices, all_of_them=True)


def pin(choices: Choices) -> None:
    """Keep a configuration to compare with."""
    st.session_state[_PINNED] = choices


def unpin() -> None:
    """Forget the pinned configuration."""
    st.session_state.pop(_PINNED, None)


def _pin_query(store: ProfileStore) -> dict[str, str]:
    kept = pinned(store)
    return {} if kept is None else {PIN: urlencode(to_query(kept, store)) or ALL_DEFAULTS}


def _tell_controls(choices: Choices, *, all_of_them: bool) -> None:
    """Write values to the controls' keys where they differ, or all of them to a page's new controls.

    A value that is written is sent to the browser, where it would undo what the user did since this run began.
    """
    for field in fields(Choices):
        value = getattr(choices, field.name)
        value = list(value) if field.name == "curve" else value
        if all_of_them or field.name not in st.session_state or st.session_state[field.name] != value:
            st.session_state[field.name] = value


def _said_by_controls() -> dict[str, Any]:
    """Values of the controls that exist; a page that was left has lost its own."""
    said: dict[str, Any] = {f.name: st.session_state[f.name] for f in fields(Choices) if f.name in st.session_state}
    return {**said, "curve": tuple(sorted(said["curve"]))} if "curve" in said else said
