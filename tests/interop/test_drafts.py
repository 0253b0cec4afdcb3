"""Launch lines with speculative drafts: what becomes of them, and that the scenario runs where acceptance is known."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvsim.interop import ImportOptions, import_command
from kvsim.interop.importing import ImportedCommand
from tests.cli.conftest import kvsim as kvsim  # the command line as a fixture
from tests.cli.helpers import Shell

K2 = "vllm serve moonshotai/Kimi-K2-Thinking -tp 8 --kv-cache-dtype fp8 --max-model-len 32k "


def spec(method: str, tokens: int) -> str:
    return f'--speculative-config \'{{"method": "{method}", "model": "x/y", "num_speculative_tokens": {tokens}}}\''


def about_acceptance(found: ImportedCommand) -> str:
    return next((n.text for n in found.of("assumed") if n.flag == "accepted drafts"), "")


def test_a_measured_draft_runs(kvsim: Shell, tmp_path: Path) -> None:
    path = tmp_path / "k2.yaml"
    told = kvsim("import-command", K2 + spec("eagle3", 3), "--gpu", "b200", "-o", str(path))
    assert told.code == 0, told.err
    assert "the curve kimi-k2-eagle3, 2.88 tokens a step" in told.err
    run = kvsim("run", str(path), "--set", "workload.fixed.num_requests=8")
    assert run.code == 0, run.err
    assert "kimi-k2-eagle3" in run.out


@pytest.mark.parametrize(("line", "gpu", "said"), [
    ("vllm serve Qwen/Qwen3.8-27B " + spec("dflash", 15), "h100", "not measured for dflash-k15 (5, 7 tokens were)"),
    ("vllm serve meta-llama/Llama-3.1-8B-Instruct " + spec("eagle3", 3), "h100", "not measured for eagle3-k3: "),
    (K2 + spec("eagle3", 3), "b200", "2.88 tokens a step"),
    (K2 + spec("ngram", 3), "b200", ""), (K2, "b200", ""),
])
def test_where_acceptance_comes_from(line: str, gpu: str, said: str) -> None:
    found = import_command(line, ImportOptions(gpu=gpu))
    text = about_acceptance(found)
    assert said in text if said else not text
    assert (found.scenario.engine.draft_acceptance is not None) == ("tokens a step" in said)


def test_own_acceptance_is_not_overruled() -> None:
    own = "engine.draft_acceptance={kind: own, source: ours, length: 2.5}"
    found = import_command(K2 + spec("eagle3", 3), ImportOptions(gpu="b200", overrides=[own]))
    given = found.scenario.engine.draft_acceptance
    assert given is not None
    assert (given.kind, given.length) == ("own", 2.5)
    assert not about_acceptance(found)


@pytest.mark.parametrize(("flags", "said"), [
    (spec("ngram", 3), "ngram drafts; MTP, EAGLE3, DFlash and DSpark are modelled"),
    (spec("eagle3", 0), "eagle3 drafts without a number of tokens of at least 1"),
    ("--spec-tokens 3 --spec-model x/y", "such drafts; MTP, EAGLE3, DFlash and DSpark are modelled"),
])
def test_why_a_draft_is_left_out(flags: str, said: str) -> None:
    found = import_command(K2 + flags, ImportOptions(gpu="b200"))
    assert found.scenario.engine.draft == "none"
    assert said in [n.text for n in found.of("not modelled")]


@pytest.mark.parametrize(("topk", "status"), [(1, "no effect"), (4, "not modelled")])
def test_a_tree_of_drafts_is_told(topk: int, status: str) -> None:
    line = ("sglang serve --model-path moonshotai/Kimi-K2-Thinking --tp 8 --speculative-algorithm EAGLE3 "
            f"--speculative-num-steps 3 --speculative-eagle-topk {topk} --speculative-num-draft-tokens 4")
    found = import_command(line, ImportOptions(gpu="b200"))
    assert found.scenario.engine.draft == "eagle3-k3"
    assert [n.status for n in found.notes if n.flag == "--speculative-eagle-topk"] == [status]
