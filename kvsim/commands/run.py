"""``kvsim run``: simulate a scenario."""

from __future__ import annotations

from pathlib import Path

import click

from kvsim.commands.common import json_option, output_option, progress, show, write


@click.command()
@click.argument("scenario")
@click.option("--set", "overrides", multiple=True, metavar="PATH=VALUE",
              help="Change one field, e.g. engine.kv_dtype=fp8.")
@click.option("--seed", type=click.IntRange(min=0), help="Seed; the same as --set seed=N.")
@output_option("--trace-events", "trace_file",
               text="Write the first run's requests as trace events (JSON), which ui.perfetto.dev opens.")
@click.option("--uncertainty", "draws", type=click.IntRange(min=1), metavar="N",
              help="Also draw the figures that have ranges N times: intervals, and what would flip the result.")
@json_option
def run(scenario: str, overrides: tuple[str, ...], seed: int | None, trace_file: Path | None, draws: int | None,
        json_file: Path | None) -> None:
    """Simulate a SCENARIO, given as a YAML file or a shipped name."""
    from kvsim.report.report import plain
    from kvsim.scenario import load_scenario
    from kvsim.study import run_study, run_text

    given = overrides if seed is None else (*overrides, f"seed={seed}")
    loaded, bar = load_scenario(scenario, given), progress()
    study = run_study(loaded, progress=bar)
    text, data = run_text(study), study.to_dict()
    if draws is not None:
        from kvsim.uncertainty import decision_flips, flips_text, uncertainty, uncertainty_text

        one = loaded.model_copy(update={"study": None})
        found = uncertainty(one, draws, (lambda share: bar("uncertainty", share)) if bar else None)
        stresses = decision_flips(one)
        text = "\n\n".join([text, uncertainty_text(found), flips_text(stresses)])
        data |= {"uncertainty": found.to_dict(), "stresses": [plain(s) for s in stresses]}
    show(text, json_file, data)
    if trace_file is not None:
        from kvsim.report.trace_events import trace_events_json

        write(trace_file, trace_events_json(study.rows[0].reports[0]), "--trace-events")
