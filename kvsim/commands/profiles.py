"""``kvsim profiles``: browse, check and import profiles."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kvsim.commands.common import json_option, output_option, say, show, write, write_json, wrote

if TYPE_CHECKING:
    from kvsim.profiles.store import Kind

KINDS = ("gpu", "node", "storage", "price", "api-price", "model", "engine", "draft")


@click.group()
def profiles() -> None:
    """Browse and check GPUs, nodes, storage, prices, models, engines and draft models."""


@profiles.command("list")
@click.argument("kind", type=click.Choice(KINDS), required=False)
@json_option
def profiles_list(kind: Kind | None, json_file: Path | None) -> None:
    """Names of all profiles, or of one KIND; in the JSON a list by kind."""
    from kvsim.profiles.store import KINDS as ALL
    from kvsim.profiles.store import default_store

    store = default_store()
    found = {each: store.names(each) for each in ((kind,) if kind else ALL)}
    show("\n".join(f"{each}: {', '.join(names)}" for each, names in found.items()), json_file, found)


@profiles.command("show")
@click.argument("name")
@click.option("--kind", type=click.Choice(KINDS), help="Needed only if two kinds share the name.")
@json_option
def profiles_show(name: str, kind: Kind | None, json_file: Path | None) -> None:
    """Every figure of one profile with its unit, kind and source."""
    from kvsim.profiles.show import find_profile, profile_text

    profile = find_profile(name, kind)
    show(profile_text(profile), json_file, profile.model_dump(mode="json", by_alias=True, exclude_none=True))


@profiles.command("check")
@click.argument("paths", nargs=-1, type=click.Path(exists=True, path_type=Path))
@json_option
def profiles_check(paths: tuple[Path, ...], json_file: Path | None) -> None:
    """Check files or folders of profiles (all shipped ones by default).

    Names in the JSON: checked (how many), problems[] (text).
    """
    from kvsim.profiles.lint import check_paths

    count, problems = check_paths(paths)
    for problem in problems:
        say(str(problem))
    write_json(json_file, {"checked": count, "problems": [str(problem) for problem in problems]})
    say(f"profiles: {count} checked, {len(problems)} problems")
    sys.exit(2 if problems else 0)


@profiles.command("import-measurements")
@click.argument("measurements", type=click.Path(dir_okay=False, path_type=Path))
@output_option("-o", "--output", text="Write the profile here instead of printing it.")
@json_option
def profiles_import_measurements(measurements: Path, output: Path | None, json_file: Path | None) -> None:
    """Put MEASUREMENTS of 'kvsim calibrate --microbench' into the GPU's profile.

    Name the written file as hardware.gpu, or keep it in a folder of KVSIM_PROFILES, where it replaces the shipped one.
    """
    from kvsim.profiles.measurements import measured_profile, read_measurements
    from kvsim.profiles.store import default_store

    _give(measured_profile(read_measurements(measurements), default_store()), output, json_file)


@profiles.command("import")
@click.argument("config", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--name", help="Name of the new profile; the file's folder name by default.")
@output_option("-o", "--output", text="Write here instead of printing.")
@json_option
def profiles_import(config: Path, name: str | None, output: Path | None, json_file: Path | None) -> None:
    """Turn a Hugging Face CONFIG (config.json) into a model profile."""
    from kvsim.profiles.hf_file import import_file

    _give(import_file(config, name), output, json_file)


def _give(text: str, output: Path | None, json_file: Path | None) -> None:
    """Print a profile or write it into a file; its fields as JSON too, if asked."""
    from kvsim.profiles.store import load_text

    if output is not None:
        write(output, text, "--output")
    say(text if output is None else wrote(output), nl=output is not None)
    if json_file is not None:
        found = load_text(text, "the profile")
        write_json(json_file, found.model_dump(mode="json", by_alias=True, exclude_none=True))
