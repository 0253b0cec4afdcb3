"""The table of a sweep and its forms."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kvsim.batch.sweep import sweep
from kvsim.batch.table import SweepTable, table_of
from kvsim.simulation import simulate
from tests.sweep.helpers import INLINE, batch, tiny


@pytest.fixture(scope="module")
def table() -> SweepTable:
    tiers = [{"kind": "dram", "capacity": "1 GB"}]
    return sweep(batch({"list": [{"tiers": []}, {"tiers": tiers}, {"engine.max_model_len": 8}, {"layout.tp": 3}]}),
                 options=INLINE)


def test_arrow_has_every_row_and_column(table: SweepTable) -> None:
    arrow = table.to_arrow()
    assert arrow.num_rows == len(table) == 4
    assert arrow.column_names == list(table.columns)
    assert arrow["axis.tiers"].type == pa.string()
    assert arrow["axis.engine.max_model_len"].type == pa.int64()
    assert arrow.to_pylist() == list(table)


def test_arrow_stream_is_the_table(table: SweepTable) -> None:
    assert pa.table(table).equals(table.to_arrow())


def test_pandas_shares_the_numbers(table: SweepTable) -> None:
    frame = table.to_pandas()
    whole = [f.name for f in table.to_arrow().schema if pa.types.is_floating(f.type)
             and not table.to_arrow()[f.name].null_count]
    for name in ["case", *whole]:
        assert np.shares_memory(frame[name].to_numpy(), table.to_arrow()[name].chunk(0).to_numpy()), name
    assert list(frame["case"]) == [0, 1, 2, 3]
    assert frame["throughput.output_tokens_per_s"].tolist()[:2] == table["throughput.output_tokens_per_s"][:2]


def test_parquet_is_reproducible(table: SweepTable, tmp_path: Path) -> None:
    table.write_parquet(tmp_path / "a.parquet")
    table.write_parquet(tmp_path / "b.parquet")
    assert (tmp_path / "a.parquet").read_bytes() == (tmp_path / "b.parquet").read_bytes()
    assert pq.read_table(tmp_path / "a.parquet").equals(table.to_arrow())
    assert {path.name for path in tmp_path.iterdir()} == {"a.parquet", "b.parquet"}


def test_failed_rows_are_told_apart(table: SweepTable) -> None:
    assert {row["case"] for row in table.failed} == {i for i, s in enumerate(table["status"]) if s == "failed"}
    assert table.failed
    assert all(row["hit_rate.total"] is None for row in table.failed)


def test_html_names_cases_and_escapes() -> None:
    shown = SweepTable("<x>", {"case": [0], "label": ["a<b"], "status": ["ok"]})._repr_html_()
    assert "&lt;x&gt;: 1 cases, 0 failed" in shown
    assert "a&lt;b" in shown
    assert "<b" not in shown.replace("<body", "")


def test_report_html_shows_its_figures() -> None:
    report = simulate(tiny())
    shown = report._repr_html_()
    assert f"{report.throughput.output_tokens_per_s:,.1f}" in shown
    assert report.run.digest in shown


def test_empty_table() -> None:
    assert len(table_of("none", [])) == 0
