"""What a router is, and how the least of several is chosen."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from kvsim.cluster.view import View


class Router(Protocol):
    """Chooses a replica for every request; sees the cluster through its view only."""

    def choose(self, row: int, now_s: float, able: Sequence[int]) -> int:
        """One of the replicas in `able`, which are up and can serve the request; in rising order, never empty."""
        ...

    def ended(self, row: int, r: int, now_s: float) -> None:
        """A request has ended on a replica, or was taken from it."""
        ...

    def lost(self, r: int) -> None:
        """A replica has lost its cache and all its requests."""
        ...


class BaseRouter:
    """A router that only looks at its view.

    Parameters
    ----------
    view : View
        The cluster.

    Attributes
    ----------
    weights : list of float, or None
        Weight of each replica, where they differ.
    """

    def __init__(self, view: View) -> None:
        self.view = view
        weights = [replica.spec.weight for replica in view.fleet.replicas]
        self.weights = weights if len(set(weights)) > 1 else None
        self._last = -1

    def ended(self, row: int, r: int, now_s: float) -> None:
        """Nothing to remember."""

    def lost(self, r: int) -> None:
        """Nothing to forget."""

    def load(self, r: int) -> float:
        """Requests of a replica, for its weight."""
        load = self.view.load[r]
        return load if self.weights is None else load / self.weights[r]

    def least_loaded(self, able: Sequence[int]) -> int:
        """The replica with the fewest requests for its weight; of equal ones the next after the last chosen."""
        if self.weights is not None:
            return self.first_after_last(able, self.load)
        load, at = self.view.load, self._last + 1
        if len(able) < len(load):
            return self.first_after_last(able, lambda r: load[r])
        least = min(load)
        self._last = load.index(least, at) if least in load[at:] else load.index(least)
        return self._last

    def first_after_last(self, able: Sequence[int], cost: Callable[[int], float]) -> int:
        """The replica with the least cost; of equal ones the next after the last chosen."""
        costs = [cost(r) for r in able]
        least = min(costs)
        tied = [r for r, c in zip(able, costs, strict=True) if c == least]
        self._last = next((r for r in tied if r > self._last), tied[0])
        return self._last
