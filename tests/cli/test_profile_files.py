"""Profiles as text, by name or alias, and config.json files that cannot be imported."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvsim.errors import ProfileError
from kvsim.profiles.figure import figures_in
from kvsim.profiles.hf_file import import_file
from kvsim.profiles.lint import check_paths
from kvsim.profiles.show import find_profile, profile_text
from kvsim.profiles.store import KINDS, Kind, default_store, load_text

ALL = [(kind, name) for kind in KINDS for name in default_store().names(kind)]


@pytest.mark.parametrize(("kind", "name"), ALL)
def test_every_profile_can_be_shown(kind: Kind, name: str) -> None:
    profile = find_profile(name, kind)
    text = profile_text(profile)
    lines = text.splitlines()
    assert lines[0].startswith(f"{name} (kvsim/{kind}/1)")
    assert all(any(line.strip().startswith(f"{path} ") for line in lines) for path, _ in figures_in(profile))
    assert all(f"  {key}: {source.title}" in text for key, source in profile.sources.items())


def test_a_profile_s_own_name_wins_over_another_kind_s_alias() -> None:
    assert find_profile("b300-sxm").schema_ == "kvsim/gpu/1"  # the node hgx-b300-8 has it as an alias
    assert find_profile("hgx-b300-8").schema_ == "kvsim/node/1"


def test_an_alias_of_two_kinds_needs_the_kind(tmp_path: Path, repo_root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = (repo_root / "hardware_profiles" / "gpus" / "l40s.yaml").read_text()
    old = next(line for line in gpu.splitlines() if line.startswith("aliases:"))
    (tmp_path / "l40s.yaml").write_text(gpu.replace(old, "aliases: [b300-8]"))
    monkeypatch.setenv("KVSIM_PROFILES", str(tmp_path))
    with pytest.raises(ProfileError, match=r"--kind: got none, but 'b300-8' is in gpu, node; accepted: one of them"):
        find_profile("b300-8")
    assert find_profile("b300-8", "gpu").name == "l40s"


@pytest.mark.parametrize(("text", "said"), [
    ("{", "not JSON"), ("[1]", "not a mapping"), ("{}", "model_type"), ('{"model_type": "mamba9"}', "mamba9"),
])
def test_configs_that_cannot_be_imported(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(text)
    with pytest.raises(ProfileError) as caught:
        import_file(path)
    assert said in str(caught.value)
    assert caught.value.exit_code == 2


def test_an_imported_model_is_named_after_its_folder(tmp_path: Path, repo_root: Path) -> None:
    source = repo_root / "tests" / "data" / "hf_configs" / "llama-3.1-8b.json"
    folder = tmp_path / "My Model_v1"
    folder.mkdir()
    (folder / "config.json").write_text(source.read_text())
    assert load_text(import_file(folder / "config.json"), "x").name == "my-model-v1"
    assert load_text(import_file(source), "x").name == "llama-3.1-8b"
    assert json.loads(source.read_text())["model_type"] == "llama"


def test_checking_files_one_by_one(tmp_path: Path, repo_root: Path) -> None:
    whole = (repo_root / "hardware_profiles" / "nodes" / "hgx-b300-8.yaml").read_text()
    path = tmp_path / "hgx-b300-8.yaml"
    for text, said in ((whole, ""), (whole.replace("gpu: b300-sxm", "gpu: b301-sxm"), "did you mean 'b300-sxm'"),
                       (whole.replace("value: 2964436", "value: 29644360"), "host_dram.available")):
        path.write_text(text)
        count, problems = check_paths([tmp_path])
        assert count == 1
        assert said in "\n".join(map(str, problems))
        assert bool(problems) == bool(said)
