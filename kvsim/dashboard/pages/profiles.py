"""Profiles: every figure with kind and source, a model from a config.json, an engine's log beside the prediction."""

from __future__ import annotations

from dataclasses import replace

import streamlit as st

from kvsim.dashboard import browse, show, state
from kvsim.dashboard.choices import GIB, LOGGED, RANGES, Choices, scenario_of
from kvsim.errors import KvsimError
from kvsim.interop.checking import LogCheck
from kvsim.profiles.figure import Profile
from kvsim.profiles.store import KINDS, default_store

OWN_ARGUMENTS, CONTROLS = "what the log's own arguments say", "the configuration of the other pages"


def page() -> None:
    """The whole page."""
    st.title("Profiles")
    st.caption("Every figure that results rest on: its value, unit, kind and source.")
    store = default_store()
    left, right = st.columns(2)
    kind = left.selectbox("Kind", KINDS, key="profile kind", format_func=lambda k: browse.KIND_TEXT[k])
    name = right.selectbox("Profile", store.names(kind), key="profile name")
    try:
        profile = store.get(kind, name)
    except KvsimError as err:
        show.error(err)
    else:
        show_profile(profile)
        text = store.path_of(kind, name).read_text(encoding="utf-8")
        st.download_button("Profile (YAML)", text, f"{name}.yaml", "application/yaml", on_click="ignore",
                           icon=":material/download:")
    show_import()
    show_log()


def show_profile(profile: Profile) -> None:
    """Figures and sources of one profile."""
    also = f" Also called {', '.join(profile.aliases)}." if profile.aliases else ""
    st.subheader(profile.name)
    st.caption(f"{browse.counted_kinds(profile)}.{also}")
    if profile.note:
        st.text(profile.note.strip())
    show.grid(browse.figure_rows(profile), f"Figures of {profile.name}")
    show.grid(browse.source_rows(profile), f"Sources of {profile.name}")


def show_import() -> None:
    """A model profile from an uploaded config."""
    st.subheader("A model of your own")
    left, right = st.columns(2)
    file = left.file_uploader("config.json of a Hugging Face model", type="json", key="config upload",
                              max_upload_size=browse.MAX_CONFIG_BYTES // 1_000_000)
    name = right.text_input("Name of the profile", "my-model", key="config name", max_chars=80)
    if file is None:
        st.caption("The profile can be saved in a folder that KVSIM_PROFILES names, and is then offered as a model.")
        return
    try:
        text = browse.imported(file.getvalue(), name)
    except KvsimError as err:
        show.error(err)
        return
    st.success(f"{name}: a valid model profile.", icon=":material/check:")
    st.download_button("Model profile (YAML)", text, f"{name}.yaml", "application/yaml", on_click="ignore",
                       icon=":material/download:")
    with st.expander("The profile as text"):
        st.code(text, language="yaml")


def show_log() -> None:
    """The pool that an engine logged, beside the prediction."""
    st.subheader("A measured log")
    store = default_store()
    left, right = st.columns(2)
    file = left.file_uploader("Start-up log of vLLM or SGLang, or their metrics", key="log upload",
                              max_upload_size=browse.MAX_LOG_BYTES // 1_000_000)
    ran = right.radio("What ran", (OWN_ARGUMENTS, CONTROLS), key="log ran")
    gpu = right.selectbox("GPU it ran on", store.names("gpu"), key="log gpu", disabled=ran == CONTROLS,
                          index=store.names("gpu").index(state.chosen(store).gpu))
    if file is None:
        st.caption("The logged pool is held against the predicted one, part by part.")
        return
    choices = state.chosen(store) if ran == CONTROLS else None
    try:
        scenario = None if choices is None else scenario_of(choices)
        check = browse.checked(browse.uploaded_log(file.name, file.getvalue()), scenario, gpu if not scenario else None)
    except KvsimError as err:
        show.error(err)
    else:
        show_check(check, choices)


def show_check(check: LogCheck, choices: Choices | None) -> None:
    """Sentence and table of a log, the scenario with its pool, and that pool for the other pages."""
    st.info(browse.log_sentence(check), icon=":material/receipt_long:")
    show.table(browse.log_rows(check), "Parts of a GPU's memory, predicted and logged")
    for note in check.notes:
        st.caption(note)
    with st.container(horizontal=True):
        st.download_button("Scenario with the logged pool (YAML)", check.yaml(), "logged.yaml", "application/yaml",
                           on_click="ignore", icon=":material/download:")
        low, high = RANGES["logged_gib"]
        pool_gib = round(check.logged_kv_bytes / GIB, 2)
        if choices is not None and low <= pool_gib <= high:
            st.button("Use this pool on the other pages", key="log adopt", on_click=state.adopt,
                      args=(replace(choices, pool=LOGGED, logged_gib=pool_gib),), icon=":material/check:")
    with st.expander("All that was read"):
        st.code(check.text(), language=None)
