"""Every shipped scenario in the dashboard: opened with the controls, or told why not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from kvsim.dashboard import shipped
from kvsim.dashboard.choices import from_query, scenario_of, to_query
from kvsim.profiles.store import default_store
from kvsim.resolve import resolve
from kvsim.scenario import load_scenario, shipped_scenarios

STORE = default_store()
NAMES = sorted(shipped_scenarios())


@pytest.mark.parametrize("name", NAMES)
def test_scenario_is_opened_or_refused_with_a_reason(name: str) -> None:
    found = shipped.opened(name, STORE)
    if found.choices is None:
        assert found.obstacle
        return
    asked, said = load_scenario(name), scenario_of(found.choices)
    assert (said.model, said.layout, said.workload.preset) == (asked.model, asked.layout, asked.workload.preset)
    if not {"tiers", "engine.num_blocks"} & set(found.left_out):
        assert resolve(said).capacity.num_blocks == resolve(asked).capacity.num_blocks
    again, problems = from_query(to_query(found.choices, STORE), STORE)
    assert not problems
    assert again == found.choices


def test_what_controls_cannot_say_is_named() -> None:
    assert shipped.opened("k3-b300-dram", STORE).left_out == ()
    assert "plan" in shipped.opened("plan-k3", STORE).left_out


@pytest.mark.parametrize("name", [n for n in NAMES if shipped.opened(n, STORE).choices is not None])
def test_page_opens_it(repo_root: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    full = shipped.opened(name, STORE)
    assert full.choices is not None
    # Not the whole of its traffic: one short point says that page and scenario go together.
    short = replace(full.choices, curve=(), sessions=2, duration_s=60, warmup_s=0, seeds=1)
    monkeypatch.setattr(shipped, "opened", lambda _name, _store: replace(full, choices=short))
    app = AppTest.from_file(str(repo_root / "app.py"), default_timeout=120)
    for key, value in {"curve": "4", "sessions": "4", "duration_s": "120", "warmup_s": "0", "seeds": "1"}.items():
        app.query_params[key] = value
    app.run()
    app.selectbox(key="start from").set_value(name).run()
    app.button(key="start").click().run()
    assert not app.exception
    assert app.selectbox(key="gpu").value == short.gpu
    assert app.toggle(key="dram").value == short.dram
    assert app.slider(key="sessions").value == 2
