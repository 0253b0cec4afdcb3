"""The same traffic on other platforms, each at its own price; no Streamlit."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from kvsim.dashboard import money
from kvsim.dashboard.choices import PREDICTED, Choices, reconcile, scenario_of
from kvsim.dashboard.results import CONTRIBUTION, HIT, TTFT_P95, median
from kvsim.dashboard.verdict import machine_title
from kvsim.errors import KvsimError
from kvsim.planning.offers import offer as offer_of
from kvsim.profiles.store import ProfileStore
from kvsim.resolve import Resolved, resolve
from kvsim.study import Row

PLATFORMS = ("b300-sxm", "gb300", "mi355x", "h200-sxm", "b200-sxm")
"""Platforms beside the chosen one, the first four that differ."""
NUM_PLATFORMS = 4


@dataclass(frozen=True, slots=True)
class Platform:
    """One platform: its choices, and what they resolve to, or why nothing fits."""

    choices: Choices
    resolved: Resolved | None
    obstacle: str = ""

    @property
    def title(self) -> str:
        """GPUs for people."""
        gpu = self.choices.gpu.upper().removesuffix("-SXM").replace("-", " ")
        return machine_title(self.resolved) if self.resolved else f"{self.choices.num_gpus} x {gpu}"


def platforms(choices: Choices, store: ProfileStore) -> tuple[Platform, ...]:
    """The chosen platform and three others with as many GPUs.

    Examples
    --------
    >>> from kvsim.dashboard.choices import default_choices
    >>> from kvsim.profiles.store import default_store
    >>> store = default_store()
    >>> [(p.title, bool(p.resolved)) for p in platforms(default_choices(store), store)]
    [('8 x B300', True), ('8 x GB300', True), ('8 x MI355X', True), ('8 x H200', False)]
    """
    names = [choices.gpu, *(gpu for gpu in PLATFORMS if gpu != choices.gpu)][:NUM_PLATFORMS]
    return tuple(_platform(choices if gpu == choices.gpu else _moved(choices, gpu, store), store) for gpu in names)


def _moved(choices: Choices, gpu: str, store: ProfileStore) -> Choices:
    """The same configuration on another GPU, whose pool no log gives."""
    return replace(reconcile(replace(choices, gpu=gpu), choices, store), pool=PREDICTED)


def _platform(choices: Choices, store: ProfileStore) -> Platform:
    try:
        return Platform(choices, resolve(scenario_of(choices), store))
    except KvsimError as err:
        hints = [str(p.accepted) for p in err.problems if "fits on" in str(p.accepted)]
        return Platform(choices, None, (hints or [err.message.splitlines()[0]])[0])


def list_price(choices: Choices, store: ProfileStore) -> float:
    """$ per GPU-hour as stated, else of the price profile; nan where it does not cover the GPU."""
    if choices.usd_per_gpu_hour is not None:
        return choices.usd_per_gpu_hour
    figure = store.get("price", choices.compute).usd_per_gpu_hour.get(choices.gpu)
    return math.nan if figure is None else figure.base


@dataclass(frozen=True, slots=True)
class Deal:
    """A platform at a price.

    Attributes
    ----------
    bill_usd_per_hour : float
        Of the whole replica, tiers included.
    contribution_usd_per_hour : float
        Revenue less bill of the replica, however many nodes it has; nan without an API price.
    break_even_usd_per_mtok : float
        The bill on all tokens.
    break_even_usd_per_gpu_hour : float
        The GPU price at which contribution is 0: below it, money is made.
    """

    bill_usd_per_hour: float
    contribution_usd_per_hour: float
    break_even_usd_per_mtok: float
    break_even_usd_per_gpu_hour: float


def deal(platform: Platform, row: Row, usd_per_gpu_hour: float, store: ProfileStore) -> Deal:
    """A simulated platform at a price a GPU and hour; prices change no simulation.

    Raises
    ------
    ProfileError
        As `kvsim.billing.hourly_bill`.
    """
    assert platform.resolved is not None
    offer = offer_of(platform.resolved, platform.choices.compute, store)
    gpus = offer.bill.units.billed_gpus
    own = offer.bill.usd_per_hour
    bill = own + gpus * (usd_per_gpu_hour - list_price(platform.choices, store))
    earned = median(row, CONTRIBUTION) * offer.num_nodes + own
    return Deal(bill, earned - bill, money.break_even(row, offer) * bill / own,
                usd_per_gpu_hour + (earned - bill) / gpus)


def platform_text(platform: Platform, row: Row) -> str:
    """What a platform does with the traffic, in a line."""
    assert platform.resolved is not None
    tokens = platform.resolved.capacity.kv_tokens
    return (f"{tokens / 1e6:,.2f}M tokens of KV, {median(row, HIT):.0%} reused, "
            f"TTFT p95 {median(row, TTFT_P95):,.1f} s; {row.reports[0].cost.trust}")


def best_of(deals: Sequence[Deal | None]) -> int | None:
    """Which platform earns the most an hour; None where none is known to earn.

    >>> best_of([None, Deal(1, 5, 1, 1), Deal(1, 7, 1, 1)])
    2
    """
    known = [(d.contribution_usd_per_hour, k) for k, d in enumerate(deals)
             if d is not None and not math.isnan(d.contribution_usd_per_hour)]
    return max(known)[1] if known else None
