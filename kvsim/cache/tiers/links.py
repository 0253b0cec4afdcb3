"""A link that transfers share: one after the other, in the order in which they were asked for."""

from __future__ import annotations


class Link:
    """One direction of a connection between two tiers.

    Parameters
    ----------
    s_per_block : float
        Time [s] that a block occupies the link.

    Attributes
    ----------
    free_s : float
        When everything sent so far will have arrived [s].
    busy_s : float
        Time spent on transfers, those under way included [s].
    num_blocks : int
        Blocks sent so far.

    Examples
    --------
    >>> link = Link(0.5)
    >>> link.send(4, at_s=10.0), link.send(2, at_s=11.0), link.busy_s
    (12.0, 13.0, 3.0)
    """

    def __init__(self, s_per_block: float) -> None:
        self._s_per_block = s_per_block
        self.free_s = 0.0
        self.busy_s = 0.0
        self.num_blocks = 0

    def send(self, num_blocks: int, at_s: float) -> float:
        """Queue a transfer at `at_s`; returns when it has arrived [s]."""
        duration_s = num_blocks * self._s_per_block
        self.free_s = max(self.free_s, at_s) + duration_s
        self.busy_s += duration_s
        self.num_blocks += num_blocks
        return self.free_s
