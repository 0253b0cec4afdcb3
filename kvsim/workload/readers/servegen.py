"""ServeGen client files: rates and length distributions, from which requests are generated."""

from __future__ import annotations

import ast
import math
from collections.abc import Mapping
from typing import Any, cast

import numpy as np

from kvsim.rng import stream
from kvsim.workload.readers.reading import Reading
from kvsim.workload.readers.report import BadRow, text_of
from kvsim.workload.readers.source import json_rows
from kvsim.workload.requests import Floats, Ints
from kvsim.workload.table import Entry, Trace

WINDOW_S = 600.0
"""Length of a window of constant rate [s]."""


def read_servegen(reading: Reading) -> Trace:
    """Generate requests from ``client``, ``windows`` and ``dataset``.

    Notes
    -----
    A window ``[t_s, rate, cv, family, arg1, arg2]`` lasts 600 s; gaps between its requests are drawn from
    Gamma(shape, scale) or Weibull(shape, scale), the first one too. Lengths are drawn independently from the table of
    probabilities in force (where that one is empty, from the nearest). `ReadOptions.start_s` and ``duration_s``
    choose the part of the day. Lengths and arrivals only: a client is a customer, not a session.

    Source: https://github.com/alibaba/ServeGen (Apache-2.0); Xiang et al., ServeGen (2025).
    """
    reading.report.note(f"{reading.path.name}: generated from rates and length distributions, "
                        f"{reading.options.duration_s:g} s from {reading.options.start_s:g} s, "
                        f"seed {reading.options.seed}")
    reading.each(json_rows(reading.path), lambda row: _client(reading, row))
    return reading.finish(interleaved=True)


def _client(reading: Reading, row: dict[str, Any]) -> None:
    """Generate the requests of one client."""
    client, windows, tables = text_of(row, "client"), _windows(row), _tables(row)
    rng = stream(reading.options.seed, f"servegen client {client}")
    low, high = reading.options.start_s, reading.options.start_s + reading.options.duration_s
    for start_s, family, arg1, arg2 in windows:
        times = start_s + _arrivals(rng, family, arg1, arg2)
        times = times[(times >= low) & (times < high)]
        if not len(times):
            continue
        inputs, outputs = tables[min(tables, key=lambda t: (t > start_s, abs(t - start_s)))]
        lengths = zip(times.tolist(), _draw(rng, inputs, len(times)), _draw(rng, outputs, len(times)), strict=True)
        for time_s, tokens, output in lengths:
            builder = reading.builder
            builder.add(Entry(time_s, tokens, output, f"#{len(builder)}",
                              [(builder.fresh(), tokens)] if tokens else [], builder.fresh()))


def _arrivals(rng: np.random.Generator, family: str, arg1: float, arg2: float) -> Floats:
    """Arrivals [s] of one window."""
    mean_s = arg1 * arg2 if family == "Gamma" else arg2 * math.gamma(1 + 1 / arg1)
    count = int(2 * WINDOW_S / mean_s) + 16
    times = np.zeros(0)
    while not len(times) or times[-1] < WINDOW_S:
        gaps = rng.gamma(arg1, arg2, count) if family == "Gamma" else arg2 * rng.weibull(arg1, count)
        times = np.concatenate([times, np.cumsum(gaps) + (times[-1] if len(times) else 0.0)])
    return times[times < WINDOW_S]


def _draw(rng: np.random.Generator, table: tuple[Ints, Floats], count: int) -> list[int]:
    return rng.choice(table[0], size=count, p=table[1]).tolist()


def _windows(row: dict[str, Any]) -> list[tuple[float, str, float, float]]:
    accepted = "[[t_s, rate, cv, 'Gamma' or 'Weibull', arg1 > 0, arg2 > 0], ...]"
    windows: list[tuple[float, str, float, float]] = []
    try:
        for start_s, rate, _, family, arg1, arg2 in cast("list[Any]", row["windows"]):
            if not rate:
                continue
            if family not in ("Gamma", "Weibull") or not 0 < arg1 < math.inf or not 0 < arg2 < math.inf:
                raise BadRow("windows", repr([family, arg1, arg2])[:60], accepted)
            windows.append((float(start_s), str(family), float(arg1), float(arg2)))
    except (TypeError, ValueError, KeyError) as error:
        if isinstance(error, BadRow):
            raise
        raise BadRow("windows", repr(row.get("windows"))[:40], accepted) from error
    return windows


def _tables(row: dict[str, Any]) -> dict[float, tuple[tuple[Ints, Floats], tuple[Ints, Floats]]]:
    """Length tables by the time from which they hold [s]; empty ones, of hours without requests, are left out."""
    try:
        dataset = cast("Mapping[str, Mapping[str, Any]]", row["dataset"])
        found = {float(t): (_table(d["input_tokens"]), _table(d["output_tokens"])) for t, d in dataset.items()
                 if d["input_tokens"] not in ("{}", {}) and d["output_tokens"] not in ("{}", {})}
    except (TypeError, ValueError, KeyError, AttributeError, SyntaxError) as error:
        raise BadRow("dataset", repr(row.get("dataset"))[:40],
                     "{t_s: {input_tokens: {length: probability}, output_tokens: ...}}") from error
    if not found:
        raise BadRow("dataset", "empty", "at least one table")
    return found


def _table(text: object) -> tuple[Ints, Floats]:
    """Lengths and probabilities that add up to 1."""
    given = cast("dict[Any, float]", ast.literal_eval(text) if isinstance(text, str) else text)
    lengths = np.array([int(k) for k in given], np.int64)
    weights = np.array(list(given.values()), np.float64)
    if not len(lengths) or (lengths < 0).any() or (weights < 0).any() or not weights.sum() > 0:
        raise ValueError("no distribution")
    return lengths, weights / weights.sum()
