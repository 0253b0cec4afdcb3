"""Chips and models under the names that tools and vendors print."""

from __future__ import annotations

from pathlib import Path

import pytest

import kvsim
from kvsim.errors import ProfileError
from kvsim.profiles.labels import meant, words_of
from kvsim.profiles.store import KINDS, ProfileStore, default_store

PRINTED = {
    "NVIDIA H100 80GB HBM3": "h100-sxm", "NVIDIA H200": "h200-sxm", "NVIDIA B200": "b200-sxm",
    "NVIDIA B300 SXM6 AC": "b300-sxm", "NVIDIA A100-SXM4-80GB": "a100-80gb-sxm", "NVIDIA L40S": "l40s",
    "NVIDIA GB200": "gb200", "NVIDIA GB300 NVL72": "gb300", "NVIDIA H20": "h20", "H200 SXM": "h200-sxm",
    "H100 SXM5 80GB": "h100-sxm", "NVIDIA HGX H100": "h100-sxm", "H200 141GB HBM3e": "h200-sxm",
    "NVIDIA RTX PRO 6000 Blackwell Server Edition": "rtx-pro-6000", "AMD Instinct MI300X": "mi300x",
    "AMD Instinct MI300X OAM": "mi300x", "AMD Instinct MI325X": "mi325x", "AMD Instinct MI355X": "mi355x",
    "Intel Gaudi 3 AI Accelerator": "gaudi3", "Google Cloud TPU v6e": "tpu-v6e", "AWS Trainium2": "trn2",
    "Huawei Ascend 910C": "ascend-910c",
}
STRANGERS = ("NVIDIA H100 PCIe", "NVIDIA H100 NVL", "NVIDIA A100 80GB PCIe", "NVIDIA A100-SXM4-40GB", "NVIDIA H200 NVL",
             "NVIDIA GH200 480GB", "NVIDIA RTX PRO 6000 Blackwell Workstation Edition", "AMD Instinct MI300A",
             "NVIDIA H20-3e", "NVIDIA H100 80GB HBM3 MIG 1g.10gb", "NVIDIA", "")


@pytest.mark.parametrize("printed", list(PRINTED))
def test_printed_names_lead_to_their_profile(printed: str) -> None:
    assert default_store().get("gpu", printed).name == PRINTED[printed]
    assert default_store().knows("gpu", printed.lower())


@pytest.mark.parametrize("printed", STRANGERS)
def test_variants_without_a_profile_stay_unknown(printed: str) -> None:
    assert not default_store().knows("gpu", printed)
    with pytest.raises(ProfileError, match="no gpu profile"):
        default_store().get("gpu", printed)


@pytest.mark.parametrize(("printed", "said"), [
    ("NVIDIA H100 PCIe", "'pcie' is no word of h100-sxm"),
    ("NVIDIA A100-SXM4-40GB", "'40gb' is no word of a100-80gb-sxm"),
    ("NVIDIA B30", "did you mean 'b300'?"),
])
def test_what_is_said_of_a_variant(printed: str, said: str) -> None:
    with pytest.raises(ProfileError) as caught:
        default_store().get("gpu", printed)
    assert said in caught.value.problems[0].hint


def test_own_profile_of_a_variant_comes_first(tmp_path: Path) -> None:
    shipped = default_store().path_of("gpu", "h100")
    text = shipped.read_text().replace("name: h100-sxm", "name: nvidia-h100-nvl")
    (tmp_path / "nvidia-h100-nvl.yaml").write_text("\n".join(
        line for line in text.splitlines() if not line.startswith("aliases:")))
    store = ProfileStore((tmp_path, *default_store().search_path))
    assert store.get("gpu", "NVIDIA H100 NVL").name == "nvidia-h100-nvl"
    assert store.get("gpu", "NVIDIA H100 80GB HBM3").name == "h100-sxm"


def test_every_shipped_name_still_leads_to_itself() -> None:
    store = default_store()
    for kind in KINDS:
        for file in (f for f in store.files() if f.kind == kind):
            assert {store.path_of(kind, name) for name in (file.name, *file.aliases)} == {file.path}


def test_names_that_two_profiles_share_mean_neither() -> None:
    names = {"x1-80gb": "x1-a", "x1-sxm": "x1-b"}
    assert meant("X1 80GB", names) == "x1-a"
    assert meant("X1", names) is None
    assert meant("X1 SXM 80GB", names) is None
    assert words_of("AMD Instinct(TM)") == frozenset()


def test_models_by_their_repository() -> None:
    store = default_store()
    assert store.get("model", "meta-llama/Meta-Llama-3.1-8B-Instruct").name == "llama-3.1-8b"
    for file in (f for f in store.files() if f.kind == "model"):
        source = next(s for s in store.get("model", file.name).sources.values() if s.title.endswith(" config.json"))
        assert store.path_of("model", source.title.removesuffix(" config.json")) == file.path


@pytest.mark.parametrize("name", ["Qwen/Qwen3-8B", "moonshotai/Kimi-K2-Instruct"])
def test_a_repository_without_a_profile_is_told_how_to_become_one(name: str) -> None:
    with pytest.raises(ProfileError) as caught:
        default_store().get("model", name)
    short = name.partition("/")[2].lower()
    assert f"'kvsim profiles import config.json --name {short} -o {short}.yaml'" in caught.value.problems[0].hint


def test_the_digest_of_a_profile_does_not_depend_on_how_it_was_asked_for() -> None:
    part = {"name": "x", "model": "llama-3.1-8b", "workload": {
        "fixed": {"num_requests": 3, "input_tokens": 100, "output_tokens": 4}, "concurrency": 1}}
    one, other = (kvsim.simulate({**part, "hardware": {"gpu": gpu, "num_gpus": 1}})
                  for gpu in ("h100-sxm", "NVIDIA H100 80GB HBM3"))
    assert one.run.profiles == other.run.profiles
    assert one.latency == other.latency
