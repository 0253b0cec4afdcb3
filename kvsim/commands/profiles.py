"""``kvsim profiles``: browse, check and import profiles."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kvsim.commands.common import in_a_folder, json_option, show, write

if TYPE_CHECKING:
    from kvsim.profiles.store import Kind

KINDS = ("gpu", "node", "storage", "price", "api-price", "model", "engine")


@click.group()
def profiles() -> None:
    """Browse and check GPUs, nodes, storage, prices, models and engines."""


@profiles.command("list")
@click.argument("kind", type=click.Choice(KINDS), required=False)
def profiles_list(kind: Kind | None) -> None:
    """Names of all profiles, or of one KIND."""
    from kvsim.profiles.store import KINDS as ALL
    from kvsim.profiles.store import default_store

    store = default_store()
    for each in (kind,) if kind else ALL:
        click.echo(f"{each}: {', '.join(store.names(each))}")


@profiles.command("show")
@click.argument("name")
@click.option("--kind", type=click.Choice(KINDS), help="Needed only if two kinds share the name.")
@json_option
def profilesshow(name: str, kind: Kind | None, json_file: Path | None) -> None:
    """Every figure of one profile with its unit, kind and source."""
    from kvsim.profiles.show import find_profile, profile_text

    profile = find_profile(name, kind)
    show(profile_text(profile), json_file, profile.model_dump(mode="json", by_alias=True, exclude_none=True))


@profiles.command("check")
@click.argument("paths", nargs=-1, type=click.Path(exists=True, path_type=Path))
def profiles_check(paths: tuple[Path, ...]) -> None:
    """Check files or folders of profiles (all shipped ones by default)."""
    from kvsim.profiles.lint import check_paths

    count, problems = check_paths(paths)
    for problem in problems:
        click.echo(str(problem))
    click.echo(f"profiles: {count} checked, {len(problems)} problems")
    sys.exit(2 if problems else 0)


@profiles.command("import-measurements")
@click.argument("measurements", type=click.Path(dir_okay=False, path_type=Path))
@click.option("-o", "--output", type=click.Path(dir_okay=False, path_type=Path), callback=in_a_folder,
              help="Write the profile here instead of printing it.")
def profiles_import_measurements(measurements: Path, output: Path | None) -> None:
    """Put MEASUREMENTS of 'kvsim calibrate --microbench' into the GPU's profile.

    Name the written file as hardware.gpu, or keep it in a folder of KVSIM_PROFILES, where it replaces the shipped one.
    """
    from kvsim.profiles.measurements import measured_profile, read_measurements
    from kvsim.profiles.store import default_store

    text = measured_profile(read_measurements(measurements), default_store())
    if output is not None:
        write(output, text, "--output")
    click.echo(text if output is None else f"wrote {output}", nl=output is not None)


@profiles.command("import")
@click.argument("config", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--name", help="Name of the new profile; the file's folder name by default.")
@click.option("-o", "--output", type=click.Path(dir_okay=False, path_type=Path), callback=in_a_folder,
              help="Write here instead of printing.")
def profiles_import(config: Path, name: str | None, output: Path | None) -> None:
    """Turn a Hugging Face CONFIG (config.json) into a model profile."""
    from kvsim.profiles.hf_file import import_file

    text = import_file(config, name)
    if output is not None:
        write(output, text, "--output")
    click.echo(text if output is None else f"wrote {output}", nl=output is not None)
