"""One configuration under several hardware prices: prices change the bill, never what was served."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from kvsim.billing import gpus_per_node, hourly_bill
from kvsim.profiles.store import ProfileStore
from kvsim.report.bill import Bill
from kvsim.resolve import Resolved

OWNED = "owned"


@dataclass(frozen=True, slots=True)
class Offer:
    """A configuration's bill under one price profile; ``num_nodes`` are those that are paid for."""

    name: str
    bill: Bill
    num_nodes: float

    @property
    def label(self) -> str:
        """Name, basis and date, for legends."""
        return f"{self.name} ({', '.join(filter(None, (self.bill.basis, self.bill.as_of)))})"


def priced_with(resolved: Resolved, name: str, store: ProfileStore) -> Resolved:
    """The same configuration under a price profile; a rent that the scenario states replaces its own profile's."""
    prices = resolved.scenario.prices
    own = store.get("price", name).name == store.get("price", prices.compute).name
    stated = prices.usd_per_gpu_hour if own else None
    prices = prices.model_copy(update={"compute": name, "usd_per_gpu_hour": stated})
    return replace(resolved, scenario=resolved.scenario.model_copy(update={"prices": prices}))


def offer(resolved: Resolved, name: str, store: ProfileStore) -> Offer:
    """The bill of a configuration under a price profile.

    Raises
    ------
    ProfileError
        As `kvsim.billing.hourly_bill`.
    """
    priced = priced_with(resolved, name, store)
    bill = hourly_bill(priced, store)
    return Offer(name, bill, bill.units.billed_gpus / gpus_per_node(priced, store))


def offers(resolved: Resolved, store: ProfileStore) -> tuple[Offer, ...]:
    """Bills under every price profile that covers the GPU, the cheapest first.

    Examples
    --------
    >>> from kvsim.profiles.store import default_store
    >>> from kvsim.resolve import resolve
    >>> from kvsim.scenario import load_scenario
    >>> found = offers(resolve(load_scenario("k3-b300-study")), default_store())
    >>> "rental-2026-09" in [o.name for o in found]
    True
    """
    names = [n for n in store.names("price") if resolved.gpu.name in store.get("price", n).usd_per_gpu_hour]
    return tuple(sorted((offer(resolved, n, store) for n in names), key=lambda o: (o.bill.usd_per_hour, o.name)))


def counterpart(chosen: Offer, found: Sequence[Offer]) -> Offer | None:
    """What to compare an offer with: the newest owned one if it is rented, the newest rented one if it is owned."""
    others = [o for o in found if (o.bill.basis == OWNED) != (chosen.bill.basis == OWNED)]
    return max(others, key=lambda o: (o.bill.as_of, o.name), default=None)
