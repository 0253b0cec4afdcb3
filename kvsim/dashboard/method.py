"""The method in words: equations, and where they stop holding."""

from __future__ import annotations

from typing import NamedTuple


class Step(NamedTuple):
    """One step of the method: what it decides, its equation, and when that is wrong; Markdown."""

    title: str
    equation: str
    limits: str


STEPS = (
    Step("KV pool of a GPU",
         "usable HBM × visible share × utilization − weights − context and collectives − CUDA graphs − workspace − "
         "logits − activations. Usable HBM is measured where it could be, not the data sheet's.",
         "Activation peaks and parts of the runtime's share are assumed, with ranges; a logged pool replaces the "
         "prediction."),
    Step("KV bytes",
         "bytes a token = Σ over growing layers of what one token keeps; bytes a sequence = Σ over constant-state "
         "layers; bytes a checkpoint = a kept copy of all states. The three are never blended.",
         "How pages and groups are laid out follows vLLM V1; other engines may waste more or less."),
    Step("Time of a step",
         "Σ over components of max(bytes ÷ reached bandwidth, operations ÷ reached rate), plus collectives, with the "
         "host's launches as a floor. Experts are read once each: E(B) = n (1 − (1 − k/n)^B) of n.",
         "Reached rates hold for the GPU and kernels they were measured with; the trust mark says how near that is."),
    Step("Scheduling",
         "a token budget per step, running requests first, chunked prefill, recompute preemption of the newest, one "
         "block pool with least-recently-used reuse. For hybrid models a hit ends at a kept checkpoint.",
         "vLLM V1's rules; an engine with other rules collapses elsewhere."),
    Step("Cache tiers",
         "a block that left HBM is loaded back from DRAM over the GPU's host link: time = bytes ÷ the link's "
         "bandwidth, one transfer after the other, one link a direction. Every transfer is charged.",
         "Links are those of the GPU's profile unless the scenario states them; what else the host does with its "
         "memory is not modelled."),
    Step("Hit rate",
         "prompt tokens found in a cache ÷ all prompt tokens. The ideal is an unlimited cache on the same requests in "
         "the same order.",
         "It belongs to the traffic: other sessions, other hit rates."),
    Step("Cost",
         "contribution = revenue of the requests inside the SLO − bill, per node and hour; break-even per token = bill "
         "÷ all tokens. The bill adds GPUs in buying units, tiers and network.",
         "The load of the measured window is taken to last; prices are dated and are not forecasts."),
    Step("Spread",
         "medians over seeds, with extremes; comparisons pair runs of the same seed and give Student's t intervals.",
         "Seeds show the chance of the traffic alone. What assumed figures could change is asked with kvsim run "
         "--uncertainty."),
)
"""The method, from the pool to the result."""

NOT_MODELLED = (
    "Deployments, autoscaling and unlike replicas: these pages simulate equal replicas that never stop; only Cluster "
    "loses one, and divides them into prefill and decode. kvsim run takes all of it.",
    "Quality: quantised weights and caches are taken to answer as well as others.",
    "Prices that change, discounts, and taxes.",
    "Customers who leave when they wait too long.",
)
"""What no figure on any page contains."""
