"""The table of a sweep: a row a case, columns by their stable names; Arrow, pandas, polars and Parquet on demand."""

from __future__ import annotations

import importlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any, cast

from kvsim.batch.cases import Case
from kvsim.batch.job import Outcome
from kvsim.errors import KvsimError, Problem

SCHEMA = "kvsim/sweep-table/1"
IDENTITY = ("case", "label", "digest", "seed", "status", "error.kind", "error.type", "error.message")
HEADLINES = ("hit_rate.total", "throughput.output_tokens_per_s", "latency.ttft_s.p95", "latency.tpot_s.p50",
             "cost.usd_per_mtok.blended", "cost.contribution_usd_per_node_hour", "limits.binding")
"""Columns that short views show."""
SHOWN_ROWS = 20


class SweepTable:
    """Results of a sweep.

    Parameters
    ----------
    name : str
        The sweep's name.
    columns : mapping of str to list
        Equally long columns in their order. ``axis.FIELD`` is what an axis set; ``scenario`` the whole case as JSON;
        the rest are the report's dotted names in base units. None where a case has no such figure.
    computed : int
        Cases that were run for this table.
    refused : int
        Cases that are no scenarios and were not run; the others were there already.

    Examples
    --------
    >>> table = SweepTable("x", {"case": [0, 1], "status": ["ok", "failed"]}, 2)
    >>> len(table), table["status"], len(table.failed)
    (2, ['ok', 'failed'], 1)
    """

    def __init__(self, name: str, columns: Mapping[str, list[Any]], computed: int = 0,
                 refused: int = 0) -> None:
        self.name, self.columns, self.computed, self.refused = name, dict(columns), computed, refused
        self._arrow: Any = None

    def __len__(self) -> int:
        return len(self.columns["case"])

    def __getitem__(self, column: str) -> list[Any]:
        """One column."""
        return self.columns[column]

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Rows as mappings."""
        names = list(self.columns)
        return (dict(zip(names, values, strict=True)) for values in zip(*self.columns.values(), strict=True))

    @property
    def failed(self) -> list[dict[str, Any]]:
        """Rows of the cases without a report."""
        return [row for row in self if row["status"] != "ok"]

    def to_arrow(self) -> Any:
        """A ``pyarrow.Table``, made once: its copies in pandas and polars share its memory.

        Raises
        ------
        KvsimError
            pyarrow is not installed.
        """
        if self._arrow is None:
            self._arrow = arrow_table(self.columns, {"schema": SCHEMA, "name": self.name})
        return self._arrow

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> Any:
        """The Arrow C stream, through which pandas, polars, DuckDB and others take the table without a copy."""
        return self.to_arrow().__arrow_c_stream__(requested_schema)

    def to_pandas(self) -> Any:
        """A ``pandas.DataFrame`` over the Arrow columns; numbers without missing values are not copied."""
        return self.to_arrow().to_pandas(split_blocks=True, self_destruct=False)

    def to_polars(self) -> Any:
        """A ``polars.DataFrame`` over the Arrow columns."""
        return _module("polars", "pip install polars").from_arrow(self.to_arrow())

    def write_parquet(self, path: str | Path) -> None:
        """Write the table in one piece; equal tables give equal bytes.

        Raises
        ------
        KvsimError
            pyarrow is not installed.
        """
        write_parquet(self.columns, Path(path), {"schema": SCHEMA, "name": self.name})

    def _repr_html_(self) -> str:
        names = ["label", "status", *(name for name in HEADLINES if name in self.columns)]
        rows = [[_cell(self.columns[name][i]) for name in names] for i in range(min(len(self), SHOWN_ROWS))]
        more = f"<p>{len(self) - SHOWN_ROWS} more cases</p>" if len(self) > SHOWN_ROWS else ""
        title = f"<p>{escape(self.name)}: {len(self)} cases, {len(self.failed)} failed</p>"
        return title + html_table(names, rows) + more


def html_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in HTML; cells are text.

    >>> html_table(["a"], [["<1"]])
    '<table><thead><tr><th>a</th></tr></thead><tbody><tr><td>&lt;1</td></tr></tbody></table>'
    """
    top = "".join(f"<th>{escape(name)}</th>" for name in head)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>"


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:,.4g}" if isinstance(value, float) else str(value)


def table_of(name: str, finished: Sequence[tuple[Case, Outcome]], computed: int = 0) -> SweepTable:
    """The table of finished cases, in the order of the sweep.

    Columns are the identity of a case, its axes in the order in which they appear, the report's names sorted,
    and the scenario: the same for the same results, whatever the order in which they came.
    """
    rows = [_row(case, outcome) for case, outcome in sorted(finished, key=lambda pair: pair[0].number)]
    axes = list(dict.fromkeys(key for row in rows for key in row if key.startswith("axis.")))
    known = {*IDENTITY, *axes, "scenario"}
    measured = sorted({key for row in rows for key in row} - known)
    columns = {key: _one_type([row.get(key) for row in rows]) for key in (*IDENTITY, *axes, *measured, "scenario")}
    return SweepTable(name, columns, computed, len({case.digest for case, _ in finished if case.fault is not None}))


def _row(case: Case, outcome: Outcome) -> dict[str, Any]:
    error = outcome.get("error", {})
    return {
        "case": case.number, "label": case.label, "digest": case.digest, "seed": case.seed,
        "status": outcome["status"],
        **{f"error.{key}": error.get(key) for key in ("kind", "type", "message")},
        **{f"axis.{field}": value for field, value in case.settings.items()},
        **outcome.get("result", {}),
        "scenario": json.dumps(case.data, sort_keys=True),
    }


def _one_type(values: list[Any]) -> list[Any]:
    """Values of one type: numbers, booleans or text as they are, whole numbers among others as such, else JSON text."""
    kinds: set[type] = {type(value) for value in values if value is not None}
    if kinds == {int, float}:
        return [None if value is None else float(value) for value in values]
    if len(kinds) <= 1 and kinds <= {int, float, bool, str}:
        return values
    return [value if value is None or isinstance(value, str) else json.dumps(value, sort_keys=True) for value in values]


def arrow_table(columns: Mapping[str, Any], about: Mapping[str, str] | None = None) -> Any:
    """Columns as a ``pyarrow.Table`` with metadata.

    Raises
    ------
    KvsimError
        pyarrow is not installed.
    """
    pa = _module("pyarrow", "pip install 'kvsim[parquet]'")
    arrays = {key: pa.array(values, type=_arrow_type(pa, values)) for key, values in columns.items()}
    return pa.table(arrays).replace_schema_metadata({"kvsim": json.dumps(about or {}, sort_keys=True)})


def _arrow_type(pa: Any, values: Any) -> Any:
    """Type of a column; of one without any value, float64, so that equal sweeps have equal schemas."""
    if not isinstance(values, list):
        return None
    kinds: list[type] = [type(value) for value in cast("list[Any]", values) if value is not None]
    known: dict[type, Any] = {bool: pa.bool_(), int: pa.int64(), str: pa.string()}
    return known.get(kinds[0] if kinds else float, pa.float64())


def write_parquet(columns: Mapping[str, Any], path: Path, about: Mapping[str, str] | None = None) -> None:
    """Write columns as Parquet in one piece, with settings that are spelled out so that the bytes do not drift."""
    table = arrow_table(columns, about)
    parquet = _module("pyarrow.parquet", "pip install 'kvsim[parquet]'")
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    parquet.write_table(table, str(fresh), compression="zstd", compression_level=3, version="2.6",
                        row_group_size=65_536, data_page_version="1.0", use_dictionary=True)
    fresh.replace(path)


def need_parquet() -> None:
    """Fail before a long run, not after it, when Parquet cannot be written.

    Raises
    ------
    KvsimError
        pyarrow is not installed.
    """
    _module("pyarrow.parquet", "pip install 'kvsim[parquet]'")


def _module(name: str, remedy: str) -> Any:
    """A package that only some need, loaded when they do."""
    try:
        return importlib.import_module(name)
    except ImportError:
        raise KvsimError(f"this needs the package {name.partition('.')[0]}", [
            Problem(name, "", "not installed", remedy)]) from None
