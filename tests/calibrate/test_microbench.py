"""The microbenchmark's file; measuring itself needs a GPU."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from kvsim.calibrate import microbench
from kvsim.calibrate.microbench import Copy, Gemm, Measurements
from kvsim.errors import ProfileError
from kvsim.profiles.figure import Figure
from kvsim.profiles.yamlio import parse_yaml

MEASURED = Measurements(
    device='A "GPU"', software="PyTorch 2.11", date="2026-11-30", read_bytes_per_s=4.4e12, copy_bytes_per_s=4.0e12,
    launch_s=1.1e-6, eager_launch_s=4e-6, sustained_flop_per_s=6.8e14,
    gemms=(Gemm(1, 4096, 14336, 32e-6), Gemm(8192, 4096, 14336, 1.2e-3)),
    copies=(Copy(1 << 20, 39e9, 46e9), Copy(1 << 30, 55.2e9, 55.3e9)))


def test_the_overlay_is_yaml_with_measured_figures() -> None:
    data = parse_yaml(MEASURED.to_yaml("h200-sxm"), "overlay", ProfileError)
    assert data["gpu"] == "h200-sxm"
    assert data["device"] == 'A "GPU"'
    figures = [data["host_link"]["to_gpu"], data["host_link"]["from_gpu"], data["hbm_read"], data["gemm_sustained"],
               data["kernel_in_graph"], *(row["time"] for row in data["gemms"])]
    checked = [Figure.model_validate(figure) for figure in figures]
    assert [f.base for f in checked] == pytest.approx([55.2e9, 55.3e9, 4.4e12, 6.8e14, 1.1e-6, 32e-6, 1.2e-3])
    assert {f.kind for f in checked} == {"measured"}
    assert {f.source for f in checked} <= data["sources"].keys()


def test_rates_of_a_product() -> None:
    gemm = Gemm(1, 4096, 14336, 32e-6)
    assert gemm.flop_per_s == pytest.approx(2 * 4096 * 14336 / 32e-6)
    assert gemm.weight_bytes_per_s == pytest.approx(3.67e12, rel=1e-3)


def test_without_a_gpu_it_says_what_it_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ProfileError, match="a Python with PyTorch"):
        microbench.main(["--gpu", "h200-sxm", "-o", str(tmp_path / "x.yaml")])
    assert not (tmp_path / "x.yaml").exists()


def test_it_runs_on_the_standard_library(repo_root: Path) -> None:
    code = ("import sys; sys.modules['pydantic'] = sys.modules['yaml'] = sys.modules['numpy'] = None; "
            "import kvsim.calibrate.microbench; print('torch' in sys.modules)")
    done = subprocess.run([sys.executable, "-c", code], cwd=repo_root, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
