"""The reproductions page is what a fresh run writes; its verdicts and counts follow from the findings."""

from __future__ import annotations

import dataclasses
import json
from functools import cache
from pathlib import Path

import pytest
from click.testing import CliRunner

from kvsim.cli import cli
from kvsim.validate.claims import KINDS, PUBLISHED_KINDS, Band, Claim, Finding, Sample, exactly, factor, near
from kvsim.validate.claims_serving import K3Runs
from kvsim.validate.published import NOT_SIMULATED, Reproductions, all_claims, check_published
from tests.golden.page import PAGE, fresh, table_rows

TARGETS = {*(str(n) for n in range(1, 19)), "29", "30", "31", "32", "33", "34", "35"}
"""Targets of published values that kvsim computes."""


@cache
def quick() -> Reproductions:
    return check_published(K3Runs(), quick=True)


@pytest.fixture(scope="module")
def page() -> dict[str, str]:
    return table_rows(PAGE.read_text(encoding="utf-8"))


def claim(name: str, kind: str = "P", miss: str = "") -> Claim:
    return Claim(name, kind, "speed", "10", near(10, 0.1), "nobody", "{:.1f}", lambda: Sample(10.5), miss=miss)


@pytest.mark.slow
@pytest.mark.xdist_group("published")
def test_the_page_is_current() -> None:
    """Every digit of it: all rows are computed again, with as many seeds as the page has."""
    written, made = PAGE.read_text(encoding="utf-8"), fresh().markdown()
    assert table_rows(written) == table_rows(made), "run 'make reproductions'"
    assert written == made, "run 'make reproductions'"


def test_rows_without_simulation_do_not_depend_on_the_others(page: dict[str, str]) -> None:
    alone = table_rows(quick().markdown())
    assert len(alone) >= 35
    assert {name: page.get(name) for name in alone} == alone


def test_the_page_has_every_claim_and_nothing_else(page: dict[str, str]) -> None:
    assert list(page) == [c.id for kind in KINDS for c in all_claims(K3Runs()) if c.kind == kind]


def test_the_last_lines_of_the_page_count_its_rows(page: dict[str, str]) -> None:
    text = PAGE.read_text(encoding="utf-8")
    inside: dict[str, bool] = {}
    for c in all_claims(K3Runs()):
        if c.kind in PUBLISHED_KINDS:
            inside[c.target] = inside.get(c.target, True) and "| hit |" in page[c.id]
    assert inside.keys() == TARGETS
    assert text.splitlines()[-2] == f"published: {sum(inside.values())}/{len(inside)} rows inside their bands"


def test_every_miss_on_the_page_has_its_reason(page: dict[str, str]) -> None:
    reasons = {c.id: c.miss for c in all_claims(K3Runs())}
    for name, row in page.items():
        assert ("| miss |" in row) == bool(reasons[name]), name
        assert reasons[name] in row


def test_what_is_not_simulated_is_on_the_page() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert {m.id for m in NOT_SIMULATED} == {"33"}
    assert all(f"- {m.id}: {m.what}: {m.reason}" in text for m in NOT_SIMULATED)


def test_a_target_counts_when_all_its_values_do() -> None:
    good, bad = Sample(10.5), Sample(12.0)
    found = Reproductions((Finding(claim("1a"), good), Finding(claim("1b", miss="slow"), bad),
                           Finding(claim("2"), good), Finding(claim("N1", "N"), bad)), missing=())
    assert found.targets() == {"1": False, "2": True}
    assert found.score() == found.text().splitlines()[-1] == "published: 1/2 rows inside their bands"
    assert "throughput: 2 of 3 values where they must be" in found.counts()
    assert "| 1b | speed | 10 | 12.0 | +20.0 % | 10 % |  | miss | nobody | no | slow |" in found.markdown()


@pytest.mark.parametrize(("band", "value", "hit"), [
    (near(10, 0.1), 11.0, True), (near(10, 0.1), 11.01, False), (near(10, 0.1, outside=True), 11.0, False),
    (near(10, 0.1, outside=True), 11.01, True), (factor(10, 2), 5.0, True), (factor(10, 2), 4.99, False),
    (exactly(3), 3, True), (exactly(3), 3.0001, False), (near(10, 0.1), float("nan"), False),
    (near(10, 0.1, outside=True), float("nan"), False)])
def test_bands(band: Band, value: float, hit: bool) -> None:
    judged = dataclasses.replace(claim("1"), band=band)
    assert Finding(judged, Sample(value)).hit is hit


def test_an_unexplained_miss_says_so() -> None:
    assert Finding(claim("1"), Sample(20.0)).reason() == "not explained"


def test_a_missing_folder_of_recordings_leaves_them_out(tmp_path: Path) -> None:
    kinds = {c.kind for c in all_claims(K3Runs(), tmp_path / "none")}
    assert kinds == {*PUBLISHED_KINDS, "N"}


def test_command(tmp_path: Path) -> None:
    written, data = tmp_path / "page.md", tmp_path / "page.json"
    result = CliRunner().invoke(cli, ["validate", "published", "--quick", "-o", str(written), "--json", str(data)])
    assert result.exit_code == 1, "some published values are missed"
    assert result.output.splitlines()[-1] == quick().score()
    assert written.read_text() == quick().markdown()
    assert json.loads(data.read_text())["score"] == quick().score()
