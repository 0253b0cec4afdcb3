"""Profiles: every figure with its kind and source, and a model of one's own from a config.json."""

from __future__ import annotations

import streamlit as st

from kvsim.dashboard import browse, show
from kvsim.errors import KvsimError
from kvsim.profiles.figure import Profile
from kvsim.profiles.store import KINDS, default_store


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
