"""``kvsim calibrate``: fit the step time to measured runs, or measure a GPU."""

from __future__ import annotations

from pathlib import Path

import click

from kvsim.commands.common import in_a_folder, words, write


@click.command()
@click.argument("runs", nargs=-1, type=click.Path(path_type=Path))
@click.option("-o", "--output", type=click.Path(dir_okay=False, path_type=Path), callback=in_a_folder, required=True,
              help="Where the calibration is written (YAML); a scenario names it as engine.calibration.")
@click.option("--labels", callback=words, help="Only runs with these labels; all of them by default.")
@click.option("--microbench", is_flag=True, help="Measure this machine's GPU instead (needs PyTorch).")
@click.option("--gpu", default="h200-sxm", show_default=True, help="Which GPU is measured, with --microbench.")
def calibrate(runs: tuple[Path, ...], output: Path, labels: tuple[str, ...], microbench: bool, gpu: str) -> None:
    """Fit a few physical coefficients to measured RUNS of a real engine (JSON lines)."""
    if microbench:
        from kvsim.calibrate.microbench import measure

        write(output, measure().to_yaml(gpu), "--output")
    else:
        from kvsim.calibrate.overlay import calibrate as fit_runs

        if not runs:
            raise click.UsageError("name the measured runs to fit, or --microbench")
        calibration = fit_runs(runs, labels or None)
        write(output, calibration.to_yaml(), "--output")
        click.echo(calibration.text())
    click.echo(f"wrote {output}")
