"""Tables of requests as people keep them: other names, delimiters, units and containers."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsim.errors import TraceError
from kvsim.scenario import load_scenario
from kvsim.simulation import simulate
from kvsim.traffic import build_workload
from kvsim.workload.readers.columns import FIELDS, TIME_UNITS, choose_columns, guess_columns
from kvsim.workload.readers.read import detect, parse_mapping, read_trace
from kvsim.workload.readers.reading import ReadOptions
from tests.cli.conftest import kvsim as kvsim  # the command line as a fixture
from tests.cli.helpers import Shell

ROWS = [(0.0, 300, 20), (1.5, 400, 30), (4.0, 500, 40)]
TIMES, INPUTS = [0.0, 1.5, 4.0], [300, 400, 500]


HEADER = "timestamp,input_tokens,output_tokens"


def table(header: str = HEADER, scale: float = 1.0) -> str:
    return "\n".join([header, *(f"{t * scale:g},{i},{o}" for t, i, o in ROWS)]) + "\n"


@pytest.mark.parametrize("change", [
    lambda text: text, lambda text: text.replace(",", ";"), lambda text: text.replace(",", "\t"),
    lambda text: text.replace(",", "|"), lambda text: text.replace("\n", "\r\n"), lambda text: "\ufeff" + text,
    lambda text: "\n\n" + text,
    lambda text: text.replace(HEADER, "Arrival Time,Prompt Tokens,completion-tokens"),
    lambda text: text.replace(HEADER, "arrived_at,num_prefill_tokens,num_decode_tokens"),
])
@pytest.mark.parametrize("packed", [False, True])
def test_tables_are_found_by_their_columns(tmp_path: Path, change: Callable[[str], str], packed: bool) -> None:
    path, data = tmp_path / "log", change(table()).encode()
    path.write_bytes(gzip.compress(data) if packed else data)
    assert detect(path) == "mapped-csv"
    trace, _ = read_trace(path)
    assert trace.time_s.tolist() == TIMES
    assert trace.input_tokens.tolist() == INPUTS


@pytest.mark.parametrize(("header", "unit", "scale"), [
    ("timestamp_ms,input_tokens,output_tokens", None, 1e3), ("ts (us),input_tokens,output_tokens", None, 1e6),
    ("arrival_time_s,input_tokens,output_tokens", None, 1.0), ("ts,input_tokens,output_tokens", "ms", 1e3),
    ("timestamp_ms,input_tokens,output_tokens", "s", 1.0),
])
def test_units_of_times(tmp_path: Path, header: str, unit: str | None, scale: float) -> None:
    path = tmp_path / "log.csv"
    path.write_text(table(header, scale))
    trace, _ = read_trace(path, ReadOptions(mapping={"time_unit": unit} if unit else None))
    assert np.allclose(trace.time_s, TIMES)


def test_what_names_decided_is_told(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text(table())
    assert read_trace(path)[1].notes == []
    path.write_text(table("ts_ms,prompt_tokens,output_tokens", 1e3))
    assert read_trace(path)[1].notes == [
        "log.csv: columns taken as timestamp=ts_ms, input_tokens=prompt_tokens, output_tokens=output_tokens, in ms"]


def test_a_mapping_is_completed_by_names_and_wins(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text("When,input_tokens,prompt_tokens,output_tokens,session_id\n0,1,300,20,a\n1.5,1,400,30,a\n4,1,500,40,b\n")
    trace, _ = read_trace(path, ReadOptions(mapping=parse_mapping("timestamp=When,input_tokens=prompt_tokens")))
    assert trace.input_tokens.tolist() == INPUTS
    assert trace.knowledge == "nothing", "a session that nobody mapped beside a mapping"


@pytest.mark.parametrize(("mapping", "said"), [
    ("timestamp=When", "timestamp: got no column 'When'; accepted: timestamp, input_tokens, output_tokens"),
    ("tmie_unit=ms", "did you mean 'time_unit'?"), ("time_unit=min", "time_unit: got 'min'; accepted: s, ms, us, ns"),
])
def test_wrong_mappings_are_refused_at_once(tmp_path: Path, mapping: str, said: str) -> None:
    path = tmp_path / "log.csv"
    path.write_text(table())
    with pytest.raises(TraceError) as caught:
        read_trace(path, ReadOptions(mapping=parse_mapping(mapping)))
    assert said in str(caught.value)
    assert len(caught.value.problems) == 1


def test_what_is_lacking_is_named(kvsim: Shell, tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text("timestamp,input_tokens,out\n1,2,3\n")
    done = kvsim("trace", "info", str(path))
    assert done.code == 2
    assert "nothing in it is called output_tokens or the like" in done.err
    assert "timestamp=COLUMN,input_tokens=COLUMN,output_tokens=COLUMN" in done.err


@pytest.mark.parametrize("resolution", ["us", "ns"])
@pytest.mark.parametrize("as_dates", [False, True])
def test_parquet_of_any_origin(tmp_path: Path, resolution: str, as_dates: bool) -> None:
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    times: list[object] = [datetime(2026, 11, 1) + timedelta(seconds=t) for t in TIMES] if as_dates else list(TIMES)
    column = pa.array(times, pa.timestamp(resolution)) if as_dates else pa.array(times)
    path = tmp_path / "log.parquet"
    pq.write_table(pa.table({"created_at": column, "prompt_tokens": INPUTS, "completion_tokens": [20, 30, 40]}), path)
    trace, _ = read_trace(path)
    assert trace.time_s.tolist() == TIMES
    assert trace.input_tokens.tolist() == INPUTS
    mapped, _ = read_trace(path, ReadOptions(mapping={"timestamp": "created_at", "input_tokens": "completion_tokens",
                                                      "output_tokens": "prompt_tokens"}))
    assert mapped.output_tokens.tolist() == INPUTS


def test_a_damaged_parquet_file_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    path = tmp_path / "log.parquet"
    path.write_bytes(b"PAR1" + bytes(100))
    with pytest.raises(TraceError, match="cannot read"):
        read_trace(path)


def test_a_scenario_names_columns(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text(table("When,In,Out", 1e3))
    data = {"schema": "kvsim/scenario/1", "name": "own", "model": "llama-3.1-8b",
            "hardware": {"gpu": "h100", "num_gpus": 1},
            "workload": {"trace": str(path), "mapping": {"timestamp": "When", "input_tokens": "In",
                                                         "output_tokens": "Out", "time_unit": "ms"}}}
    scenario = load_scenario(data)
    assert build_workload(scenario).requests.arrival_s.tolist() == TIMES
    assert simulate(scenario).run.num_requests == 3
    assert "mapping" not in load_scenario({**data, "workload": {"trace": str(path)}}).to_dict()["workload"]


@given(st.lists(st.text(max_size=12), max_size=8))
def test_any_names_are_taken_or_left(names: list[str]) -> None:
    found = guess_columns(names)
    assert set(found.of) <= set(FIELDS)
    assert set(found.of.values()) <= set(names)
    assert found.time_unit in ("", *TIME_UNITS)


@given(st.permutations(["ts", "prompt_tokens", "completion_tokens", "x", "session_id"]))
def test_the_order_of_columns_does_not_count(names: list[str]) -> None:
    assert choose_columns(None, names, "x").of == {
        "timestamp": "ts", "input_tokens": "prompt_tokens", "output_tokens": "completion_tokens",
        "session": "session_id"}
