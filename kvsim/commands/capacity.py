"""``kvsim capacity``: how much KV cache fits."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from kvsim.commands.common import TokenCount, json_option, show
from kvsim.errors import KvsimError, Problem


@click.command()
@click.option("--model", required=True, help="Model profile, e.g. kimi-k3.")
@click.option("--gpu", required=True, help="GPU profile, e.g. b300.")
@click.option("--num-gpus", type=click.IntRange(min=1), help="GPUs of the replica; tp x pp x dp by default.")
@click.option("--tp", type=click.IntRange(min=1), default=1, show_default=True, help="Tensor parallel degree.")
@click.option("--pp", type=click.IntRange(min=1), default=1, show_default=True, help="Pipeline stages.")
@click.option("--ep", type=click.IntRange(min=1), default=1, show_default=True, help="Expert parallel degree.")
@click.option("--dp", type=click.IntRange(min=1), default=1, show_default=True, help="Attention data parallel degree.")
@click.option("--dcp", type=click.IntRange(min=1), default=1, show_default=True, help="Decode context parallel degree.")
@click.option("--kv-dtype", default="bf16", show_default=True, help="bf16, fp8 or fp8_ds_mla.")
@click.option("--gpu-memory-utilization", type=float, help="Share of the GPU's total that the engine may use.")
@click.option("--max-model-len", type=TokenCount(), help="Longest request, e.g. 32k; the model's maximum by default.")
@click.option("--max-num-seqs", type=click.IntRange(min=1), help="Most running requests.")
@click.option("--max-num-batched-tokens", type=TokenCount(), help="Token budget of a step.")
@click.option("--prefix-caching/--no-prefix-caching", default=True, show_default=True,
              help="Whether prompts share cached prefixes; sets the pages of hybrid models.")
@click.option("--draft", default="none", show_default=True,
              help="none, mtp-kN, eagle3-kN, dflash-kN, dspark-fp8-kN or dspark-bf16-kN.")
@click.option("--engine-profile", "profile", default="vllm-day0", show_default=True,
              help="Engine and version, which set the memory outside the pool and the default limits. Launch lines are "
                   "imported with the engine's newest (vllm-0.33).")
@json_option
def capacity(json_file: Path | None, **asked: Any) -> None:
    """How much KV cache fits: budget, blocks, tokens and sessions by context length."""
    from kvsim.capacity import capacity_text, kv_capacity
    from kvsim.report.report import plain

    if asked["num_gpus"] is None:
        asked["num_gpus"] = asked["tp"] * asked["pp"] * asked["dp"]
    try:
        answer = kv_capacity(**asked)
    except KvsimError as err:
        raise type(err)(err.message, [_flag(p) for p in err.problems]) from None
    show(capacity_text(answer), json_file, {**plain(answer.capacity), "engine_profile": answer.engine_profile.name})


def _flag(problem: Problem) -> Problem:
    name = "engine-profile" if problem.field == "profile" else problem.field.replace("_", "-")
    return replace(problem, where=f"--{name}", field="") if problem.where == "kv_capacity" else problem
