"""``kvsim cache``: hit rates of recorded traffic by eviction policy and capacity."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import click

from kvsim.commands.common import STDOUT, OutputFile, can_be_written, json_option, output_option, show, words, write
from kvsim.commands.reading import options_of, reading_options, tell
from kvsim.errors import KvsimError, Problem

if TYPE_CHECKING:
    from kvsim.cache.curves.curves import Curves
    from kvsim.workload.table import Trace

DASHBOARD = "pip install 'kvsim[dashboard]'"
CHART_NEEDS = MappingProxyType({".svg": {}, ".html": {"plotly": DASHBOARD},
                                ".png": {"plotly": DASHBOARD, "kaleido": "pip install kaleido, which drives a Chrome"}})
"""Endings of a chart's name, and the packages that draw it with where they come from."""


def a_chart(ctx: click.Context, param: click.Parameter, path: Path | None) -> Path | None:
    """A chart of a known form, in a folder that exists, with what draws it, before a long run."""
    if path is None:
        return None
    if path == STDOUT:
        raise click.BadParameter(f"the file's name says what is drawn ({', '.join(CHART_NEEDS)}), so it needs one.")
    if path.suffix not in CHART_NEEDS:
        raise click.BadParameter(f"{str(path)!r}: a chart is one of {', '.join(CHART_NEEDS)}.")
    for package, remedy in CHART_NEEDS[path.suffix].items():
        if find_spec(package) is None:
            raise KvsimError("the chart cannot be drawn", [
                Problem("--chart", package, "not installed", f"{remedy}; a chart as .svg needs nothing")])
    return can_be_written(ctx, param, path)


@click.command()
@click.argument("paths", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--policies", callback=words, help="Of lru, lru_tail, fifo, lfu, belady (by default all five), s3fifo.")
@click.option("--capacity-blocks", callback=words, help="Capacities in blocks of the trace, e.g. 300,1000,inf.")
@click.option("--capacity-gib", callback=words,
              help="Capacities in GiB over all GPUs of a pool, or with a unit (80 GiB, 1.9 TB); needs --model.")
@click.option("--model", help="Model whose KV cache is sized, e.g. kimi-k3.")
@click.option("--gpu", help="Adds the pool that --model leaves on tp x pp of these GPUs, e.g. b300.")
@click.option("--tp", type=click.IntRange(min=1), default=1, show_default=True, help="Tensor parallel degree.")
@click.option("--pp", type=click.IntRange(min=1), default=1, show_default=True, help="Pipeline stages.")
@click.option("--dcp", type=click.IntRange(min=1), default=1, show_default=True, help="Decode context parallel degree.")
@click.option("--kv-dtype", default="bf16", show_default=True, help="bf16, fp8 or fp8_ds_mla.")
@click.option("--block-tokens", type=click.IntRange(min=1), help="Tokens of a block, for traces without block ids "
                                                                 "(16 by default).")
@click.option("--lanes", type=click.IntRange(min=1), help="Play sessions as this many live ones, gaps up to 300 s.")
@click.option("--delay", "delay_s", type=click.FloatRange(min=0.0),
              help="Infinite cache in which a block is usable only this long after its first request [s].")
@click.option("--strict", is_flag=True, help="Infinite cache in which a block is usable by later arrivals only.")
@click.option("--chart", type=OutputFile(), callback=a_chart,
              help="Draw hit rate by capacity into this file: .svg, or .html or .png (need the dashboard extra).")
@output_option("--csv", "csv_file", text="Also write the rows to this file as CSV.")
@reading_options
@json_option
def cache(paths: tuple[Path, ...], json_file: Path | None, csv_file: Path | None, chart: Path | None,
          **asked: Any) -> None:
    """Hit rates of the requests in PATHS, one at a time, without service time."""
    from kvsim.cache.curves.curves import DEFAULT_CAPACITIES, POLICIES, Play, run_curves
    from kvsim.report.report import plain
    from kvsim.workload.readers.read import read_trace

    _check(asked)
    trace, report = read_trace(paths, options_of(asked))
    tell(report)
    curves = run_curves(trace, asked["policies"] or POLICIES, _capacities(trace, asked) or DEFAULT_CAPACITIES,
                        Play(asked["lanes"], asked["delay_s"], asked["strict"]), asked["block_tokens"])
    if csv_file is not None:
        write(csv_file, curves.to_csv(), "--csv")
    if chart is not None:
        _draw(curves, chart)
    show(curves.text(), json_file, plain(curves.to_dict()))


def _draw(curves: Curves, path: Path) -> None:
    """Write hit rate by capacity as a picture or a page."""
    if path.suffix == ".svg":
        from kvsim.report.curve_picture import curves_svg

        write(path, curves_svg(curves), "--chart")
        return
    from kvsim.dashboard.curves_page import curves_page, write_picture

    if path.suffix == ".html":
        write(path, curves_page(curves), "--chart")
    else:
        write_picture(curves, path)


def _check(asked: dict[str, Any]) -> None:
    """Refuse options that would be ignored."""
    infinite = asked["strict"] or asked["delay_s"] is not None
    finite = [flag for flag in ("policies", "capacity_blocks", "capacity_gib", "gpu") if asked[flag]]
    if infinite and finite:
        raise click.UsageError(f"--delay and --strict ask for an infinite cache; leave out "
                               f"{', '.join('--' + flag.replace('_', '-') for flag in finite)}")
    if asked["strict"] and asked["delay_s"] is not None:
        raise click.UsageError("--strict is a delay of its own; leave out --delay")
    if (asked["capacity_gib"] or asked["gpu"]) and not asked["model"]:
        raise click.UsageError("--capacity-gib and --gpu need --model")
    if asked["model"] and not (asked["capacity_gib"] or asked["gpu"]):
        raise click.UsageError("--model needs --capacity-gib or --gpu")


def _capacities(trace: Trace, asked: dict[str, Any]) -> list[float]:
    """Capacities [blocks]: those in blocks, those in bytes, and the pool of a GPU."""
    from kvsim.cache.curves.curves import parse_capacities

    found = parse_capacities(asked["capacity_blocks"])
    if not asked["model"]:
        return found
    per_block = _bytes_per_block(trace, asked)
    click.echo(f"one block takes {per_block / 2**20:,.3f} MiB of {asked['kv_dtype']} KV cache", err=True)
    sizes = [text if any(c.isalpha() for c in text) else f"{text} GiB" for text in asked["capacity_gib"]]
    found += parse_capacities(sizes, per_block)
    return found + ([_pool_bytes(asked) // per_block] if asked["gpu"] else [])


def _bytes_per_block(trace: Trace, asked: dict[str, Any]) -> float:
    from kvsim.cache.curves.sizes import bytes_per_cached_token
    from kvsim.layout import Layout
    from kvsim.profiles.store import default_store

    layout = Layout(tp=asked["tp"], pp=asked["pp"], dcp=asked["dcp"])
    per_token = bytes_per_cached_token(default_store().get("model", asked["model"]), asked["kv_dtype"], layout)
    return per_token * (trace.block_tokens or asked["block_tokens"] or 16)


def _pool_bytes(asked: dict[str, Any]) -> float:
    """Bytes of the predicted pool on all its GPUs."""
    from kvsim.capacity import kv_capacity

    layout = {name: asked[name] for name in ("tp", "pp", "dcp")}
    answer = kv_capacity(asked["model"], asked["gpu"], asked["tp"] * asked["pp"], kv_dtype=asked["kv_dtype"], **layout)
    return sum(answer.capacity.geometry.block_bytes) * asked["tp"] * answer.capacity.num_blocks
