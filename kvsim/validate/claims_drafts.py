"""Published numbers about speculative drafts (targets 30 and 31)."""

from __future__ import annotations

from functools import cache, partial

from kvsim.profiles.store import default_store
from kvsim.simulation import simulate
from kvsim.validate.claims import Claim, Sample, exactly, near, plus_minus

REQUESTS_PER_CLIENT = 10
"""Requests of each client of target 30: as many as serving benchmarks usually send."""
GOLDEN_TOKENS, INPUT_TOKENS, OUTPUT_TOKENS = 7, 8_192, 1_024
OTHER_LENGTHS = (5.0, 7.2)
"""Accepted lengths that are reported beside the golden one, since the published run's is not known."""

_GOLDEN = "SemiAnalysisAI/InferenceX golden_al_distribution"
_SERVED = "sgl-project/sglang #37878"
_EXPERTS = ("experts are taken to be chosen uniformly, so that 8 rows a sequence touch nearly as many as they can; "
            "real rows of one sequence agree more")
REUSED = 0.5
"""Share of experts chosen again at which target 30 is reported too, see docs/drafts.md."""


def draft_claims() -> list[Claim]:
    """Targets 30 and 31.

    Returns
    -------
    list of Claim
        Runs of seconds, and the shipped curve.
    """
    return [*_curve(), *_throughput()]


def _curve() -> list[Claim]:
    """Target 31: the shipped curve is the published one."""
    return [Claim(f"31{part}", "E", f"accepted length of {tokens} DSpark tokens for Kimi K3", f"{length:.2f}",
                  plus_minus(length, 0.05, "0.05"), _GOLDEN, "{:.2f}", partial(_golden_length, tokens),
                  fitted="yes: shipped as data")
            for part, tokens, length in (("a", 2, 2.51), ("b", 3, 3.00), ("c", 7, 3.84))]


def _golden_length(tokens: int) -> Sample:
    return Sample(default_store().get("draft", "kimi-k3-dspark").length(tokens) or 0.0)


def _throughput() -> list[Claim]:
    """Target 30: throughput with drafts over throughput without."""
    head = "Kimi K3 on 8 x B300, DSpark / no drafts, output tokens a second, 8k in, 1k out"
    ratios = [Claim(f"30{part}", "P", f"{head}: {clients} clients", f"x {ratio:g}", near(ratio, 0.25), _SERVED,
                    "x {:.2f}", partial(_ratio_with_others, clients), simulated=True)
              for part, clients, ratio in (("b", 16, 1.68), ("c", 64, 1.42))]
    return [Claim("30a", "P", f"{head}: falls from 1 to 16 to 64 clients", "2.76, 1.68, 1.42", exactly(1.0), _SERVED,
                  "{:.0f}", _falls, simulated=True, miss=_EXPERTS), *ratios]


def _falls() -> Sample:
    """1 if the ratio falls with the clients, else 0."""
    found, alike = ([throughput_ratio(clients, reuse_frac=reuse) for clients in (1, 16, 64)] for reuse in (0.0, REUSED))
    told, other = (", ".join(f"x {ratio:.2f}" for ratio in ratios) for ratios in (found, alike))
    note = f"{told}; {other} if a row chooses {REUSED:.0%} of its experts again"
    return Sample(float(found[0] > found[1] > found[2]), note=note)


def _ratio_with_others(clients: int) -> Sample:
    others = ", ".join(f"x {throughput_ratio(clients, length):.2f} at length {length:g}" for length in OTHER_LENGTHS)
    return Sample(throughput_ratio(clients), note=f"at the golden length 3.84; {others}")


def throughput_ratio(clients: int, length: float | None = None, reuse_frac: float = 0.0) -> float:
    """Output tokens a second with DSpark drafts of 7 tokens over those without.

    Parameters
    ----------
    clients : int
        Clients that each send one request after the other.
    length : float, optional
        Mean accepted length; the golden one if None.
    reuse_frac : float
        ``engine.draft_expert_reuse``.
    """
    return _output_rate(clients, True, length, reuse_frac) / _output_rate(clients, False, None, 0.0)


@cache
def _output_rate(clients: int, drafts: bool, length: float | None, reuse_frac: float) -> float:
    """Output tokens a second of one run."""
    acceptance = {"kind": "golden"} if length is None else {"kind": "own", "length": length, "source": "target 30"}
    drafting = {"draft": f"dspark-fp8-k{GOLDEN_TOKENS}", "draft_acceptance": acceptance,
                "draft_expert_reuse": reuse_frac} if drafts else {}
    done = simulate({
        "name": "target 30", "model": "kimi-k3", "hardware": {"gpu": "b300", "num_gpus": 8}, "layout": {"tp": 8},
        "engine": {"kv_dtype": "fp8", "profile": "sglang-2026-08", **drafting},
        "workload": {"fixed": {"num_requests": REQUESTS_PER_CLIENT * clients, "input_tokens": INPUT_TOKENS,
                               "output_tokens": OUTPUT_TOKENS}, "concurrency": clients}})
    return done.throughput.output_tokens_per_s
