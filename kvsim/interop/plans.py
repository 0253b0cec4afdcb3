"""Scenarios out of a plan's result."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from kvsim.errors import Problem, ScenarioError
from kvsim.scenario import Scenario, apply_override, load_scenario


def load_scenario_or_plan(source: str, overrides: Sequence[str] = ()) -> Scenario:
    """A scenario by path or shipped name, or the cheapest option of a plan's JSON.

    Parameters
    ----------
    source : str
        As for `kvsim.scenario.load_scenario`, or a file that ``kvsim plan --json`` wrote.
    overrides : sequence of str
        ``path=value``.

    Raises
    ------
    ScenarioError
        Not found, not JSON, or JSON without a plan's options.

    Examples
    --------
    >>> load_scenario_or_plan("k3-b300-study").layout.tp
    8
    """
    path = Path(source)
    if path.suffix != ".json" or not path.is_file():
        return load_scenario(source, overrides)
    data = _winner(path)
    for text in overrides:
        data = apply_override(data, text)
    return Scenario.from_dict(data, str(path))


def _winner(path: Path) -> dict[str, Any]:
    """The scenario of the first option of a plan, or the scenario itself."""
    try:
        data: Any = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as err:
        reason = getattr(err, "strerror", None) or str(err)
        raise ScenarioError("cannot read the plan", [Problem(str(path), "", reason, "JSON of kvsim plan")]) from None
    whole = cast("dict[str, Any]", data) if isinstance(data, dict) else {}
    options = cast("list[dict[str, Any]]", whole.get("options") or [{}])
    found: Any = whole if "schema" in whole else options[0].get("scenario") or whole.get("scenario")
    if not isinstance(found, dict):
        problem = Problem(str(path), "options.0.scenario", "", "a plan with its scenarios", "kvsim plan --json FILE")
        raise ScenarioError("this is no plan's result", [problem])
    return cast("dict[str, Any]", found)
