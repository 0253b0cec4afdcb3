"""What a configuration costs an hour: GPUs in whole buying units, cache tiers, network, each line with its origin."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from kvsim.errors import Problem, ProfileError
from kvsim.profiles.figure import Figure
from kvsim.profiles.hardware import NodeProfile, OwnedCost, PriceProfile, StorageProfile

HOURS_PER_YEAR = 8760.0
HOURS_PER_MONTH = 730.0
WATTS_PER_KW = 1000.0


@dataclass(frozen=True, slots=True)
class BillLine:
    """One line of a bill [$ per hour]: what it pays for, how it was found, and the kind of its figure."""

    what: str
    usd_per_hour: float
    how: str
    kind: str


@dataclass(frozen=True, slots=True)
class Units:
    """Buying units that hold the GPUs asked for, rounded up.

    With ``share`` a GPU count below one unit pays for its GPUs alone: others are taken to use the rest. ``more`` are
    units of other kinds that are bought beside these.

    Examples
    --------
    >>> Units(num_gpus=12, unit="node", gpus_per_unit=8).text()
    '12 GPUs in 2 nodes of 8, 4 idle'
    >>> Units(num_gpus=1, unit="node", gpus_per_unit=8, share=True).text()
    '1 GPU, a share of a node of 8 whose rest others use'
    >>> Units(16, "node", 8, more=(Units(4, "tray", 4),)).text()
    '16 GPUs in 2 nodes of 8 + 4 GPUs in 1 tray of 4'
    """

    num_gpus: int
    unit: str
    gpus_per_unit: int
    share: bool = False
    more: tuple[Units, ...] = ()

    @property
    def is_share(self) -> bool:
        """Whether less than a unit is paid for."""
        return self.share and self.num_gpus < self.gpus_per_unit

    @property
    def count(self) -> int:
        """Units, rounded up."""
        return math.ceil(self.num_gpus / self.gpus_per_unit)

    @property
    def billed_gpus(self) -> int:
        """GPUs that are paid for."""
        return self._own_billed_gpus + sum([units.billed_gpus for units in self.more])

    @property
    def _own_billed_gpus(self) -> int:
        return self.num_gpus if self.is_share else self.count * self.gpus_per_unit

    def text(self) -> str:
        """How the GPUs asked for fill the units."""
        return " + ".join([self._own_text(), *(units.text() for units in self.more)])

    def _own_text(self) -> str:
        gpus = f"{self.num_gpus} GPU{'' if self.num_gpus == 1 else 's'}"
        if self.is_share:
            return f"{gpus}, a share of a {self.unit} of {self.gpus_per_unit} whose rest others use"
        if self.gpus_per_unit == 1:
            return gpus
        idle = self._own_billed_gpus - self.num_gpus
        units = f"{self.count} {self.unit}{'' if self.count == 1 else 's'} of {self.gpus_per_unit}"
        return f"{gpus} in {units}" + (f", {idle} idle" if idle else "")


@dataclass(frozen=True, slots=True)
class Bill:
    """$ per hour of a whole configuration.

    ``basis`` is owned, contract or on-demand; ``as_of`` is the date of the compute price. ``tiers_usd_per_hour`` is the
    part that cache tiers cause.
    """

    lines: tuple[BillLine, ...]
    units: Units
    provider: str
    basis: str
    as_of: str
    tiers_usd_per_hour: float = 0.0

    @property
    def usd_per_hour(self) -> float:
        """Sum of the lines."""
        return math.fsum(line.usd_per_hour for line in self.lines)


@dataclass(frozen=True, slots=True)
class OwnedTerms:
    """How an owned GPU is paid for, beside its price profile.

    ``utilisation_frac`` is the share of all hours that the capital is spread over (1: every hour of its life);
    ``opex_frac`` is staff, spares and insurance as a share of the hourly capital cost. ``site`` pays the
    electricity of a site of one's own, or a colocation's price per kW-month, which contains it.
    """

    utilisation_frac: float = 1.0
    opex_frac: float = 0.05
    site: str = "colocation"


def capital_recovery_factor(rate_frac: float, years: float) -> float:
    """Yearly payment that pays back $1 over `years` at `rate_frac` a year: r(1+r)^N / ((1+r)^N - 1).

    Examples
    --------
    >>> round(capital_recovery_factor(0.10, 5), 4)
    0.2638
    >>> capital_recovery_factor(0.0, 4)
    0.25
    """
    if rate_frac == 0:
        return 1.0 / years
    grown = (1.0 + rate_frac) ** years
    return rate_frac * grown / (grown - 1.0)


def capital_usd_per_hour(capex_usd: float, owned: OwnedCost, utilisation_frac: float = 1.0) -> float:
    """Capital [$] as $ per hour over its life at the profile's cost of capital."""
    factor = capital_recovery_factor(owned.cost_of_capital.base, owned.life_years.base)
    return capex_usd * factor / (HOURS_PER_YEAR * utilisation_frac)


def owned_usd_per_gpu_hour(price: PriceProfile, gpu: str, power_w: float, terms: OwnedTerms) -> tuple[BillLine, ...]:
    """Cost of owning one GPU for an hour, from its capital and its power.

    Parameters
    ----------
    price : PriceProfile
        One with an ``owned`` part.
    gpu : str
        GPU profile name.
    power_w : float
        All-in power of the GPU with its share of host and network [W], facility overhead not included.
    terms : OwnedTerms
        Utilisation, opex and site.

    Raises
    ------
    ProfileError
        The profile says nothing about owning, or has no capital cost of this GPU.

    Notes
    -----
    ``capex x CRF(r, N) / (8760 x utilisation) x (1 + opex) + power``, where power is ``kW x PUE x $/kWh`` at a site of
    one's own (whose building is not in it) and ``kW x $/kW-month / 730`` in colocation.
    """
    owned = price.owned
    if owned is None or gpu not in owned.capex_per_gpu:
        known = ", ".join(sorted(owned.capex_per_gpu)) if owned else "none"
        problem = Problem("price profile", "", f"{price.name!r}, without the capital cost of {gpu!r}",
                          f"a profile with it; this one has: {known}")
        raise ProfileError(f"price profile {price.name!r} cannot say what owning {gpu!r} costs", [problem])
    capex = owned.capex_per_gpu[gpu]
    capital = capital_usd_per_hour(capex.base, owned, terms.utilisation_frac)
    years, rate = owned.life_years.base, owned.cost_of_capital.base
    return (
        BillLine("capital", capital, f"${capex.base:,.0f} over {years:g} years at {rate:.0%}, "
                 f"{terms.utilisation_frac:.0%} of the hours", capex.kind),
        BillLine("opex", capital * terms.opex_frac, f"{terms.opex_frac:.0%} of the capital cost", "assumed"),
        _power_line(owned, power_w / WATTS_PER_KW, terms.site),
    )


def _power_line(owned: OwnedCost, power_kw: float, site: str) -> BillLine:
    if site == "colocation":
        rate = owned.colocation
        return BillLine("colocation", power_kw * rate.base / HOURS_PER_MONTH,
                        f"{power_kw:.2f} kW x ${rate.base:g} a kW-month", rate.kind)
    usd = power_kw * owned.pue.base * owned.electricity.base
    return BillLine("electricity", usd, f"{power_kw:.2f} kW x PUE {owned.pue.base:g} x ${owned.electricity.base:g}/kWh",
                    owned.pue.kind)


def gpu_lines(lines: tuple[BillLine, ...], units: Units) -> tuple[BillLine, ...]:
    """Lines of one GPU as lines of all GPUs that are paid for."""
    return tuple(BillLine(f"GPUs: {line.what}", line.usd_per_hour * units.billed_gpus,
                          f"{units.billed_gpus} x ({line.how})", line.kind) for line in lines)


def rented_line(price: PriceProfile, figure: Figure) -> BillLine:
    """One GPU at a published price an hour."""
    how = f"${figure.base:g} a GPU-hour, {price.provider}, {price.as_of}"
    return BillLine(price.basis, figure.base, how, figure.kind)


def tier_line(storage: StorageProfile, capacity_bytes: float, owned: OwnedCost) -> BillLine:
    """A cache tier bought at its medium's price and written off like a server.

    Parameters
    ----------
    storage : StorageProfile
        What the tier is made of.
    capacity_bytes : float
        Capacity of all replicas together.
    owned : OwnedCost
        Life and cost of capital.
    """
    usd = capital_usd_per_hour(storage.capex.base * capacity_bytes, owned)
    how = f"{capacity_bytes / 1e9:,.0f} GB x ${storage.capex.base * 1e9:.3g}/GB over {owned.life_years.base:g} years"
    return BillLine(f"tier: {storage.medium}", usd, how, storage.capex.kind)


def units_of(num_gpus: int, node: NodeProfile | None, whole_units: bool | None) -> Units:
    """Buying units of a GPU count: the node profile's, or single GPUs.

    `whole_units` None rounds up what is larger than a unit and lets what is smaller be a share of one.
    """
    if node is None or whole_units is False:
        return Units(num_gpus, "GPU", 1)
    unit = node.buying_unit
    return Units(num_gpus, unit.unit, int(unit.num_gpus.base), whole_units is None)


def bill_text(bill: Bill) -> str:
    """A bill as text, a line each."""
    rows = [f"  {line.usd_per_hour:>10,.3f}  {line.what}: {line.how} [{line.kind}]" for line in bill.lines]
    head = f"${bill.usd_per_hour:,.2f} per hour, {bill.basis}, as of {bill.as_of}; {bill.units.text()}"
    return "\n".join([head, *rows])


def explicit_line(kind: str, usd_per_hour: Mapping[str, float], replicas: int) -> BillLine:
    """A tier whose $ per hour and replica the scenario states."""
    return BillLine(f"tier: {kind}", usd_per_hour[kind] * replicas, "as the scenario states", "nominal")
