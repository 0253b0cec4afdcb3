"""``kvsim validate``: compare with published and measured answers."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from kvsim.commands.common import json_option, output_option, progress, say, score, show, words, write


@click.group()
def validate() -> None:
    """Compare with published and measured answers; the last line is the score."""


@validate.command("capacity")
@click.argument("cases", type=click.Path(path_type=Path))
@json_option
def validate_capacity(cases: Path, json_file: Path | None) -> None:
    """Check KV capacities that engines logged (a CSV of CASES).

    Names in the JSON: cases[].name, cases[].exact, cases[].difference (null where exact), exact, total.
    """
    from kvsim.profiles.store import default_store
    from kvsim.validate.capacity_cases import check_capacity

    results = check_capacity(cases, default_store())
    for case in results:
        say(f"{case.id}: {case.difference or 'exact'}")
    score("capacity cases", [(case.id, case.difference) for case in results], json_file)


@validate.command("engine")
@click.argument("cases", type=click.Path(path_type=Path))
@click.option("--kinds", callback=words, help="Only these kinds of cases, e.g. chat,hybrid,k3.")
@click.option("--engine", type=click.Choice(["core", "reference"]), default="core", show_default=True,
              help="The fast engine, or the one that spells out its rules.")
@json_option
def validate_engine(cases: Path, kinds: tuple[str, ...], engine: str, json_file: Path | None) -> None:
    """Compare every decision with recorded runs of a real scheduler (a folder of CASES).

    Names in the JSON: cases[].name, cases[].exact, cases[].difference (null where exact), exact, total.
    """
    from kvsim.simulation import ENGINES
    from kvsim.validate.engine_cases import run_cases

    results = run_cases([cases], kinds, ENGINES[engine])
    for case in results:
        if case.difference:
            say(f"{case.name}: {case.difference}")
    score("engine cases", [(case.name, str(case.difference or "")) for case in results], json_file)


@validate.command("gpu-runs")
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--calibrate-on", callback=words, help="Labels of runs to fit on; they are not scored then.")
@json_option
def validate_gpu_runs(files: tuple[Path, ...], calibrate_on: tuple[str, ...], json_file: Path | None) -> None:
    """Simulate measured runs of a real engine (JSON lines) and compare."""
    from kvsim.validate.gpu_runs import run_gpu_runs

    result = run_gpu_runs(files, calibrate_on)
    show(result.text(), json_file, result.to_dict())


@validate.command("results")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--scenario", required=True, help="What the results were measured on: a file or a shipped name.")
@json_option
def validate_results(file: Path, scenario: str, json_file: Path | None) -> None:
    """Compare a benchmark's saved results (vLLM bench, GuideLLM, AIPerf) with a scenario."""
    from kvsim.scenario import load_scenario
    from kvsim.validate.bench_results import compare_results

    result = compare_results(file, load_scenario(scenario))
    show(result.text(), json_file, result.to_dict())


@validate.command("published")
@click.option("--quick", is_flag=True, help="Leave out what takes simulations.")
@click.option("--seeds", type=click.IntRange(min=1), default=11, show_default=True, help="Seeds of the K3 study.")
@output_option("-o", "--output", text="Also write the reproductions page, a Markdown file.")
@json_option
def validate_published(quick: bool, seeds: int, output: Path | None, json_file: Path | None) -> None:
    """Compare with published results and recordings, each with the band that was fixed for it."""
    from kvsim.validate.claims_serving import K3Runs
    from kvsim.validate.published import check_published

    result = check_published(K3Runs(seeds, advance=progress()), quick)
    if output is not None:
        write(output, result.markdown(), "-o")
    show(result.text(), json_file, result.to_dict())
    sys.exit(0 if all(f.hit for f in result.findings) else 1)
