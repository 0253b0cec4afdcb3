"""Routers that look for a replica that has the prompt's beginning."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from typing import Literal

from kvsim.cluster.routers.base import BaseRouter
from kvsim.cluster.view import RoutedPrefixes, View


class PrefixAware(BaseRouter):
    """The replica with the longest cached prefix, unless it is overloaded; among equals the least loaded.

    Parameters
    ----------
    view : View
        The cluster.
    sees : "index" or "routed"
        Whether it follows the replicas' caches (their events), or remembers what it sent where.
    max_load_ratio, slack : float
        A replica with more than ``max_load_ratio`` x the least load + ``slack`` requests is passed over. Assumed: the
        ratio is that of SGLang's gateway (1 to 3), the slack leaves small loads alone (0 to its 64).
    """

    def __init__(self, view: View, sees: Literal["index", "routed"] = "index", max_load_ratio: float = 1.5,
                 slack: float = 8.0) -> None:
        super().__init__(view)
        self._ratio, self._slack, self._private = max_load_ratio, slack, view.private()
        self._routed = RoutedPrefixes(view, _pools(view)) if sees == "routed" else None

    def choose(self, row: int, now_s: float, able: Sequence[int]) -> int:
        """The best match among those that are not overloaded."""
        del now_s
        view = self.view
        if self._private[row]:
            return self.least_loaded(able)
        loads = view.load if self.weights is None else [self.load(r) for r in range(view.num_replicas)]
        most = self._ratio * min([loads[r] for r in able]) + self._slack
        found = {r: tokens for r, tokens in zip(able, self._matched(row, able), strict=True) if loads[r] <= most}
        longest = max(found.values())
        chosen = self.least_loaded([r for r, tokens in found.items() if tokens == longest])
        if self._routed is not None:
            self._routed.note(self._routed.path(row), chosen)
        return chosen

    def lost(self, r: int) -> None:
        """Nothing is there any more."""
        if self._routed is not None:
            self._routed.forget(r)

    def _matched(self, row: int, able: Sequence[int]) -> list[int]:
        """Length of the prefix that each replica has."""
        if self._routed is None:
            return [sum(self.view.cached_tokens(row, r)) for r in able]
        path = self._routed.path(row)
        return [self._routed.matched_blocks(path, r) for r in able]


class SglangGateway(BaseRouter):
    """SGLang's gateway, ``cache_aware``: the best match if it is good and loads are even, else the emptiest.

    Parameters
    ----------
    view : View
        The cluster.
    cache_threshold : float
        Least share of the prompt that must match, 0 to 1.
    balance_abs_threshold, balance_rel_threshold : float
        Loads are uneven when they differ by more than the first and the largest is more than the second times the
        least: then the shortest queue gets the request.
    max_tree_tokens : float
        How much it remembers of each replica. The source counts 2^26 characters; four are taken for a token (assumed;
        3 to 5).

    Notes
    -----
    It remembers prompts that it sent, not what replicas have evicted, and counts the requests itself. Eviction from its
    tree happens here when the tree is full, in the source every two minutes. Defaults:
    https://docs.sglang.io/advanced_features/router.html.
    """

    def __init__(self, view: View, cache_threshold: float = 0.3, balance_abs_threshold: float = 64.0,
                 balance_rel_threshold: float = 1.5, max_tree_tokens: float = 2.0 ** 24) -> None:
        super().__init__(view)
        self._threshold, self._abs, self._rel = cache_threshold, balance_abs_threshold, balance_rel_threshold
        self._tree = RoutedPrefixes(view, [max_tree_tokens] * view.num_replicas)

    def choose(self, row: int, now_s: float, able: Sequence[int]) -> int:
        """Shortest queue if loads are uneven, else best match, else smallest tree."""
        del now_s
        tree, path = self._tree, self._tree.path(row)
        loads = [self.view.load[r] for r in able]
        if max(loads) - min(loads) > self._abs and max(loads) > self._rel * min(loads):
            chosen = self.least_loaded(able)
        else:
            matched = {r: tree.matched_blocks(path, r) for r in able}
            best = max(able, key=lambda r: matched[r])
            whole = max(self.view.prompt_tokens[row] / self.view.block_tokens, 1e-9)
            is_good = matched[best] / whole > self._threshold
            chosen = best if is_good else self.first_after_last(able, lambda r: tree.num_blocks[r])
        tree.note(path, chosen)
        return chosen

    def lost(self, r: int) -> None:
        """A worker that comes back is a new one."""
        self._tree.forget(r)


class Dynamo(BaseRouter):
    """NVIDIA Dynamo's KV router: the least sum of prefill blocks to compute and blocks that decode.

    Parameters
    ----------
    view : View
        The cluster.
    prefill_weight, overlap_weight, active_weight : float
        ``w_p``, ``w_o`` and ``w_a`` of the cost.
    host_credit : float
        Part of a block in a lower tier that counts as found.
    temperature : float
        0 takes the least cost (ties at random); above it, chances are a softmax of costs divided by the largest.

    Notes
    -----
    ``cost = w_p max(0, P - credit) + D + w_a active``, with ``P`` = (queued prefill tokens + the request's) / block,
    ``credit`` = ``w_o`` x blocks in the pool + ``host_credit`` x those in lower tiers, ``D`` = blocks of active
    requests. The router follows the replicas' events for the first and its own requests for the others; a prompt
    counts as queued until its first token is out. Shared blocks of active requests are counted once each.
    https://docs.nvidia.com/dynamo/v1.2.1/components/router/configuration-and-tuning.md
    """

    def __init__(self, view: View, prefill_weight: float = 1.0, overlap_weight: float = 1.0,
                 active_weight: float = 0.0, host_credit: float = 0.75, temperature: float = 0.0) -> None:
        super().__init__(view)
        self._weights = (prefill_weight, overlap_weight, active_weight, host_credit)
        self._temperature, self._private = temperature, view.private()
        self._queued: list[deque[tuple[int, int]]] = [deque() for _ in range(view.num_replicas)]
        self._queued_tokens = [0] * view.num_replicas
        self._active_tokens = [0] * view.num_replicas

    def choose(self, row: int, now_s: float, able: Sequence[int]) -> int:
        """The least cost, or a draw."""
        view = self.view
        found = {r: view.cached_tokens(row, r) for r in able} if not self._private[row] else {}
        costs = [self._cost(row, now_s, r, found.get(r, (0, 0))) for r in able]
        chosen = self._draw(able, costs)
        new = max(view.prompt_tokens[row] - sum(found.get(chosen, (0, 0))), 0)
        self._queued[chosen].append((row, new))
        self._queued_tokens[chosen] += new
        self._active_tokens[chosen] += view.prompt_tokens[row]
        return chosen

    def ended(self, row: int, r: int, now_s: float) -> None:
        """A request holds no blocks any more."""
        del now_s
        self._active_tokens[r] -= self.view.prompt_tokens[row]

    def lost(self, r: int) -> None:
        """Nothing is there any more."""
        self._queued[r].clear()
        self._queued_tokens[r] = self._active_tokens[r] = 0

    def _cost(self, row: int, now_s: float, r: int, cached: tuple[int, int]) -> float:
        prefill_weight, overlap_weight, active_weight, host_credit = self._weights
        self._drop_started(r, now_s)
        prefill = self._queued_tokens[r] + self.view.prompt_tokens[row]
        credit = overlap_weight * cached[0] + host_credit * cached[1]
        tokens = prefill_weight * max(prefill - credit, 0.0) + self._active_tokens[r]
        return tokens / self.view.block_tokens + active_weight * self.view.load[r]

    def _drop_started(self, r: int, now_s: float) -> None:
        """Prompts whose first token is out are not queued any more."""
        queued, first_token_s = self._queued[r], self.view.fleet.columns.first_token_s
        while queued and first_token_s[queued[0][0]] <= now_s:
            self._queued_tokens[r] -= queued.popleft()[1]

    def _draw(self, able: Sequence[int], costs: list[float]) -> int:
        rng, least = self.view.rng, min(costs)
        if not self._temperature:
            tied = [r for r, cost in zip(able, costs, strict=True) if cost == least]
            return tied[0] if len(tied) == 1 else rng.choice(tied)
        scale = max(costs) * self._temperature or 1.0
        return rng.choices(able, [math.exp((least - cost) / scale) for cost in costs])[0]


class LlmD(BaseRouter):
    """llm-d's scheduler: the largest weighted sum of scores for prefix, queue and KV use.

    Parameters
    ----------
    view : View
        The cluster.
    prefix_weight, queue_weight, kv_weight : float
        Weights of the scores, each 0 to 1.
    max_prefix_tokens : float
        How much of a prompt is compared. The source compares 256 blocks of 16 tokens, so all that is behind them looks
        alike to it; inf compares everything.

    Notes
    -----
    prefix = matched / compared blocks, of prompts that it sent, as much as each pool holds; queue = (max - waiting) /
    (max - min); kv = 1 - used share of the pool. It scrapes the replicas every 50 ms. Ties at random.
    https://github.com/llm-d/llm-d-inference-scheduler and, for weights,
    https://docs.gpustack.ai/gpustack-operator/main/docs/modules/model-deployment/routing/.
    """

    def __init__(self, view: View, prefix_weight: float = 3.0, queue_weight: float = 2.0, kv_weight: float = 2.0,
                 max_prefix_tokens: float = 4096.0) -> None:
        super().__init__(view)
        self._weights = (prefix_weight, queue_weight, kv_weight)
        self._most_tokens = max_prefix_tokens
        self._sent = RoutedPrefixes(view, _pools(view))

    def choose(self, row: int, now_s: float, able: Sequence[int]) -> int:
        """The largest score."""
        path = self._sent.path(row, self._most_tokens)
        states = [self.view.status(r, now_s) for r in able]
        waiting = [state.waiting for state in states]
        most, span = max(waiting), max(waiting) - min(waiting)
        prefix_weight, queue_weight, kv_weight = self._weights
        scores: list[float] = []
        for r, state in zip(able, states, strict=True):
            prefix = self._sent.matched_blocks(path, r) / path[-1][1] if path else 0.0
            queue = (most - state.waiting) / span if span else 1.0
            scores.append(prefix_weight * prefix + queue_weight * queue
                          + kv_weight * (1.0 - state.used_blocks / state.num_blocks))
        best = max(scores)
        tied = [r for r, score in zip(able, scores, strict=True) if score == best]
        chosen = tied[0] if len(tied) == 1 else self.view.rng.choice(tied)
        self._sent.note(path, chosen)
        return chosen

    def lost(self, r: int) -> None:
        """A replica that comes back is a new one."""
        self._sent.forget(r)


def _pools(view: View) -> list[float]:
    """Tokens that the pool of each replica holds."""
    configs = [replica.spec.config for replica in view.fleet.replicas]
    return [float((c.num_blocks - 1) * c.block_tokens) for c in configs]
