"""What the flag tables of the engines share: why flags change nothing here, and how a table is written."""

from __future__ import annotations

from collections.abc import Mapping

from kvsim.interop.flags import Flag, Status

SERVER = "the server's front, not the engine"
LOADING = "how weights are loaded, not how many"
KERNELS = "which kernel runs is the engine profile's"
SPREAD = "where the ranks are; the layout says how many"
GRAPHS = "CUDA graph memory is a range of the engine profile"
ADAPTERS = "adapters take memory and time that are not counted"
WEIGHTS = "weights are those of the model's profile"
STATE_FORMAT = "the state is kept in the profile's format"
BALANCED = "experts are balanced"
CAPTURED = "graphs are captured: memory and speed would differ"
NO_CONTEXT_SPLIT = "prefill is not split by context"

Reasons = Mapping[str, str]
"""Reason -> names of flags, separated by spaces."""


def modelled(values: str, switches: str) -> list[Flag]:
    """Flags that an engine's reader decides on, names separated by spaces.

    >>> [flag.takes for flag in modelled("block-size", "enable-prefix-caching")]
    ['value', 'switch']
    """
    return [*(Flag(name, "value") for name in values.split()), *(Flag(name, "switch") for name in switches.split())]


def flags_of(status: Status, values: Reasons, switches: Reasons, many: Reasons | None = None) -> list[Flag]:
    """Flags of one verdict by reason: with a value, without, with several values.

    >>> [(flag.name, flag.why) for flag in flags_of("no effect", {SERVER: "host port"}, {})]
    [('host', "the server's front, not the engine"), ('port', "the server's front, not the engine")]
    """
    return [*(Flag(name, "value", status, why) for why, names in values.items() for name in names.split()),
            *(Flag(name, "switch", status, why) for why, names in switches.items() for name in names.split()),
            *(Flag(name, "many", status, why) for why, names in (many or {}).items() for name in names.split())]
