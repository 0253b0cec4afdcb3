"""Memory that an engine takes beside weights and KV: figures of an engine profile."""

from __future__ import annotations

from kvsim.profiles.figure import Bytes, Count, Strict


class MemoryReserve(Strict):
    """What is subtracted from usable HBM before the KV pool.

    ``non_torch_single`` / ``non_torch_group``: driver context and collective buffers of a rank, alone or in a
    tensor-parallel group. ``activation_copies`` multiplies the live activations that the shapes give (fp32
    temporaries, allocator slack). ``mla_workspace_rows``: cached-context rows that the latent's prefill
    workspace holds; ``mla_workspace_covers_pages``: at least one block a sequence (older vLLM).
    """

    non_torch_single: Bytes
    non_torch_group: Bytes
    cuda_graphs: Bytes
    activation_copies: Count
    mla_workspace_rows: Count
    mla_workspace_covers_pages: bool = False
