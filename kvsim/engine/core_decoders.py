"""The decoding sequences of the fast engine: all of them move by one token a step, so none is touched in a step."""

from __future__ import annotations

import heapq
from bisect import bisect_left, bisect_right, insort

from kvsim.engine.core_sequence import LAST, Sequence


class Decoders:
    """Decoding sequences as sums, a heap of last steps, and the steps at which they begin a block.

    A sequence begins a block in every step ``t`` with ``t % block_tokens == key``.

    Parameters
    ----------
    block_tokens : int
        Tokens a block holds.
    is_listed : bool
        Whether `due` is going to be asked (models with several groups).

    Attributes
    ----------
    num : int
        Decoding sequences.
    sum_base_tokens : int
        Sum of their ``base_tokens``; in step ``t`` they attend to ``sum_base_tokens + num * t`` tokens.
    first_end : int
        Step before which none of them ends.

    Examples
    --------
    >>> decoders, seq = Decoders(16, False), Sequence(0, 30, 40, [])
    >>> decoders.add(seq, computed_tokens=30, done_steps=5, finish_step=44)
    >>> decoders.num_begun(5, 2), decoders.num_begun(5, 3), decoders.num_begun(5, 19)   # blocks at tokens 32 and 48
    (0, 1, 2)
    """

    def __init__(self, block_tokens: int, is_listed: bool) -> None:
        self.num = self.sum_base_tokens = 0
        self.first_end = LAST
        self._block_tokens, self._is_listed = block_tokens, is_listed
        self._keys: list[int] = []
        self._by_key: dict[int, list[Sequence]] = {}
        self._ends: list[tuple[int, int, Sequence]] = []

    def add(self, seq: Sequence, computed_tokens: int, done_steps: int, finish_step: int) -> None:
        """A sequence decodes from the next step on, and ends with `finish_step`."""
        base = computed_tokens - done_steps
        seq.base_tokens, seq.finish_step, seq.decoding = base, finish_step, True
        self.num += 1
        self.sum_base_tokens += base
        key = (1 - base) % self._block_tokens
        insort(self._keys, key)
        if self._is_listed:
            self._by_key.setdefault(key, []).append(seq)
        heapq.heappush(self._ends, (finish_step, seq.order, seq))
        if finish_step < self.first_end:
            self.first_end = finish_step

    def remove(self, seq: Sequence) -> None:
        """A sequence ends or is preempted."""
        self.num -= 1
        self.sum_base_tokens -= seq.base_tokens
        seq.decoding, seq.finish_step = False, -1
        key = (1 - seq.base_tokens) % self._block_tokens
        del self._keys[bisect_left(self._keys, key)]
        if self._is_listed:
            listed = self._by_key[key]
            listed.remove(seq)
            if not listed:
                del self._by_key[key]

    def next_end(self) -> int:
        """Last step of the sequence that ends first."""
        ends = self._ends
        while True:
            end, order, seq = ends[0]
            if end == seq.finish_step and order == seq.order:
                return end
            heapq.heappop(ends)

    def ending(self, step: int) -> list[Sequence]:
        """Sequences that end with `step`, in running order, no longer waited for."""
        ends = self._ends
        found: list[Sequence] = []
        while ends and ends[0][0] <= step:
            end, order, seq = heapq.heappop(ends)
            if end == seq.finish_step and order == seq.order:
                found.append(seq)
        self.first_end = ends[0][0] if ends else LAST
        return found

    def num_begun(self, done_steps: int, steps: int) -> int:
        """Blocks that the sequences begin in the next `steps` steps."""
        cycles, rest = divmod(steps, self._block_tokens)
        begun = cycles * self.num
        if rest:
            keys = self._keys
            first = (done_steps + 1) % self._block_tokens
            stop = first + rest - self._block_tokens
            if stop > 0:
                begun += self.num - bisect_left(keys, first) + bisect_left(keys, stop)
            else:
                begun += bisect_left(keys, first + rest) - bisect_left(keys, first)
        return begun

    def num_fitting(self, done_steps: int, steps: int, blocks: int) -> int:
        """Of the next `steps` steps, how many the sequences can make with that many blocks."""
        if self.num * (steps // self._block_tokens + 1) <= blocks or self.num_begun(done_steps, steps) <= blocks:
            return steps
        return self.most_fitting(done_steps, steps, blocks)

    def most_fitting(self, done_steps: int, steps: int, blocks: int) -> int:
        """As `num_fitting`, where not all of them fit."""
        fits, fails = 0, steps
        while fails - fits > 1:
            middle = (fits + fails) // 2
            if self.num_begun(done_steps, middle) <= blocks:
                fits = middle
            else:
                fails = middle
        return fits

    def num_quiet(self, done_steps: int, is_before: bool) -> int:
        """Steps until one of the sequences begins a block, has just begun one or, if asked, is about to fill one."""
        keys, block = self._keys, self._block_tokens
        at = done_steps % block
        k = bisect_left(keys, at)
        until_next = keys[k] - at if k < len(keys) else keys[0] + block - at
        return max(until_next - 1 - is_before, 0)

    def due(self, step: int, is_before: bool) -> list[Sequence]:
        """Sequences that begin a block in `step`, began one in the step before, or, if asked, fill one."""
        block, by_key = self._block_tokens, self._by_key
        found = [*by_key.get(step % block, ()), *by_key.get((step - 1) % block, ())]
        if is_before:
            found += by_key.get((step + 1) % block, ())
        return found

    def beginning(self, step: int, sequences: list[Sequence]) -> list[Sequence]:
        """Those of `sequences` that decode and begin a block in `step`."""
        return [seq for seq in sequences if seq.decoding and (seq.base_tokens + step - 1) % self._block_tokens == 0]

    def count_beginning(self, step: int) -> int:
        """How many sequences begin a block in `step`."""
        key = step % self._block_tokens
        return bisect_right(self._keys, key) - bisect_left(self._keys, key)
