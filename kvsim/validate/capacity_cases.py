"""Check KV capacity against what engines logged: one row of a CSV file is one log."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import cast, get_args

from kvsim.errors import KvsimError, Problem, ScenarioError, nearest
from kvsim.layout import Layout
from kvsim.memory.drafts import parse_draft
from kvsim.memory.geometry import KvGeometry, KvSpec, LogFormula, kv_geometry
from kvsim.memory.layers import KV_DTYPES
from kvsim.profiles.store import ProfileStore

COLUMNS = ("id", "model", "tp", "pp", "dcp", "kv_dtype", "prefix_caching", "draft", "available_gib_per_gpu",
           "num_blocks", "max_model_len", "log_formula", "block_tokens", "capacity_tokens", "max_concurrency")
WORDS = MappingProxyType({"kv_dtype": KV_DTYPES, "prefix_caching": ("on", "off"), "log_formula": get_args(LogFormula)})
"""Columns that take one of a few words."""
CONCURRENCY_DECIMALS = 2
"""Engines print the maximum concurrency with two decimals."""


@dataclass(frozen=True, slots=True)
class CaseResult:
    """Outcome of one case: ``difference`` is empty when everything that the log states is exact."""

    id: str
    difference: str

    @property
    def exact(self) -> bool:
        """Whether the log was reproduced to the token."""
        return not self.difference


def check_capacity(path: Path, store: ProfileStore) -> list[CaseResult]:
    """Check every row of a capacity CSV.

    Parameters
    ----------
    path : Path
        CSV with at least `COLUMNS`. ``num_blocks`` wins over ``available_gib_per_gpu`` (two decimals are
        less than a block count); ``max_concurrency`` is checked where given.
    store : ProfileStore
        Where models are looked up.

    Returns
    -------
    list of CaseResult
        In the file's order. A row that cannot be computed is a difference that says why.

    Raises
    ------
    ScenarioError
        The file cannot be read, lacks columns or has no rows.
    """
    return [CaseResult(row["id"], _difference(row, store)) for row in _rows(path)]


def _rows(path: Path) -> Sequence[Mapping[str, str]]:
    try:
        with path.open(newline="") as file:
            reader = csv.DictReader(file)
            rows, given = list(reader), reader.fieldnames or []
    except (OSError, UnicodeDecodeError, csv.Error) as err:
        reason = getattr(err, "strerror", None) or str(err)
        raise ScenarioError("cannot read the cases", [Problem(str(path), "", reason, "a CSV file")]) from None
    missing = [c for c in COLUMNS if c not in given]
    if missing:
        raise ScenarioError("not a file of capacity cases",
                            [Problem(str(path), ", ".join(missing), "", "a CSV file with these columns too")])
    if not rows:
        raise ScenarioError("no capacity cases", [Problem(str(path), "", "no rows", "a row for every case")])
    return rows


def _difference(row: Mapping[str, str], store: ProfileStore) -> str:
    try:
        _check_words(row)
        tokens, concurrency = _computed(row, store)
        logged, logged_concurrency = int(row["capacity_tokens"]), float(row["max_concurrency"] or "nan")
    except KvsimError as err:
        return str(err)
    except (TypeError, ValueError) as err:
        return f"not a number: {err}"
    found: list[str] = []
    if tokens != logged:
        found.append(f"capacity_tokens: expected {logged:,}, got {tokens:,}")
    if row["max_concurrency"] and round(concurrency, CONCURRENCY_DECIMALS) != logged_concurrency:
        found.append(f"max_concurrency: expected {row['max_concurrency']}, got {concurrency:.{CONCURRENCY_DECIMALS}f}")
    return "; ".join(found)


def _check_words(row: Mapping[str, str]) -> None:
    problems = [Problem(row["id"], column, repr(row[column]), ", ".join(words), nearest(row[column] or "", words))
                for column, words in WORDS.items() if row[column] not in words]
    if problems:
        raise ScenarioError("not a case", problems)


def _computed(row: Mapping[str, str], store: ProfileStore) -> tuple[int, float]:
    model = store.get("model", row["model"])
    layout = Layout(tp=int(row["tp"]), pp=int(row["pp"]), dcp=int(row["dcp"]))
    block = int(row["block_tokens"]) if row["block_tokens"] else None
    geometry = kv_geometry(model, KvSpec(layout, row["kv_dtype"], row["prefix_caching"] == "on",
                                         parse_draft(row["draft"], row["id"]), block))
    num_blocks = _num_blocks(row, geometry)
    max_len = int(row["max_model_len"])
    tokens = geometry.logged_tokens(num_blocks, max_len, cast(LogFormula, row["log_formula"]))
    return tokens, num_blocks / geometry.blocks_for(max_len)


def _num_blocks(row: Mapping[str, str], geometry: KvGeometry) -> int:
    if row["num_blocks"]:
        return int(row["num_blocks"])
    if row["available_gib_per_gpu"]:
        return geometry.num_blocks(float(row["available_gib_per_gpu"]) * 2**30)
    raise ScenarioError("no pool", [Problem(row["id"], "num_blocks", "", "num_blocks or available_gib_per_gpu")])
