"""``kvsim plan``: the cheapest way to serve a demand within its SLO, or what the next dollar buys."""

from __future__ import annotations

from pathlib import Path

import click

from kvsim.commands.common import json_option, progress, show


@click.command()
@click.argument("scenario")
@click.option("--set", "overrides", multiple=True, metavar="PATH=VALUE", help="Change one field, e.g. plan.spares=2.")
@click.option("--seats", type=click.IntRange(min=1), help="Seats, instead of the demand's own.")
@click.option("--max-price", type=click.FloatRange(min=0, min_open=True), help="Budget in $ per hour.")
@click.option("--fleet", type=click.IntRange(min=1), metavar="N",
              help="Replicas of the scenario that run today: show what each single change would bring.")
@click.option("--all", "exhaustive", is_flag=True, help="Solve every configuration, also those that cost more.")
@click.option("--workers", type=click.IntRange(min=1), default=2, show_default=True, help="Processes.")
@json_option
def plan(scenario: str, overrides: tuple[str, ...], seats: int | None, max_price: float | None, fleet: int | None,
         **rest: object) -> None:
    """Find the cheapest configuration that serves a SCENARIO's demand, or, with --fleet, the next best dollar."""
    from kvsim.planning.changes import changes_text, next_dollar, plain_changes
    from kvsim.planning.search import PlanOptions
    from kvsim.planning.search import plan as search
    from kvsim.planning.text import plan_text
    from kvsim.scenario import load_scenario

    workers, json_file = rest["workers"], rest["json_file"]
    assert isinstance(workers, int)
    assert json_file is None or isinstance(json_file, Path)
    loaded = load_scenario(scenario, overrides)
    options = PlanOptions(seats, max_price, workers, bool(rest["exhaustive"]), progress())
    if fleet is not None:
        changes = next_dollar(loaded, fleet, options)
        show(changes_text(changes, fleet), json_file, {"fleet": fleet, "changes": plain_changes(changes)})
        return
    result = search(loaded, options)
    show(plan_text(result), json_file, result.to_dict())
