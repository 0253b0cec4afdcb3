"""``kvsim calibrate``: fit the step time to measured runs, or measure a GPU."""

from __future__ import annotations

from pathlib import Path

import click

from kvsim.commands.common import json_option, output_option, say, words, write, write_json, wrote


@click.command()
@click.argument("runs", nargs=-1, type=click.Path(path_type=Path))
@output_option("-o", "--output", required=True,
               text="Where the result is written (YAML); a scenario names it as engine.calibration.")
@click.option("--labels", callback=words, help="Only runs with these labels; all of them by default.")
@click.option("--microbench", is_flag=True, help="Measure this machine's GPU instead (needs PyTorch).")
@click.option("--gpu", default="h200-sxm", show_default=True, help="The GPU of the runs, or of this machine.")
@click.option("--engine-profile", default="vllm-0.24-h200", show_default=True,
              help="The engine of the runs, whose physics is fitted.")
@json_option
def calibrate(runs: tuple[Path, ...], output: Path, labels: tuple[str, ...], microbench: bool, gpu: str,
              **rest: object) -> None:
    """Fit a few physical coefficients to measured RUNS of a real engine (JSON lines).

    The JSON is what the YAML holds; of a fit also residuals[].regime, .steps, .before_frac and .after_frac.
    """
    engine_profile, json_file = rest["engine_profile"], rest["json_file"]
    assert isinstance(engine_profile, str)
    assert json_file is None or isinstance(json_file, Path)
    if microbench:
        from kvsim.calibrate.microbench import measure
        from kvsim.errors import ProfileError
        from kvsim.profiles.yamlio import parse_yaml

        measured = measure().to_yaml(gpu)
        write(output, measured, "--output")
        write_json(json_file, parse_yaml(measured, "measurements", ProfileError))
    else:
        from kvsim.calibrate.overlay import calibrate as fit_runs
        from kvsim.calibrate.replay import Setting
        from kvsim.profiles.store import default_store
        from kvsim.report.report import plain

        if not runs:
            raise click.UsageError("name the measured runs to fit, or --microbench")
        calibration = fit_runs(runs, labels or None, Setting(default_store(), gpu, engine_profile))
        write(output, calibration.to_yaml(), "--output")
        residuals = [plain(residual) for residual in calibration.residuals()]
        write_json(json_file, {**calibration.to_dict(), "residuals": residuals})
        say(calibration.text())
    say(wrote(output))
