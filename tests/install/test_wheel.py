"""What a stranger gets: a wheel with its data, installed without the checkout, small, and quick to start."""

from __future__ import annotations

import importlib.metadata
import json
import os
import subprocess
import sys
import tarfile
import venv
from pathlib import Path

import pytest

from kvsim.cli import COMMANDS

ROOT = Path(__file__).resolve().parent.parent.parent
DATA_FOLDERS = ("hardware_profiles", "models", "engine_profiles", "scenarios", "recipes", "calibrations")
MAX_CORE_BYTES = 150e6
# What no help text needs: each costs a tenth of a second or more.
HEAVY = ("streamlit", "plotly", "simpy", "pandas", "pyarrow", "scipy", "ray", "rich", "numpy", "pydantic", "yaml")
BUILD = "import sys; from hatchling.build import {0} as build; print(build(sys.argv[1]))"


def build(what: str, source: Path, target: Path) -> Path:
    """Build a wheel or sdist with the project's own backend, which is installed: nothing is downloaded."""
    command = [sys.executable, "-c", BUILD.format(what), str(target)]
    done = subprocess.run(command, cwd=source, capture_output=True, text=True, check=True)
    return target / done.stdout.split()[-1]


class Installed:
    """An environment of its own with the wheel in it; what kvsim depends on is read from this one."""

    def __init__(self, folder: Path, wheel: Path) -> None:
        venv.create(folder / "venv", with_pip=False, symlinks=True)
        self.python = folder / "venv" / "bin" / "python"
        pip = [sys.executable, "-m", "pip", "--python", str(self.python), "install", "--quiet", "--no-deps",
               "--no-index", "--disable-pip-version-check", str(wheel)]
        subprocess.run(pip, cwd=folder, check=True, env=plain_environment())
        self.site = next((folder / "venv" / "lib").glob("python*/site-packages"))
        here = Path(str(importlib.metadata.distribution("numpy").locate_file(""))).resolve()
        (self.site / "dependencies.pth").write_text(f"{here}\n")
        self.empty = folder / "empty"
        self.empty.mkdir()

    def __call__(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run the installed ``kvsim`` from an empty folder."""
        return subprocess.run([str(self.python.with_name("kvsim")), *arguments], cwd=self.empty, capture_output=True,
                              text=True, check=False, env=plain_environment())


def plain_environment() -> dict[str, str]:
    """The environment without what this test run or a checkout set."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("KVSIM_", "PYTHON", "COV_"))}


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """The wheel that is built from the source distribution, which so must hold all that a build needs."""
    folder = tmp_path_factory.mktemp("install")
    archive = build("build_sdist", ROOT, folder)
    with tarfile.open(archive) as content:
        content.extractall(folder / "source", filter="data")
    source = next((folder / "source").iterdir())
    return Installed(folder, build("build_wheel", source, folder))


@pytest.mark.slow
def test_a_shipped_scenario_runs_from_an_empty_folder(installed: Installed) -> None:
    done = installed("run", "k3-b300-cliff", "--set", "workload.duration_s=5 min", "--json", "out.json")
    assert done.returncode == 0, done.stderr
    assert "kimi-k3 on 8 x b300-sxm" in done.stdout
    report = json.loads((installed.empty / "out.json").read_text())
    assert report["run"]["version"] == importlib.metadata.version("kvsim")
    assert [path.name for path in installed.empty.iterdir()] == ["out.json"]


@pytest.mark.slow
def test_the_installed_package_is_not_the_checkout(installed: Installed) -> None:
    code = "import kvsim, kvsim.profiles.paths as p; print(kvsim.__file__, p.data_root())"
    done = subprocess.run([str(installed.python), "-c", code], cwd=installed.empty, capture_output=True, text=True,
                          check=True, env=plain_environment())
    package, data = (Path(text) for text in done.stdout.split())
    assert package.is_relative_to(installed.site)
    assert data == package.parent / "_data"


@pytest.mark.slow
@pytest.mark.parametrize("folder", DATA_FOLDERS)
def test_every_data_file_is_in_the_wheel(installed: Installed, folder: str) -> None:
    def names(root: Path) -> set[str]:
        return {path.relative_to(root).as_posix() for path in root.rglob("*.yaml")}

    assert names(ROOT / folder)
    assert names(installed.site / "kvsim" / "_data" / folder) == names(ROOT / folder)


@pytest.mark.slow
def test_recipes_calibrations_and_typing_are_found(installed: Installed) -> None:
    done = installed("import-command", "kimi-k3-b300-vllm-day0", "-o", "k3.yaml")
    assert done.returncode == 0, done.stderr
    assert (installed.site / "kvsim" / "py.typed").is_file()
    (installed.empty / "k3.yaml").unlink()


def test_a_core_install_is_small() -> None:
    """Dependencies of the core by the sizes that their files have here, and kvsim with its data."""
    lines = (ROOT / "requirements-core.lock").read_text().splitlines()
    total = 0
    for name in (line.split("==")[0] for line in lines if line and not line.startswith("#")):
        for file in importlib.metadata.distribution(name).files or ():
            path = Path(str(file.locate()))
            total += path.stat().st_size if path.is_file() else 0
    for folder in ("kvsim", *DATA_FOLDERS):
        total += sum(path.stat().st_size for path in (ROOT / folder).rglob("*")
                     if path.is_file() and "__pycache__" not in path.parts)
    assert 30e6 < total < MAX_CORE_BYTES


def test_no_help_text_loads_what_only_runs_need() -> None:
    """One process asks every command for its help: what it has loaded in the end, none of them waits for."""
    code = ("import importlib, sys, click\n"
            "from kvsim.cli import cli, COMMANDS\n"
            "def ask(command, context):\n"
            "    command.get_help(context)\n"
            "    for name in command.list_commands(context) if isinstance(command, click.Group) else ():\n"
            "        sub = command.get_command(context, name)\n"
            "        ask(sub, click.Context(sub, parent=context, info_name=name))\n"
            "ask(cli, click.Context(cli, info_name='kvsim'))\n"
            "print(*sorted({m.split('.')[0] for m in sys.modules}))\n"
            "print(*sorted(m for m in sys.modules if m.startswith('kvsim.commands.')))\n")
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    loaded, commands = (set(line.split()) for line in done.stdout.splitlines())
    assert len(commands) > len(COMMANDS) // 2
    assert not loaded & set(HEAVY), "a help text loads what only runs need"
