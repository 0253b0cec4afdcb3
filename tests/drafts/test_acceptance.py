"""Acceptance of drafts: always with a source, and what a step gives from it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsim.errors import KvsimError, ScenarioError
from kvsim.memory.acceptance import accepted_length, find_draft_profile, require_acceptance
from kvsim.memory.drafts import parse_draft
from kvsim.profiles.draft import DraftProfile
from kvsim.profiles.store import default_store
from kvsim.resolve import Resolved, resolve
from kvsim.scenario import Scenario

STORE = default_store()
SOURCE = "my engine's log"


def scenario(draft: str, acceptance: dict[str, Any] | None, **changes: Any) -> Scenario:
    engine = {"draft": draft, **({"draft_acceptance": acceptance} if acceptance else {}), **changes.pop("engine", {})}
    return Scenario.from_dict({
        "name": "drafts", "model": "kimi-k3", "hardware": {"gpu": "b300", "num_gpus": 8}, "layout": {"tp": 8},
        "engine": engine, "workload": {"fixed": {"num_requests": 1, "input_tokens": 1, "output_tokens": 1},
                                       "concurrency": 1}, **changes})


def length(draft: str, acceptance: dict[str, Any]) -> float:
    found: Resolved = resolve(scenario(draft, acceptance))
    assert found.acceptance is not None
    assert found.engine.drafting is not None
    assert found.engine.drafting.length == pytest.approx(found.acceptance.length, abs=1e-3)
    return found.acceptance.length


def refusal(draft: str, acceptance: dict[str, Any] | None) -> str:
    with pytest.raises(KvsimError) as caught:
        resolve(scenario(draft, acceptance))
    return str(caught.value)


@given(st.lists(st.floats(0, 1), max_size=8))
def test_a_step_gives_one_to_one_more_than_drafted(rates: list[float]) -> None:
    found = accepted_length(rates)
    assert 1.0 <= found <= 1.0 + len(rates)
    assert accepted_length([*rates, 0.0]) == found
    assert accepted_length([*rates, 1.0]) >= found


@pytest.mark.parametrize(("tokens", "published"), [(2, 2.51), (3, 3.00), (7, 3.84)])
def test_golden_curve_of_k3(tokens: int, published: float) -> None:
    # InferenceX, golden_al_distribution: what its benchmarks pin synthetic acceptance to.
    assert length(f"dspark-fp8-k{tokens}", {"kind": "golden"}) == published


def test_numbers_of_ones_own() -> None:
    # Kimi-K2.6's EAGLE3 card gives 2.30 with 0.633, 0.404, 0.264: shares of all steps, not given the ones before.
    assert length("dspark-fp8-k3", {"kind": "measured", "per_position": [0.633, 0.404, 0.264],
                                    "source": SOURCE}) == pytest.approx(2.30, abs=0.005)
    assert length("dspark-fp8-k2", {"kind": "own", "rates": [0.8, 0.5], "source": SOURCE}) == pytest.approx(2.2)
    assert length("dspark-fp8-k7", {"kind": "own", "length": 5, "source": SOURCE}) == 5.0
    assert length("dspark-fp8-k3", {"kind": "golden", "preset": "kimi-k3-dspark-greedy"}) == 2.87


@pytest.mark.parametrize(("draft", "acceptance", "said"), [
    ("dspark-fp8-k9", {"kind": "golden"}, "kimi-k3-dspark for 9 tokens"),
    ("mtp-k1", {"kind": "golden"}, "golden for mtp drafts of kimi-k3"),
    ("dspark-fp8-k2", {"kind": "golden", "preset": "kimi-k3-dspak"}, "did you mean 'kimi-k3-dspark'"),
    ("dspark-fp8-k2", {"kind": "golden", "length": 2.0}, "length with golden"),
    ("dspark-fp8-k2", {"kind": "own", "length": 2.0}, "accepted: source, and one of"),
    ("dspark-fp8-k2", {"kind": "measured", "length": 2.0, "rates": [1, 1], "source": SOURCE}, "one of"),
    ("dspark-fp8-k2", {"kind": "own", "length": 3.5, "source": SOURCE}, "length 3.5 with 2 draft tokens"),
    ("dspark-fp8-k2", {"kind": "own", "rates": [0.5], "source": SOURCE}, "1 numbers with 2 draft tokens"),
    ("dspark-fp8-k2", {"kind": "measured", "per_position": [0.2, 0.5], "source": SOURCE}, "per_position that rises"),
    ("none", {"kind": "golden"}, "draft_acceptance without a draft"),
])
def test_what_is_refused(draft: str, acceptance: dict[str, Any], said: str) -> None:
    assert said in refusal(draft, acceptance)


def test_no_acceptance_names_the_presets() -> None:
    asked = scenario("dspark-fp8-k7", None)
    with pytest.raises(ScenarioError, match="kimi-k3-dspark, kimi-k3-dspark-greedy"):
        require_acceptance(asked, "kimi-k3", parse_draft("dspark-fp8-k7"), STORE)
    with pytest.raises(ScenarioError, match=r"none for llama-3\.1-8b, of others deepseek-v3-mtp"):
        require_acceptance(asked, "llama-3.1-8b", parse_draft("eagle3-k3"), STORE)
    require_acceptance(asked, "kimi-k3", parse_draft("none"), STORE)


@pytest.mark.parametrize("name", STORE.names("draft"))
def test_shipped_drafts(name: str) -> None:
    profile: DraftProfile = STORE.get("draft", name)
    assert STORE.get("model", profile.target).name == profile.target
    assert name.startswith(f"{profile.target}-{profile.method}")
    assert all(1.0 <= e.length.base <= 1.0 + e.drafted for e in profile.accepted)


def test_every_method_has_a_preset() -> None:
    assert {STORE.get("draft", n).method for n in STORE.names("draft")} == {"mtp", "eagle3", "dflash", "dspark"}


def test_presets_by_model_and_kind() -> None:
    assert find_draft_profile("kimi-k3", parse_draft("dspark-bf16-k2"), STORE).name == "kimi-k3-dspark"  # pyright: ignore[reportOptionalMemberAccess]
    assert find_draft_profile("llama-3.1-8b", parse_draft("mtp-k2"), STORE) is None


def test_profiles_are_checked() -> None:
    data = STORE.get("draft", "kimi-k3-dspark").model_dump(by_alias=True)
    first = data["accepted"][0]
    for change, said in (({"drafted": 1, "length": {**first["length"], "value": 2.5}}, "length 2.5 of 1 drafted"),
                         ({"drafted": 1, "length": {**first["length"], "unit": "count"}}, "accepted: tokens")):
        with pytest.raises(ValueError, match=said):
            DraftProfile.model_validate({**data, "accepted": [change]})
    with pytest.raises(ValueError, match="ascending"):
        DraftProfile.model_validate({**data, "accepted": [first, first]})
