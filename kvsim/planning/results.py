"""What a plan found: options by price, why the rest fails, what the next dollar buys, how sure it is."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from kvsim.planning.trials import Trial, plain_trial
from kvsim.report.bill import Bill
from kvsim.report.report import plain
from kvsim.report.slo import ParetoPoint, pareto
from kvsim.scenario import Scenario

if TYPE_CHECKING:
    from kvsim.planning.day import Day
    from kvsim.planning.survival import Survival


@dataclass(frozen=True, slots=True)
class Spread:
    """Median and extremes, over seeds or draws."""

    low: float
    median: float
    high: float


@dataclass(frozen=True, slots=True)
class Change:
    """One change from today.

    Attributes
    ----------
    what : str
        The change; "today" is the fleet as it is.
    sessions : Spread
        Live sessions of the whole fleet inside the SLO.
    usd_per_hour : float
        Of the whole fleet.
    extra_sessions : Spread
        Against today, seed by seed.
    extra_usd_per_hour : float
        Against today.
    usd_per_extra_session : Spread
        $ per hour and extra session; inf where it is not more sessions, 0 or less where it costs nothing more.
    note : str
        Why a change is not possible, or not simulated.
    """

    what: str
    sessions: Spread
    usd_per_hour: float
    extra_sessions: Spread
    extra_usd_per_hour: float
    usd_per_extra_session: Spread
    note: str = ""


@dataclass(frozen=True, slots=True)
class PlanInterval:
    """How far the cheapest option moves with the ranges of its figures and with the traffic.

    Attributes
    ----------
    usd_per_hour : Spread
        Of the fleet that the demand needs; inf where a replica cannot carry a single session within the SLO.
    sessions_per_replica : Spread
        Most live sessions that keep the SLO; the median is that of the plan.
    draws, seeds : int
        Draws of all figures together (Latin hypercube, the plan's own traffic), and seeds at nominal figures.
    figures : tuple of str
        What was drawn.
    """

    usd_per_hour: Spread
    sessions_per_replica: Spread
    draws: int
    seeds: int
    figures: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Need:
    """The demand in live sessions, and how it was found; ``seats`` where they are known."""

    live_sessions: int
    how: str
    seats: int | None = None


@dataclass(frozen=True, slots=True)
class Option:
    """A configuration that serves the demand within every limit.

    ``gpus`` and ``usd_per_hour`` include spares and whole buying units; ``sessions_per_replica`` is what each has to
    carry; ``broken`` is the trial with the fewest sessions that broke the SLO, None where none was needed;
    ``scenario`` is one replica's; ``replicas_per_node`` are lost with a node.
    """

    name: str
    sessions_per_replica: int
    replicas: int
    spares: int
    gpus: int
    usd_per_hour: float
    power_kw: float
    usd_per_seat_month: float
    seats_per_node: float
    trial: Trial
    broken: Trial | None
    trust: str
    bill: Bill
    scenario: Scenario | None = None
    replicas_per_node: int = 1


@dataclass(frozen=True, slots=True)
class Rejected:
    """A configuration that does not serve the demand, or not as cheaply as another one: why, and its best trial."""

    name: str
    why: str
    trial: Trial | None = None
    serves: bool = False


@dataclass(frozen=True, slots=True)
class PlanResult:
    """Options by price, the cheapest first, and why every other configuration is not one.

    ``changes`` are all single changes from the cheapest option's fleet, today's first, and ``interval`` is that of its
    price; ``survival`` is what the loss of a node does to it, ``day`` what a day below its peak costs; all of them only
    where they were asked for.
    """

    scenario: str
    need: Need
    options: tuple[Option, ...]
    rejected: tuple[Rejected, ...]
    simulations: int
    changes: tuple[Change, ...] = ()
    interval: PlanInterval | None = None
    survival: Survival | None = None
    day: Day | None = None

    @property
    def best(self) -> Option:
        """The cheapest option."""
        return self.options[0]

    @property
    def front(self) -> tuple[ParetoPoint, ...]:
        """Options that no other one beats in both throughput a GPU and interactivity, at the load of the plan."""
        return pareto(ParetoPoint(o.name, o.trial.tokens_per_s_per_gpu, o.trial.interactivity_tokens_per_s)
                      for o in self.options)

    def to_dict(self) -> dict[str, Any]:
        """Plain data; base units, nan as None."""
        return {"name": self.scenario, "live_sessions": self.need.live_sessions, "seats": self.need.seats,
                "simulations": self.simulations, "options": [_plain_option(o) for o in self.options],
                "pareto": [asdict(p) for p in self.front],
                "changes": plain(self.changes), "interval": plain(self.interval),
                "survival": self.survival.to_dict() if self.survival else None,
                "day": self.day.to_dict() if self.day else None,
                "rejected": [{"name": r.name, "why": r.why, "trial": plain_trial(r.trial)} for r in self.rejected]}


def _plain_option(option: Option) -> dict[str, Any]:
    known = {"usd_per_seat_month": option.usd_per_seat_month, "seats_per_node": option.seats_per_node,
             "power_w": option.power_kw * 1e3}
    return {"name": option.name, "replicas": option.replicas, "spares": option.spares, "gpus": option.gpus,
            "sessions_per_replica": option.sessions_per_replica, "usd_per_hour": option.usd_per_hour,
            **{k: v if math.isfinite(v) else None for k, v in known.items()},
            "trust": option.trust, "as_of": option.bill.as_of, "basis": option.bill.basis,
            "units": option.bill.units.text(), "trial": plain_trial(option.trial), "broken": plain_trial(option.broken),
            "scenario": option.scenario.to_dict() if option.scenario else None}
