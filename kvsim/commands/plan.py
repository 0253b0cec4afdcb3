"""``kvsim plan``: the cheapest way to serve a demand within its SLO, or what the next dollar buys."""

from __future__ import annotations

from pathlib import Path

import click

from kvsim.commands.common import json_option, progress, show, workers_of, workers_option


@click.command()
@click.argument("scenario")
@click.option("--set", "overrides", multiple=True, metavar="PATH=VALUE", help="Change one field, e.g. plan.spares=2.")
@click.option("--seats", type=click.IntRange(min=1), help="Seats, instead of the demand's own.")
@click.option("--max-price", type=click.FloatRange(min=0, min_open=True), help="Budget in $ per hour.")
@click.option("--fleet", type=click.IntRange(min=1), metavar="N",
              help="Replicas of the scenario that run today: show what each single change would bring.")
@click.option("--survive", type=click.IntRange(min=1), metavar="N",
              help="Simulate the loss of N nodes at the peak: the smallest fleet that survives it.")
@click.option("--day", type=click.FloatRange(min=1, max=10, min_open=True), metavar="RATIO",
              help="Simulate a day whose peak is so many times its mean: always up against autoscaled.")
@click.option("--quick", is_flag=True, help="Leave out the next best dollar, the interval of the cheapest, and what "
                                            "the scenario asks about loss and day.")
@click.option("--all", "exhaustive", is_flag=True, help="Solve every configuration, also those that cost more.")
@workers_option
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

    workers, json_file = workers_of(rest["workers"]), rest["json_file"]
    assert json_file is None or isinstance(json_file, Path)
    loaded = load_scenario(scenario, overrides)
    if loaded.disaggregation is not None and not (fleet or seats or max_price):
        from kvsim.planning.balance import balance
        from kvsim.planning.pool import process_pool

        with process_pool(workers) as run:
            table = balance(loaded, run)
        show(table.text(), json_file, table.to_dict())
        return
    survive, peak_over_mean = rest["survive"], rest["day"]
    assert survive is None or isinstance(survive, int)
    assert peak_over_mean is None or isinstance(peak_over_mean, float)
    options = PlanOptions(seats, max_price, workers, bool(rest["exhaustive"]), not rest["quick"], survive,
                          peak_over_mean, progress())
    if rest["quick"] and loaded.plan is not None:
        unasked = {"survive": survive, "day": peak_over_mean}
        part = loaded.plan.model_copy(update={name: None for name, asked in unasked.items() if asked is None})
        loaded = loaded.model_copy(update={"plan": part})
    if fleet is not None:
        changes = next_dollar(loaded, fleet, options)
        show(changes_text(changes, fleet_title(loaded, fleet)), json_file,
             {"fleet": fleet, **fleet_basis(loaded, fleet), "changes": plain_changes(changes)})
        return
    result = search(loaded, options)
    show(plan_text(result), json_file, result.to_dict())
