"""Profiles and Method: what results rest on."""

from __future__ import annotations

import json

import pytest
from streamlit.testing.v1 import AppTest

from kvsim.dashboard import browse, method
from kvsim.errors import ProfileError
from kvsim.profiles.figure import figures_in
from kvsim.profiles.store import KINDS, default_store, load_text

STORE = default_store()
LLAMA = {"model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
         "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256,
         "max_position_embeddings": 131072, "torch_dtype": "bfloat16"}


def test_every_kind_has_a_name() -> None:
    assert set(KINDS) == set(browse.KIND_TEXT)


@pytest.mark.parametrize("kind", KINDS)
def test_every_figure_is_shown_with_kind_and_source(kind: str) -> None:
    profile = STORE.get(kind, STORE.names(kind)[0])  # pyright: ignore[reportArgumentType, reportCallIssue]
    rows = browse.figure_rows(profile)
    assert len(rows) == len(figures_in(profile))
    assert all(row["Kind"] and row["Source"] for row in rows)
    assert {row["Source"] for row in rows} <= {row["Source"] for row in browse.source_rows(profile)}
    assert browse.counted_kinds(profile).startswith(f"{len(rows)} figures")


def test_config_becomes_a_valid_profile() -> None:
    text = browse.imported(json.dumps(LLAMA).encode(), "mine")
    assert load_text(text, "mine.yaml").name == "mine"


@pytest.mark.parametrize(("data", "message"), [
    (b"{", "not JSON"), (b"\xff\xfe", "not JSON"), (b"[1]", "not a mapping"), (b"{}", "."),
    (b" " * (browse.MAX_CONFIG_BYTES + 1), "too large"),
])
def test_bad_config_is_told_without_our_paths(data: bytes, message: str) -> None:
    with pytest.raises(ProfileError, match=message) as caught:
        browse.imported(data, "mine")
    assert "/tmp" not in str(caught.value)


def test_bad_name_is_told() -> None:
    with pytest.raises(ProfileError):
        browse.imported(json.dumps(LLAMA).encode(), "Not A Name")


def _profiles_page() -> None:
    from kvsim.dashboard.pages import profiles

    profiles.page()


def _method_page() -> None:
    from kvsim.dashboard.pages import method as page

    page.page()


def test_profiles_page_shows_the_chosen_profile() -> None:
    app = AppTest.from_function(_profiles_page, default_timeout=60).run()
    assert not app.exception
    app.selectbox(key="profile kind").set_value("model").run()
    app.selectbox(key="profile name").set_value("kimi-k3").run()
    assert not app.exception
    figures = app.dataframe[0].value
    assert set(figures["Kind"]) <= {"assumed", "derived", "measured", "nominal"}
    assert "kimi-k3" in [s.value for s in app.subheader]


def test_method_page_lists_assumed_figures_first() -> None:
    app = AppTest.from_function(_method_page, default_timeout=60).run()
    assert not app.exception
    kinds = list(app.dataframe[0].value["Kind"])
    assert kinds[0] == "assumed"
    assert kinds == sorted(kinds, key=["assumed", "derived", "measured", "nominal"].index)
    app.multiselect(key="method kinds").set_value(["assumed"]).run()
    assert set(app.dataframe[0].value["Kind"]) == {"assumed"}
    assert len(app.dataframe[0].value) == kinds.count("assumed")
    said = " ".join(m.value for m in app.markdown)
    assert all(step.equation in said for step in method.STEPS)


def test_method_needs_no_model_that_fits() -> None:
    app = AppTest.from_function(_method_page, default_timeout=60)
    app.query_params["gpu"] = "b200-sxm"
    app.run()
    assert not app.exception
    assert "does not fit" in app.error[0].value
    assert any("Contribution" in m.value or "contribution" in m.value for m in app.markdown)
