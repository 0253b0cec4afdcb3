"""``kvsim import-log``: an engine's start-up log or metrics beside the prediction."""

from __future__ import annotations

from pathlib import Path

import click

from kvsim.commands.common import json_option, output_option, show, write, wrote


@click.command("import-log")
@click.argument("log", type=click.Path(path_type=Path))
@click.option("--scenario", help="What runs: a scenario's file or shipped name; the log's own arguments by default.")
@click.option("--gpu", help="GPU profile, with the log's own arguments.")
@click.option("--model", help="Model profile, where the log names a path.")
@click.option("--engine-profile", help="Engine profile, with the log's own arguments.")
@click.option("--set", "overrides", multiple=True, metavar="PATH=VALUE", help="Change one field of the scenario.")
@output_option("-o", "--output", text="Write the scenario with the logged pool here.")
@json_option
def import_log(log: Path, scenario: str | None, overrides: tuple[str, ...], output: Path | None, json_file: Path | None,
               **asked: str | None) -> None:
    """Read a start-up LOG of vLLM or SGLang, or metrics: set the pool, say why it differs from the prediction.

    LOG is a file, plain or gzip, or - for standard input.
    """
    from kvsim.interop.checking import check_log
    from kvsim.interop.importing import ImportOptions
    from kvsim.interop.logs import STDIN, read_log
    from kvsim.scenario import load_scenario

    found = read_log(STDIN if str(log) == "-" else log)
    base = load_scenario(scenario, overrides) if scenario is not None else None
    check = check_log(found, base, ImportOptions(overrides=overrides, **asked))
    text = check.text()
    if output is not None:
        write(output, check.yaml(), "--output")
        text += f"\n{wrote(output)}"
    show(text.rstrip(), json_file, check.to_dict())
