"""Named random streams: one purpose, one stream, all from one seed."""

from __future__ import annotations

import hashlib

import numpy as np


def stream(seed: int, purpose: str) -> np.random.Generator:
    """Random numbers of one purpose.

    Parameters
    ----------
    seed : int
        Seed of the run, >= 0.
    purpose : str
        Name of what the numbers are for. Its SHA-256 is the spawn key, so a stream depends on
        the seed and its own name only: other purposes come and go without moving it.

    Returns
    -------
    numpy.random.Generator
        PCG64 generator; the same numbers on every run and platform.

    Raises
    ------
    ValueError
        Negative seed.

    Examples
    --------
    >>> int(stream(0, "think time").integers(100)) == int(stream(0, "think time").integers(100))
    True
    """
    digest = hashlib.sha256(purpose.encode()).digest()
    key = tuple(int.from_bytes(digest[i:i + 4], "little") for i in range(0, 16, 4))
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(seed, spawn_key=key)))


def streams(seed: int, *purposes: str) -> tuple[np.random.Generator, ...]:
    """One stream for each purpose, as `stream` gives them.

    Examples
    --------
    >>> arrivals, lengths = streams(7, "arrivals", "lengths")
    >>> float(arrivals.random()) == float(lengths.random())
    False
    """
    return tuple(stream(seed, purpose) for purpose in purposes)
