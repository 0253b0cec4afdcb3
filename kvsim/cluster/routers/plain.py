"""Routers that do not look at prompts."""

from __future__ import annotations

from collections.abc import Sequence

from kvsim.cluster.routers.base import BaseRouter
from kvsim.cluster.view import View


class RoundRobin(BaseRouter):
    """One after the other; with weights, a replica of weight 2 twice in a round.

    Notes
    -----
    Weights act as in nginx's smooth weighted round robin: everybody's credit grows by its weight, the largest credit is
    chosen and pays the sum of all weights (https://nginx.org/en/docs/http/ngx_http_upstream_module.html).
    """

    def __init__(self, view: View) -> None:
        super().__init__(view)
        self._credit = [0.0] * view.num_replicas

    def choose(self, row: int, now_s: float, able: Sequence[int]) -> int:
        """The next replica after the last chosen."""
        del row, now_s
        if self.weights is not None:
            return self._by_weight(able, self.weights)
        self._last = next((r for r in able if r > self._last), able[0])
        return self._last

    def _by_weight(self, able: Sequence[int], weights: Sequence[float]) -> int:
        credit = self._credit
        for r in able:
            credit[r] += weights[r]
        chosen = max(able, key=lambda r: credit[r])
        credit[chosen] -= sum([weights[r] for r in able])
        return chosen


class LeastLoaded(BaseRouter):
    """The replica with the fewest requests, waiting or running."""

    def choose(self, row: int, now_s: float, able: Sequence[int]) -> int:
        """The least loaded; ties go round."""
        del row, now_s
        return self.least_loaded(able)


class PowerOfTwo(BaseRouter):
    """The less loaded of two replicas drawn at random; with weights, drawn and compared by them.

    Notes
    -----
    M. Mitzenmacher, The power of two choices in randomized load balancing, IEEE TPDS 12 (2001). Weights act as in
    nginx's ``random two least_conn``.
    """

    def choose(self, row: int, now_s: float, able: Sequence[int]) -> int:
        """The less loaded of two; the first drawn if they are equal."""
        del row, now_s
        if len(able) == 1:
            return able[0]
        one, two = self._two(able)
        return two if self.load(two) < self.load(one) else one

    def _two(self, able: Sequence[int]) -> Sequence[int]:
        """Two different replicas."""
        rng, weights = self.view.rng, self.weights
        if weights is None:
            return rng.sample(able, 2)
        one = rng.choices(able, [weights[r] for r in able])[0]
        others = [r for r in able if r != one]
        return one, rng.choices(others, [weights[r] for r in others])[0]


class SessionAffinity(BaseRouter):
    """All requests of a session go where its first one went; that one goes to the least loaded replica."""

    def __init__(self, view: View) -> None:
        super().__init__(view)
        self._home: dict[int, int] = {}

    def choose(self, row: int, now_s: float, able: Sequence[int]) -> int:
        """The session's replica, or a new one if that cannot serve."""
        del now_s
        session = self.view.session[row]
        home = self._home.get(session, -1)
        if home not in able:
            home = self._home[session] = self.least_loaded(able)
        return home


class VllmRanks(BaseRouter):
    """vLLM's own choice among attention-DP ranks: least ``4 x waiting + running``.

    Notes
    -----
    The front end learns of both counts every 100 ms at most, and adds what it has sent itself since, as waiting
    (vLLM ``v1/engine/core_client.py`` and ``coordinator.py``). Here a snapshot is always as old as it may get.
    """

    def __init__(self, view: View) -> None:
        super().__init__(view)
        self._sent: list[tuple[float, int]] = []

    def choose(self, row: int, now_s: float, able: Sequence[int]) -> int:
        """The rank with the least score; ties go round."""
        del row
        self._sent = [(at_s, r) for at_s, r in self._sent if at_s > now_s - self.view.age_s]
        sent = [0] * self.view.num_replicas
        for _, r in self._sent:
            sent[r] += 1
        self.view.status(able[0], now_s)
        chosen = self.first_after_last(able, lambda r: self._score(r, now_s) + 4 * sent[r])
        self._sent.append((now_s, chosen))
        return chosen

    def _score(self, r: int, now_s: float) -> int:
        status = self.view.status(r, now_s)
        return 4 * status.waiting + status.running
