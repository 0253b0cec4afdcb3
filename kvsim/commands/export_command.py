"""``kvsim export-command``: the launch line of a scenario or of a plan's winner."""

from __future__ import annotations

from pathlib import Path

import click

from kvsim.commands.common import json_option, output_option, show, write, wrote


@click.command("export-command")
@click.argument("scenario")
@click.option("--engine", type=click.Choice(["vllm", "sglang"]),
              help="Whose command; the engine profile's by default.")
@click.option("--set", "overrides", multiple=True, metavar="PATH=VALUE",
              help="Change one field, e.g. engine.kv_dtype=fp8.")
@output_option("-o", "--output",
               text="Write a shell script here instead of printing the command.")
@json_option
def export_command(scenario: str, engine: str | None, overrides: tuple[str, ...], output: Path | None,
                   json_file: Path | None) -> None:
    """Write the launch command of one replica of a SCENARIO: a YAML file, a shipped name, or a plan's JSON.

    Of a plan (kvsim plan --json) the cheapest option is taken. What no flag expresses is listed as comments.
    """
    from kvsim.interop.exporting import export_command as written
    from kvsim.interop.plans import load_scenario_or_plan

    found = written(load_scenario_or_plan(scenario, overrides), engine)
    if output is not None:
        write(output, f"#!/usr/bin/env bash\n{found.text()}\n", "--output")
    show(found.text() if output is None else wrote(output), json_file, found.to_dict())
