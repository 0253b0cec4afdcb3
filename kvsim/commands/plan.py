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
@click.option("--quick", is_flag=True, help="Leave out the next best dollar and the interval of the cheapest.")
@click.option("--all", "exhaustive", is_flag=True, help="Solve every configuration, also those that cost more.")
@click.option("--workers", type=click.IntRange(min=1), default=2, show_default=True, help="Processes.")
@json_option
def plan(scenario: str, overrides: tuple[str, ...], seats: int | None, max_price: float | None, fleet: int | None,
         **rest: object) -> None:
    """Find the cheapest configuration that serves a SCENARIO's demand, and what the next dollar would buy.

    With --fleet, only the latter, from a fleet of the scenario itself. Of a scenario with disaggregation: how many of
    its replicas should prefill, how many decode, and whether all should do both.
    """
    from kvsim.planning import PlanOptions
    from kvsim.planning import plan as search
    from kvsim.planning.changes import changes_text, fleet_basis, fleet_title, next_dollar, plain_changes
    from kvsim.planning.text import plan_text
    from kvsim.scenario import load_scenario

    workers, json_file = rest["workers"], rest["json_file"]
    assert isinstance(workers, int)
    assert json_file is None or isinstance(json_file, Path)
    loaded = load_scenario(scenario, overrides)
    if loaded.disaggregation is not None and not (fleet or seats or max_price):
        from kvsim.planning.balance import balance
        from kvsim.planning.pool import process_pool

        with process_pool(workers) as run:
            table = balance(loaded, run)
        show(table.text(), json_file, table.to_dict())
        return
    options = PlanOptions(seats, max_price, workers, bool(rest["exhaustive"]), not rest["quick"], progress())
    if fleet is not None:
        changes = next_dollar(loaded, fleet, options)
        show(changes_text(changes, fleet_title(loaded, fleet)), json_file,
             {"fleet": fleet, **fleet_basis(loaded, fleet), "changes": plain_changes(changes)})
        return
    result = search(loaded, options)
    show(plan_text(result), json_file, result.to_dict())
