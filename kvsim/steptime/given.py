"""Step times that a scenario states itself."""

from __future__ import annotations

from dataclasses import replace

from kvsim.errors import ScenarioError
from kvsim.scenario import LinearStep, TableStep
from kvsim.steptime.base import LinearStepTime
from kvsim.steptime.table import Grid, Reach, TableStepTime

_FIELDS = {"table decode": {"rows": "sequences", "columns": "context_tokens"},
           "table prefill": {"rows": "tokens", "columns": "offset_tokens"}}


def given_step_time(given: LinearStep | TableStep, reach: Reach, origin: str) -> LinearStepTime | TableStepTime:
    """The step-time model that a scenario states as ``engine.step_time``.

    Parameters
    ----------
    given : LinearStep or TableStep
        Coefficients, or measured times.
    reach : Reach
        The engine's limits, which measured times have to cover.
    origin : str
        The scenario in messages.

    Raises
    ------
    ScenarioError
        Measurements that are no grid, or do not cover what the engine may do.

    Examples
    --------
    >>> part = LinearStep(kind="linear", base_s=0.01, per_prefill_token_s=1e-4, per_decode_seq_s=1e-3)
    >>> given_step_time(part, Reach(64, 4096, 8192), "scenario")
    LinearStepTime(base_s=0.01, per_prefill_token_s=0.0001, per_decode_seq_s=0.001)
    """
    if isinstance(given, LinearStep):
        return LinearStepTime(given.base_s, given.per_prefill_token_s, given.per_decode_seq_s)
    decode, prefill = given.decode, given.prefill
    try:
        return TableStepTime(Grid("decode", decode.sequences, decode.context_tokens, decode.times_s),
                             Grid("prefill", prefill.tokens, prefill.offset_tokens, prefill.times_s), reach)
    except ScenarioError as err:
        problems = [replace(p, where=origin, field=f"engine.step_time.{p.where.removeprefix('table ')}."
                                                   f"{_FIELDS[p.where].get(p.field, p.field)}") for p in err.problems]
        raise ScenarioError(err.message, problems) from None
