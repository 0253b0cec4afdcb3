"""What a window sold: tokens as served and as an infinite cache would have served them, of all turns and of those
that earn.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kvsim.engine.types import RunRecords
from kvsim.report.cost import Sales
from kvsim.report.metrics import Bools, Window, billed_tokens, ideal_tokens_billed
from kvsim.report.slo import Classes

SECONDS_PER_HOUR = 3600.0


def sales_of(records: RunRecords, window: Window, ideal: NDArray[np.int64], earns: Bools,
             classes: Classes | None = None) -> Sales:
    """What a window sold, by traffic class too where classes are given.

    Parameters
    ----------
    records : RunRecords
        The run.
    window : Window
        Measured part.
    ideal : int array [n]
        What an infinite cache would have found of each prompt.
    earns : bool array [n]
        Which requests earn.
    classes : Classes, optional
        Traffic classes of the requests; one without tokens in the window is left out.
    """
    everyone = np.ones(len(earns), bool)
    whole = _sales(records, window, ideal, (everyone, earns))
    if classes is None:
        return whole
    masks = {name: classes.index == i for i, name in enumerate(classes.names)}
    parts = {name: _sales(records, window, ideal, (mask, mask & earns)) for name, mask in masks.items() if mask.any()}
    sold = {name: part for name, part in parts.items() if part.tokens.total}
    return Sales(whole.tokens, whole.earning, whole.turns, whole.hours, whole.earning_ideal, whole.earning_turns,
                 whole.ideal, sold)


def _sales(records: RunRecords, window: Window, ideal: NDArray[np.int64], who: tuple[Bools, Bools]) -> Sales:
    """Sales of some requests, given as all of them and those that earn."""
    everyone, earns = who
    started = window.holds(records.first_token_s)
    return Sales(
        tokens=billed_tokens(records, window, everyone), earning=billed_tokens(records, window, earns),
        turns=int((started & everyone).sum()), hours=window.duration_s / SECONDS_PER_HOUR,
        earning_ideal=ideal_tokens_billed(records, window, ideal, earns), earning_turns=int((started & earns).sum()),
        ideal=ideal_tokens_billed(records, window, ideal, everyone))
