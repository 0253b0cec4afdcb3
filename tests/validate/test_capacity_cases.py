"""KV pools that engines logged, to the token; and what the check says when a number is wrong.

``tests/data/capacity_cases.csv`` holds twelve logged pools with their sources (engine logs of InferenceX runs, vLLM
recipes, users' logs, own runs).
"""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from kvsim.cli import cli
from kvsim.errors import KvsimError, ScenarioError
from kvsim.profiles.store import default_store
from kvsim.validate.capacity_cases import check_capacity

CASES = Path(__file__).parent.parent / "data" / "capacity_cases.csv"


def rows() -> list[dict[str, str]]:
    """The cases."""
    with CASES.open(newline="") as file:
        return list(csv.DictReader(file))


def changed(folder: Path, case: str, **cells: str) -> Path:
    """A copy of the cases with cells of one row changed."""
    copy = [{**row, **(cells if row["id"] == case else {})} for row in rows()]
    path = folder / "cases.csv"
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(copy[0]))
        writer.writeheader()
        writer.writerows(copy)
    return path


def validate(path: Path) -> Result:
    """``kvsim validate capacity``."""
    return CliRunner().invoke(cli, ["validate", "capacity", str(path)])


@pytest.mark.golden
def test_all_cases_are_exact() -> None:
    result = validate(CASES)
    assert result.output.splitlines()[-1] == "capacity cases: 12/12 exact"
    assert result.exit_code == 0


@pytest.mark.parametrize(("case", "cells", "said"), [
    ("c02", {"capacity_tokens": "3249216"}, "c02: capacity_tokens: expected 3,249,216, got 3,249,215"),
    ("c02", {"num_blocks": "2134"}, "c02: capacity_tokens: expected 3,249,215, got 3,247,694"),
    ("c05", {"max_concurrency": "4.34"}, "c05: max_concurrency: expected 4.34, got 4.33"),
    ("c04", {"prefix_caching": "on"}, "c04: capacity_tokens: expected 1,420,824"),
    ("c07", {"log_formula": "product"}, "c07: capacity_tokens: expected 75,840"),
    ("c11", {"draft": "none"}, "c11: capacity_tokens: expected 2,020,206"),
    ("c01", {"pp": "2"}, "c01: capacity_tokens: expected 715,072"),
])
def test_one_wrong_number_is_named(tmp_path: Path, case: str, cells: dict[str, str], said: str) -> None:
    result = validate(changed(tmp_path, case, **cells))
    wrong = [line for line in result.output.splitlines()[:-1] if not line.endswith(": exact")]
    assert len(wrong) == 1
    assert wrong[0].startswith(said)
    assert result.output.splitlines()[-1] == "capacity cases: 11/12 exact"
    assert result.exit_code == 1


@pytest.mark.parametrize(("cells", "said"), [
    ({"model": "kimi-k4"}, "did you mean 'kimi-k3'?"), ({"kv_dtype": "fp4"}, "kv_dtype: got 'fp4'"),
    ({"prefix_caching": "yes"}, "prefix_caching: got 'yes'; accepted: on, off"),
    ({"log_formula": "produkt"}, "did you mean 'product'?"), ({"draft": "eagle"}, "draft: got 'eagle'"),
    ({"tp": "eight"}, "not a number"), ({"capacity_tokens": ""}, "not a number"),
    ({"num_blocks": "", "available_gib_per_gpu": ""}, "num_blocks: missing"),
])
def test_a_row_that_cannot_be_computed_says_why(tmp_path: Path, cells: dict[str, str], said: str) -> None:
    results = check_capacity(changed(tmp_path, "c03", **cells), default_store())
    assert [r.id for r in results if not r.exact] == ["c03"]
    assert said in next(r.difference for r in results if not r.exact)


def test_a_short_row_is_a_difference_and_not_a_crash(tmp_path: Path) -> None:
    path = tmp_path / "cases.csv"
    path.write_text("\n".join([*CASES.read_text().splitlines()[:2], "c99,kimi-k3,8"]) + "\n")
    assert [r.exact for r in check_capacity(path, default_store())] == [True, False]


@pytest.mark.parametrize("text", ["", "a,b\n1,2\n", CASES.read_text().splitlines()[0] + "\n"])
def test_files_without_cases_are_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "cases.csv"
    path.write_text(text)
    with pytest.raises(ScenarioError) as caught:
        check_capacity(path, default_store())
    assert str(path) in str(caught.value)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "bytes.csv").write_bytes(b"\xff\xfe\x00")
    for path in (tmp_path / "none.csv", tmp_path, tmp_path / "bytes.csv"):
        with pytest.raises(KvsimError, match="cannot read the cases"):
            check_capacity(path, default_store())
