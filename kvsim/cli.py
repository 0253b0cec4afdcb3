"""The command line: parse, call, print. Everything it shows is made elsewhere."""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kvsim.errors import KvsimError, Problem, ScenarioError

if TYPE_CHECKING:
    from kvsim.profiles.store import Kind

EXIT_BUG = 70
KINDS = ("gpu", "node", "storage", "price", "api-price", "model", "engine")


def _in_a_folder(_ctx: click.Context, _param: click.Parameter, path: Path | None) -> Path | None:
    """Refuse a file in a folder that does not exist before a long run, not after it."""
    if path is not None and not path.absolute().parent.is_dir():
        raise click.BadParameter(f"the folder of {str(path)!r} does not exist.")
    return path


json_option = click.option("--json", "json_file", type=click.Path(dir_okay=False, path_type=Path),
                           callback=_in_a_folder, help="Also write the result to this file as JSON.")


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="kvsim")
def cli() -> None:
    """KV-cache capacity and LLM serving-cost simulator."""


@cli.command()
@click.argument("scenario")
@click.option("--set", "overrides", multiple=True, metavar="PATH=VALUE",
              help="Change one field, e.g. engine.kv_dtype=fp8.")
@click.option("--seed", type=click.IntRange(min=0), help="Seed; the same as --set seed=N.")
@json_option
def run(scenario: str, overrides: tuple[str, ...], seed: int | None, json_file: Path | None) -> None:
    """Simulate a SCENARIO, given as a YAML file or a shipped name."""
    from kvsim.scenario import load_scenario
    from kvsim.study import run_study, run_text

    given = overrides if seed is None else (*overrides, f"seed={seed}")
    study = run_study(load_scenario(scenario, given), progress=_progress())
    _show(run_text(study), json_file, study.to_dict())


@cli.command()
@click.option("--model", required=True, help="Model profile, e.g. kimi-k3.")
@click.option("--gpu", required=True, help="GPU profile, e.g. b300.")
@click.option("--num-gpus", type=click.IntRange(min=1), default=1, show_default=True)
@click.option("--tp", type=click.IntRange(min=1), default=1, show_default=True, help="Tensor parallel degree.")
@click.option("--pp", type=click.IntRange(min=1), default=1, show_default=True, help="Pipeline stages.")
@click.option("--ep", type=click.IntRange(min=1), default=1, show_default=True, help="Expert parallel degree.")
@click.option("--dp", type=click.IntRange(min=1), default=1, show_default=True, help="Attention data parallel degree.")
@click.option("--dcp", type=click.IntRange(min=1), default=1, show_default=True, help="Decode context parallel degree.")
@click.option("--kv-dtype", default="bf16", show_default=True, help="bf16, fp8 or fp8_ds_mla.")
@click.option("--gpu-memory-utilization", type=float, help="Share of the GPU's total that the engine may use.")
@click.option("--max-model-len", type=click.IntRange(min=1), help="Longest request; the model's maximum by default.")
@click.option("--max-num-seqs", type=click.IntRange(min=1), help="Most running requests.")
@click.option("--max-num-batched-tokens", type=click.IntRange(min=1), help="Token budget of a step.")
@click.option("--prefix-caching/--no-prefix-caching", default=True, show_default=True)
@click.option("--draft", default="none", show_default=True, help="none, mtp-kN, dspark-fp8-kN or dspark-bf16-kN.")
@click.option("--engine-profile", "profile", default="vllm-day0", show_default=True)
@json_option
def capacity(json_file: Path | None, **asked: Any) -> None:
    """How much KV cache fits: budget, blocks, tokens and sessions by context length."""
    from kvsim.capacity import capacity_text, kv_capacity
    from kvsim.report.report import plain

    try:
        answer = kv_capacity(**asked)
    except KvsimError as err:
        raise type(err)(err.message, [_flag(p) for p in err.problems]) from None
    _show(capacity_text(answer), json_file, plain(answer.capacity))


@cli.group()
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
def profiles_show(name: str, kind: Kind | None, json_file: Path | None) -> None:
    """Every figure of one profile with its unit, kind and source."""
    from kvsim.profiles.show import find_profile, profile_text

    profile = find_profile(name, kind)
    _show(profile_text(profile), json_file, profile.model_dump(mode="json", by_alias=True, exclude_none=True))


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


@profiles.command("import")
@click.argument("config", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--name", help="Name of the new profile; the file's folder name by default.")
@click.option("-o", "--output", type=click.Path(dir_okay=False, path_type=Path), callback=_in_a_folder,
              help="Write here instead of printing.")
def profiles_import(config: Path, name: str | None, output: Path | None) -> None:
    """Turn a Hugging Face CONFIG (config.json) into a model profile."""
    from kvsim.profiles.hf_file import import_file

    text = import_file(config, name)
    if output is not None:
        _write(output, text, "--output")
    click.echo(text if output is None else f"wrote {output}", nl=output is not None)


@cli.group()
def validate() -> None:
    """Compare with published and measured answers; the last line is the score."""


@validate.command("capacity")
@click.argument("cases", type=click.Path(path_type=Path))
def validate_capacity(cases: Path) -> None:
    """Check KV capacities that engines logged (a CSV of CASES)."""
    from kvsim.profiles.store import default_store
    from kvsim.validate.capacity_cases import check_capacity

    results = check_capacity(cases, default_store())
    for case in results:
        click.echo(f"{case.id}: {case.difference or 'exact'}")
    _score("capacity cases", [case.exact for case in results])


@validate.command("engine")
@click.argument("cases", type=click.Path(path_type=Path))
@click.option("--kinds", help="Only these kinds of cases, e.g. chat,hybrid,k3.")
@click.option("--engine", type=click.Choice(["core", "reference"]), default="core", show_default=True)
def validate_engine(cases: Path, kinds: str | None, engine: str) -> None:
    """Compare every decision with recorded runs of a real scheduler (a folder of CASES)."""
    from kvsim.simulation import ENGINES
    from kvsim.validate.engine_cases import run_cases

    chosen = tuple(kinds.split(",")) if kinds else ()
    results = run_cases([cases], chosen, ENGINES[engine])
    for case in results:
        if case.difference:
            click.echo(f"{case.name}: {case.difference}")
    _score("engine cases", [not case.difference for case in results])


@cli.command()
@click.option("--port", type=click.IntRange(1, 65535), default=8501, show_default=True)
def app(port: int) -> None:
    """Open the what-if dashboard in a browser (needs the dashboard extra)."""
    from kvsim.dashboard.launch import launch

    sys.exit(launch(port))


def _score(what: str, exact: list[bool]) -> None:
    click.echo(f"{what}: {sum(exact)}/{len(exact)} exact")
    sys.exit(0 if all(exact) else 1)


def _show(text: str, json_file: Path | None, data: Any) -> None:
    click.echo(text)
    if json_file is not None:
        _write(json_file, json.dumps(data, indent=1, sort_keys=True, allow_nan=False) + "\n", "--json")


def _write(path: Path, text: str, flag: str) -> None:
    try:
        path.write_text(text)
    except OSError as err:
        raise ScenarioError("cannot write", [Problem(flag, "", f"{path}: {err.strerror}", "a writable file")]) from None


def _flag(problem: Problem) -> Problem:
    name = "engine-profile" if problem.field == "profile" else problem.field.replace("_", "-")
    return replace(problem, where=f"--{name}", field="") if problem.where == "kv_capacity" else problem


def _progress() -> Callable[[str, float], None] | None:
    if not sys.stderr.isatty():
        return None
    from rich.progress import Progress

    bar = Progress(transient=True)
    bar.start()
    tasks: dict[str, Any] = {}

    def advance(label: str, share: float) -> None:
        if label not in tasks:
            tasks[label] = bar.add_task(label, total=1.0)
        bar.update(tasks[label], completed=share)

    click.get_current_context().call_on_close(bar.stop)
    return advance


def main() -> None:
    """Entry point: errors become one message and an exit code; a traceback means a bug."""
    try:
        cli(standalone_mode=False)
    except click.ClickException as err:
        err.show()
        sys.exit(2)
    except click.exceptions.Abort:
        sys.exit(130)
    except KvsimError as err:
        click.echo(f"error: {err}", err=True)
        if err.exit_code == EXIT_BUG:
            traceback.print_exc()
        sys.exit(err.exit_code)
    except Exception:
        traceback.print_exc()
        sys.exit(EXIT_BUG)


if __name__ == "__main__":
    main()
