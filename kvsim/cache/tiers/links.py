"""A link that transfers share: one after the other, in the order in which they were asked for."""

from __future__ import annotations


class Link:
    """One direction of a connection between two levels.

    Parameters
    ----------
    s_per_block : float
        Time [s] that a block occupies the link, block bytes / (efficiency x bandwidth).
    start_s : float
        Time [s] that every transfer takes besides.

    Attributes
    ----------
    free_s : float
        When everything sent so far will have arrived [s].
    busy_s : float
        Time spent on transfers, those under way included [s].
    num_blocks : int
        Blocks sent so far.

    Notes
    -----
    A transfer of n blocks takes ``start_s + n * s_per_block``: its efficiency grows with its size, and reaches half of
    the limit at ``start_s / s_per_block`` blocks. Transfers do not overlap, so small ones queue behind large ones.

    Examples
    --------
    >>> link = Link(0.5, start_s=1.0)
    >>> link.send(4, at_s=10.0), link.arrival_s(2, at_s=11.0), link.send(2, at_s=11.0), link.busy_s
    (13.0, 15.0, 15.0, 5.0)
    """

    def __init__(self, s_per_block: float, start_s: float = 0.0) -> None:
        self._s_per_block, self._start_s = s_per_block, start_s
        self.free_s = 0.0
        self.busy_s = 0.0
        self.num_blocks = 0

    def arrival_s(self, num_blocks: int, at_s: float) -> float:
        """When a transfer asked for at `at_s` would have arrived [s]."""
        return max(self.free_s, at_s) + (self._start_s + num_blocks * self._s_per_block)

    def send(self, num_blocks: int, at_s: float) -> float:
        """Queue a transfer at `at_s`; returns when it has arrived [s]."""
        self.free_s = self.arrival_s(num_blocks, at_s)
        self.busy_s += self._start_s + num_blocks * self._s_per_block
        self.num_blocks += num_blocks
        return self.free_s
