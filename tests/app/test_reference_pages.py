"""Profiles and Method: what results rest on."""

from __future__ import annotations

import json

import pytest
from streamlit.testing.v1 import AppTest

from kvsim.dashboard import browse, method
from kvsim.errors import KvsimError, ProfileError, ScenarioError
from kvsim.profiles.figure import figures_in
from kvsim.profiles.store import KINDS, default_store, load_text

STORE = default_store()
LLAMA = {"model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
         "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256,
         "max_position_embeddings": 131072, "torch_dtype": "bfloat16"}


LOG = b"""Initializing a V1 LLM engine (v0.24.0) with config: model='x'
non-default args: {'model': '/m/Llama-3.1-8B', 'max_model_len': 131072, 'enable_prefix_caching': True, \
'max_num_seqs': 256, 'max_num_batched_tokens': 8192, 'gpu_memory_utilization': 0.92}
Model loading took 15.21 GiB and 1.746545 seconds
Available KV cache memory: 112.08 GiB
GPU KV cache size: 918,160 tokens
Maximum concurrency for 131,072 tokens per request: 7.01x
Graph capturing finished in 4 secs, took 0.59 GiB
"""


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


def test_log_beside_the_prediction() -> None:
    log = browse.uploaded_log("../../var/server.log", LOG)
    assert log.path == "server.log"
    check = browse.checked(log, None, "h200-sxm")
    assert browse.log_sentence(check).startswith("The engine holds 112.08 GiB of KV per GPU: ")
    rows = {row["Part"]: row for row in browse.log_rows(check)}
    assert rows["KV pool"]["Logged"] == "112.08 GiB"
    assert rows["weights"]["Logged"] == "-15.21 GiB"
    points = "Explains (points of the pool)"
    known = [float(r[points]) for r in rows.values() if r[points] and r["Part"] != "KV pool"]
    assert sum(known) == pytest.approx(check.points, abs=0.3)


def test_log_that_says_no_pool_is_told_so() -> None:
    text = LOG.replace(b"Available KV cache memory: 112.08 GiB", b"").replace(b"GPU KV cache size", b"Size")
    check = browse.checked(browse.uploaded_log("server.log", text), None, "h200-sxm")
    assert browse.log_sentence(check) == "The log does not say how large the pool is."
    assert browse.log_rows(check)[0]["Logged"] == "not logged"


@pytest.mark.parametrize(("data", "message"), [
    (b"nothing of an engine", "says nothing"), (b"\0binary", "cannot read"),
    (b" " * (browse.MAX_LOG_BYTES + 1), "too large"),
])
def test_bad_log_is_told_without_our_paths(data: bytes, message: str) -> None:
    with pytest.raises(ScenarioError, match=message) as caught:
        browse.uploaded_log("server.log", data)
    assert "/tmp" not in str(caught.value)
    assert "server.log" in str(caught.value)


def test_log_without_arguments_needs_a_configuration() -> None:
    log = browse.uploaded_log("server.log", b"Available KV cache memory: 42.00 GiB\n")
    with pytest.raises(KvsimError, match="what was started"):
        browse.checked(log, None, "h200-sxm")


def test_profiles_page_takes_a_log_and_hands_its_pool_on() -> None:
    app = AppTest.from_function(_profiles_page, default_timeout=60).run()
    app.file_uploader(key="log upload").set_value(("server.log", LOG, "text/plain")).run()
    assert not app.exception
    app.selectbox(key="log gpu").set_value("h200-sxm").run()
    assert not app.error
    assert "112.08 GiB" in app.info[0].value
    app.file_uploader(key="log upload").set_value(
        ("k3.log", b"Available KV cache memory: 40.00 GiB\n", "text/plain")).run()
    assert "what was started" in app.error[0].value
    app.radio(key="log ran").set_value("the configuration of the other pages").run()
    assert not app.exception
    assert "40.00 GiB" in app.info[0].value
    app.button(key="log adopt").click().run()
    assert not app.exception
    assert (app.session_state["choices"].pool, app.session_state["choices"].logged_gib) == ("logged", 40.0)


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
