"""What the address says survives runs that a click ends early."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import streamlit as st
from streamlit.testing.v1 import AppTest

from kvsim.dashboard import entry, state
from kvsim.profiles.store import default_store

ADDRESS = {"gpu": "b200-sxm", "num_gpus": "8", "sessions": "6", "a": "sessions=5"}
"""A machine that the model does not fit on: nothing is simulated."""


def opened(repo_root: Path) -> AppTest:
    app = AppTest.from_file(str(repo_root / "app.py"), default_timeout=120)
    for name, value in ADDRESS.items():
        app.query_params[name] = value
    return app


def test_a_click_as_soon_as_the_links_are_there_loses_nothing(repo_root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    app = opened(repo_root)
    with monkeypatch.context() as patched:
        patched.setattr(st, "navigation", lambda *_args, **_named: st.stop())
        app.run()
        assert not list(app.slider)
    app.query_params.clear()  # as a click on a link does
    app.run()
    assert app.slider(key="sessions").value == 6
    assert app.selectbox(key="gpu").value == "b200-sxm"
    assert "a" in app.query_params


class Recorded(dict[str, Any]):
    """A session's state that notes what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[str] = []

    def __setitem__(self, key: str, value: Any) -> None:
        self.written.append(key)
        super().__setitem__(key, value)


class Address(dict[str, str]):
    """A page's address."""

    def from_dict(self, query: dict[str, str]) -> None:
        self.clear()
        self.update(query)


def test_controls_are_told_their_values_until_they_were_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    session, store = Recorded(), default_store()
    monkeypatch.setattr(state, "st", SimpleNamespace(session_state=session, query_params=Address(ADDRESS)))
    state.current(store, "Plan")
    assert "sessions" in session.written
    session.written.clear()
    state.current(store, "Plan")  # the run before ended between telling and drawing
    assert "sessions" in session.written
    state.drawn("Plan")
    session.written.clear()
    state.current(store, "Plan")
    assert "sessions" not in session.written


def test_every_page_has_a_module(repo_root: Path) -> None:
    pages = {path.stem for path in (repo_root / "kvsim" / "dashboard" / "pages").glob("*.py")} - {"__init__"}
    assert pages == set(entry.PAGES)
