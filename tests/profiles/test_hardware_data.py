"""The shipped hardware, storage and price profiles, and how the store refuses broken ones."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from kvsim.errors import Problem, ProfileError
from kvsim.profiles.figure import figures_in
from kvsim.profiles.hardware import GpuProfile
from kvsim.profiles.lint import check_profiles
from kvsim.profiles.paths import data_root
from kvsim.profiles.physics import dense_bound, dense_problems
from kvsim.profiles.store import KINDS, ProfileStore, default_store, load_profile
from kvsim.units import to_base

HARDWARE = data_root() / "hardware_profiles"
FILES = sorted(HARDWARE.rglob("*.yaml"))
CORE_GPUS = ("a100-80gb-sxm", "h100-sxm", "h200-sxm", "h20", "b200-sxm", "b300-sxm", "gb200", "gb300", "mi300x",
             "mi325x", "mi355x", "rtx-pro-6000", "l40s")
GIB = 2.0**30
B300 = (HARDWARE / "gpus" / "b300-sxm.yaml").read_text()

Broken = Callable[[str, str], list[Problem]]


@pytest.fixture
def hardware() -> ProfileStore:
    return ProfileStore((HARDWARE,))


@pytest.fixture
def broken(tmp_path: Path) -> Broken:
    """Problems of the B300 profile with one text replaced."""
    def check(old: str, new: str) -> list[Problem]:
        assert old in B300
        path = tmp_path / "b300-sxm.yaml"
        path.write_text(B300.replace(old, new, 1))
        with pytest.raises(ProfileError) as caught:
            load_profile(path)
        assert all(p.where == str(path) and p.accepted for p in caught.value.problems)
        return list(caught.value.problems)

    return check


@pytest.mark.parametrize("path", FILES, ids=[str(p.relative_to(HARDWARE)) for p in FILES])
def test_every_shipped_profile_loads_and_names_itself(path: Path) -> None:
    profile = load_profile(path)
    assert profile.name == path.stem
    for where, figure in figures_in(profile):
        assert figure.kind != "assumed" or figure.why, where
        assert figure.base >= 0, where


def test_shipped_hardware_has_no_problem(hardware: ProfileStore) -> None:
    assert check_profiles(hardware) == []
    assert len(hardware.files()) == len(FILES)


def test_all_devices_are_there(hardware: ProfileStore) -> None:
    gpus = hardware.names("gpu")
    assert set(CORE_GPUS) <= set(gpus)
    for typed, name in (("B300", "b300-sxm"), ("h100", "h100-sxm"), ("A100", "a100-80gb-sxm"),
                        ("a100-80", "a100-80gb-sxm"), ("MI355", "mi355x"), ("GB300_NVL72", "gb300"),
                        ("RTX PRO 6000", "rtx-pro-6000")):
        assert hardware.get("gpu", typed).name == name
    assert {hardware.get("node", n).gpu for n in hardware.names("node")} >= set(CORE_GPUS)


@pytest.mark.parametrize(("name", "mib"), [
    ("a100-80gb-sxm", 81920), ("h100-sxm", 81559), ("h200-sxm", 143771), ("h20", 97871), ("b200-sxm", 183359),
    ("b300-sxm", 275040), ("gb200", 189471), ("gb300", 284208), ("l40s", 46068), ("rtx-pro-6000", 97887)])
def test_usable_memory_is_what_the_driver_reports(hardware: ProfileStore, name: str, mib: int) -> None:
    gpu = hardware.get("gpu", name)
    assert gpu.hbm_usable.base == mib * 2.0**20
    assert gpu.hbm_usable.kind == "measured"


def test_b300_in_base_units(hardware: ProfileStore) -> None:
    gpu = hardware.get("gpu", "b300")
    assert gpu.hbm_usable.base / GIB == pytest.approx(268.59, abs=0.005)
    assert gpu.hbm_usable.base * gpu.engine_visible_frac.base / GIB == pytest.approx(267.69, abs=0.01)
    # 7680-bit bus x 3996 MHz x 2 transfers
    assert gpu.hbm_bandwidth.base == pytest.approx(7680 / 8 * 3996e6 * 2, rel=1e-4)
    assert {lane: f.base for lane, f in gpu.flops.items()} == {"bf16": 2.25e15, "fp8": 4.5e15, "fp4": 1.35e16}
    assert gpu.scale_up.bandwidth.base == 900e9
    assert gpu.host_link.to_gpu is not None
    assert gpu.host_link.to_gpu.base == 57.7e9


def test_measured_host_links(hardware: ProfileStore) -> None:
    rates = {name: hardware.get("gpu", name).host_link.to_gpu for name in ("h100", "h200", "gb300")}
    assert {name: (f.kind, f.base) for name, f in rates.items() if f} == {
        "h100": ("measured", 50e9), "h200": ("measured", 55.42e9), "gb300": ("measured", 172e9)}


def test_nodes_share_a_host_and_are_bought_in_units(hardware: ProfileStore) -> None:
    node = hardware.get("node", "hgx-b300-8")
    assert node.host_dram is not None
    assert node.host_dram.available is not None
    assert node.host_dram.available.base == 2964436 * 2**20
    rack = hardware.get("node", "gb300-nvl72")
    assert (rack.num_gpus.base, rack.buying_unit.unit, rack.buying_unit.num_gpus.base) == (4, "rack", 72)


def test_prices_name_their_basis(hardware: ProfileStore) -> None:
    rental = hardware.get("price", "rental-2026-09")
    assert (rental.basis, rental.usd_per_gpu_hour["b300-sxm"].base) == ("contract", 4.25)
    owned = hardware.get("price", "owned-2026-07")
    assert owned.basis == "owned"
    assert owned.owned is not None
    assert owned.owned.electricity.base == 0.0929
    assert hardware.get("price", "list-2026-10").basis == "on-demand"
    api = hardware.get("api-price", "moonshot-k3")
    assert (api.input.base, api.cached_input.base, api.output.base) == (3.0, 0.3, 15.0)
    assert hardware.get("storage", "ddr5").capex.base == pytest.approx(10.9e-9)


# The H20 is capped far below its SMs, and no boost clock of it is published.
@pytest.mark.parametrize("name", [n for n in CORE_GPUS if n != "h20"])
def test_flops_are_dense_and_twice_them_would_be_refused(hardware: ProfileStore, name: str) -> None:
    gpu = hardware.get("gpu", name)
    bound = dense_bound(gpu)
    assert bound is not None
    bf16 = gpu.flops["bf16"]
    assert bound / bf16.base == pytest.approx(1.0, abs=0.12)
    sparse = gpu.model_copy(update={"flops": {"bf16": bf16.model_copy(update={"value": bf16.value * 2})}})
    assert [p.field for p in dense_problems(sparse, name)] == ["flops.bf16"]


def test_unknown_name_is_answered_with_the_nearest(hardware: ProfileStore) -> None:
    with pytest.raises(ProfileError) as caught:
        hardware.get("gpu", "b30O")
    problem = caught.value.problems[0]
    assert "b300" in problem.hint
    assert "h100-sxm" in problem.accepted
    assert "'b30O'" in problem.given


def test_missing_unit_lists_the_units_of_its_dimension(broken: Broken) -> None:
    problem, = broken("unit: MiB", "#")
    assert (problem.field, problem.given) == ("hbm_usable.unit", "")
    assert "GiB" in problem.accepted
    assert "GB/s" not in problem.accepted


def test_unknown_unit_lists_the_units_of_its_dimension(broken: Broken) -> None:
    problem, = broken("unit: MiB", "unit: MIB")
    assert (problem.field, problem.given) == ("hbm_usable", "unknown unit 'MIB'")
    assert "MiB" in problem.accepted
    assert "GB/s" not in problem.accepted


def test_wrong_dimension_lists_the_units_that_fit(broken: Broken) -> None:
    problem, = broken("unit: MiB", "unit: GB/s")
    assert problem.field == "hbm_usable"
    assert "GiB" in problem.accepted


def test_duplicate_key_names_file_key_and_line(broken: Broken) -> None:
    problem, = broken("vendor: nvidia", "vendor: nvidia\nvendor: amd")
    assert problem.field == "vendor"
    assert "line 5" in problem.given


@pytest.mark.parametrize("value", ["-5", ".nan", ".inf", "true", '"275040"', "lots"])
def test_values_that_are_no_amounts_are_refused(broken: Broken, value: str) -> None:
    problem, = broken("value: 275040", f"value: {value}")
    assert problem.field.startswith("hbm_usable")


def test_sparse_flops_are_refused_with_the_dense_figure(broken: Broken) -> None:
    problem, = broken("bf16: {value: 2250", "bf16: {value: 4500")
    assert (problem.field, problem.given) == ("flops.bf16", "4500 TFLOPS")
    assert "dense" in problem.accepted
    assert "sparse" in problem.hint


def test_sparse_fp8_is_refused_without_sm_count(broken: Broken) -> None:
    problem, = broken("fp8: {value: 4500", "fp8: {value: 9000")
    assert problem.field == "flops.fp8"


def test_unknown_key_is_answered_with_the_nearest(broken: Broken) -> None:
    problem, = broken("boost_clock:", "bost_clock:")
    assert problem.field == "bost_clock"
    assert "boost_clock" in problem.hint


def test_assumed_figure_needs_why_and_range(broken: Broken) -> None:
    problem, = broken("unit: W, kind: nominal", "unit: W, kind: assumed")
    assert problem.field == "tdp"
    assert "range" in problem.accepted


def test_source_that_is_not_defined_is_refused(broken: Broken) -> None:
    unresolved, unused = broken("unit: W, kind: nominal, source: gpu-keys",
                                "unit: W, kind: nominal, source: quickruncud")
    assert (unresolved.field, unresolved.given) == ("tdp.source", "'quickruncud'")
    assert "quickruncuda" in unresolved.accepted
    assert "quickruncuda" in unresolved.hint
    assert unused.field == "sources.gpu-keys"


def test_all_problems_come_at_once(broken: Broken) -> None:
    text = "vendor: nvidia\narchitecture: blackwell"
    problems = broken(text, "vendor: nvidea\narchitecture: blackwel\nspeed: 9")
    assert [p.field for p in problems] == ["vendor", "architecture", "speed"]
    assert ["nvidia" in problems[0].hint, "blackwell" in problems[1].hint] == [True, True]


@pytest.mark.parametrize(("text", "field"), [
    ("name: x\n", "schema"), ("schema: kvsim/gpuu/1\n", "schema"), ("- 1\n", ""), ("a: [\n", "")])
def test_files_that_are_no_profiles(tmp_path: Path, text: str, field: str) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(text)
    with pytest.raises(ProfileError) as caught:
        load_profile(path)
    assert [(p.where, p.field) for p in caught.value.problems] == [(str(path), field)]


def test_missing_file_is_an_error_with_its_path(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match=r"none\.yaml"):
        load_profile(tmp_path / "none.yaml")


def test_users_replace_and_add_profiles(tmp_path: Path) -> None:
    (tmp_path / "b300-sxm.yaml").write_text(B300.replace("value: 1200", "value: 900").replace("aliases: [", "# ["))
    mine = B300.replace("name: b300-sxm", "name: my-gpu").replace("aliases: [b300,", "aliases: [mine,")
    (tmp_path / "my-gpu.yaml").write_text(mine.replace("hgx-b300", "my-hgx"))
    store = ProfileStore((tmp_path, HARDWARE))
    assert store.get("gpu", "b300").tdp.base == 900, "the alias of the shipped file leads to the user's"
    assert store.get("gpu", "mine").name == "my-gpu"
    assert "b200-sxm" in store.names("gpu")
    assert store.path_of("gpu", "mine") == tmp_path / "my-gpu.yaml"


def test_default_store_reads_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "new-gpu.yaml").write_text(B300.replace("name: b300-sxm", "name: new-gpu").replace("aliases: [", "# ["))
    monkeypatch.setenv("KVSIM_PROFILES", os.pathsep.join([str(tmp_path)]))
    assert default_store().get("gpu", "new-gpu").name == "new-gpu"
    monkeypatch.setenv("KVSIM_PROFILES", str(tmp_path / "nowhere"))
    with pytest.raises(ProfileError, match="nowhere"):
        default_store().names("gpu")
    monkeypatch.delenv("KVSIM_PROFILES")
    assert "new-gpu" not in default_store().names("gpu")


def test_two_profiles_may_not_share_an_alias(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / f"{name}.yaml").write_text(B300.replace("name: b300-sxm", f"name: {name}"))
    with pytest.raises(ProfileError) as caught:
        ProfileStore((tmp_path,)).names("gpu")
    assert {p.where for p in caught.value.problems} == {str(tmp_path / "two.yaml")}
    assert "one.yaml" in caught.value.problems[0].accepted


def test_profile_by_path_digest_and_wrong_kind(hardware: ProfileStore) -> None:
    path = HARDWARE / "gpus" / "h100-sxm.yaml"
    gpu = hardware.get("gpu", str(path))
    assert isinstance(gpu, GpuProfile)
    assert hardware.digest(gpu) == hashlib.sha256(path.read_bytes()).hexdigest()
    assert hardware.get("gpu", "h100") is hardware.get("gpu", "H100-SXM")
    with pytest.raises(ProfileError, match="kvsim/node/1"):
        hardware.get("node", str(path))
    with pytest.raises(ProfileError, match="did not come from"):
        hardware.digest(load_profile(path))


def test_lint_finds_names_references_and_contradictions(tmp_path: Path) -> None:
    def put(name: str, folder: str, old: str, new: str) -> None:
        text = (HARDWARE / folder).read_text()
        assert old in text
        (tmp_path / name).write_text(text.replace(old, new, 1))

    (tmp_path / "h100-sxm.yaml").write_text((HARDWARE / "gpus" / "h100-sxm.yaml").read_text())
    put("renamed.yaml", "gpus/h200-sxm.yaml", "value: 4800", "value: 4800.0")
    put("b300-sxm.yaml", "gpus/b300-sxm.yaml", "value: 275040", "value: 375040")
    put("h20.yaml", "gpus/h20.yaml", "value: 0.99626", "value: 0.5")
    put("mi300x.yaml", "gpus/mi300x.yaml", "value: 55", "value: 65")
    put("hgx-b200-8.yaml", "nodes/hgx-b200-8.yaml", "value: 3095781", "value: 4095781")
    put("hgx-h100-8.yaml", "nodes/hgx-h100-8.yaml", "gpu: h100-sxm", "gpu: h100-smx")
    put("rental-2026-09.yaml", "prices/rental-2026-09.yaml", "h100-sxm:", "h100:")
    (tmp_path / "stray.yaml").write_text("schema: kvsim/gup/1\n")
    found = {(Path(p.where).name, p.field) for p in check_profiles(ProfileStore((tmp_path,)))}
    assert found >= {("renamed.yaml", "name"), ("b300-sxm.yaml", "hbm_usable"), ("h20.yaml", "engine_visible_frac"),
                     ("mi300x.yaml", "host_link.to_gpu"), ("hgx-h100-8.yaml", "gpu"),
                     ("hgx-b200-8.yaml", "host_dram.available"),
                     ("rental-2026-09.yaml", "usd_per_gpu_hour"), ("stray.yaml", "schema")}


def test_kinds_have_profiles_or_say_none(hardware: ProfileStore) -> None:
    assert {kind for kind in KINDS if hardware.names(kind)} == {"gpu", "node", "storage", "price", "api-price"}
    with pytest.raises(ProfileError, match="no engine profile"):
        hardware.path_of("engine", "vllm")


def test_capacities_keep_iec_units() -> None:
    assert to_base(275040, "MiB", "B") == 288_400_343_040
