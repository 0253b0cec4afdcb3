"""Published numbers about memory: bytes, pools, what fits (targets 1 to 11)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kvsim.capacity import kv_capacity
from kvsim.errors import InfeasibleError
from kvsim.layout import Layout
from kvsim.memory.geometry import KvGeometry, KvSpec, LogFormula, kv_geometry
from kvsim.memory.layers import model_bytes_per_token, model_state_bytes
from kvsim.profiles.model import ModelProfile
from kvsim.profiles.store import default_store
from kvsim.resolve import Resolved
from kvsim.validate.claims import Claim, Sample, exactly, near, plus_minus

GIB, MIB = 2.0**30, 2.0**20
MILLION = 1_048_576
"""``max_model_len`` of the logs of Kimi K3."""

_CONFIG = "moonshotai/Kimi-K3 config.json"
_IX = "SemiAnalysisAI/InferenceX"
_RECIPES = "recipes.vllm.ai/moonshotai/Kimi-K3"


def memory_claims() -> list[Claim]:
    """Targets 1 to 11.

    Returns
    -------
    list of Claim
        Computed from profiles alone, at once.

    Examples
    --------
    >>> {claim.id: claim.measure().value for claim in memory_claims()}["1a"]
    27648.0
    """
    return [*_bytes(), *_pools(), *_predicted(), *_fits(), *_others()]


def _bytes() -> list[Claim]:
    """Bytes per token and constant state of K3."""
    per_token = [Claim(f"1{part}", "E", f"Kimi K3, KV bytes per token, {dtype}", f"{value:,} B", exactly(value),
                       _CONFIG, "{:,.0f} B",
                       lambda dtype=dtype: Sample(float(model_bytes_per_token(_model("kimi-k3"), dtype))))
                 for part, dtype, value in (("a", "bf16", 27_648), ("b", "fp8", 13_824))]
    state = Claim("2a", "E", "Kimi K3, constant state of a sequence", "449,372,160 B", exactly(449_372_160), _CONFIG,
                  "{:,.0f} B", lambda: Sample(float(model_state_bytes(_model("kimi-k3")))))
    ranks = [Claim(f"2{part}", "E", f"the same, on a rank of TP8, {drafts} draft tokens", f"{value} MiB",
                   plus_minus(value, 0.01, "0.01 MiB"), source, "{:.3f} MiB",
                   lambda drafts=drafts: Sample(model_state_bytes(_model("kimi-k3"), draft_tokens=drafts) / 8 / MIB))
             for part, drafts, value, source in (("b", 0, 53.57, _CONFIG), ("c", 2, 54.78, f"{_IX} #2670"))]
    return [*per_token, state, *ranks]


@dataclass(frozen=True, slots=True)
class _Log:
    """A KV cache size that vLLM logged for K3 at TP8."""

    commit: str
    kv_dtype: str
    blocks: int
    tokens: int
    gib: float = 0.0
    caching: bool = True

    def geometry(self) -> KvGeometry:
        return _geometry("kimi-k3", self.kv_dtype, 8, self.caching)

    def from_blocks(self) -> Sample:
        return Sample(self.geometry().logged_tokens(self.blocks, MILLION, "product"))

    def from_gib(self) -> Sample:
        return _logged_from_gib(self.geometry(), self.gib, MILLION, "product")


_LOGS = (_Log("f04fbe68f", "fp8", 2135, 3_249_215, 42.23), _Log("8ea2c08b5", "bf16", 2561, 1_957_290, 50.66),
         _Log("d5b6f7a6b", "bf16", 2937, 2_244_655, 58.08))
_CACHING_LOGS = (_Log("e5dbf4459", "bf16", 1851, 1_414_660), _Log("e5dbf4459", "bf16", 1855, 1_420_824, caching=False))


def _pools() -> list[Claim]:
    """Logged pools of K3, from blocks to the token and from rounded GiB."""
    form = "{:,.0f} tokens"
    whole = [Claim(f"3{'ace'[i]}", "E", f"Kimi K3 TP8, {log.kv_dtype}, pool of {log.blocks:,} blocks",
                   form.format(log.tokens), exactly(log.tokens), f"{_IX}@{log.commit}", form, log.from_blocks)
             for i, log in enumerate(_LOGS)]
    rounded = [Claim(f"3{'bdf'[i]}", "E", f"the same from {log.gib} GiB per GPU", form.format(log.tokens),
                     near(log.tokens, 0.001), f"{_IX}@{log.commit}", form, log.from_gib) for i, log in enumerate(_LOGS)]
    caching = [Claim(f"4{'ab'[i]}", "E", f"Kimi K3 TP8, bf16, {log.blocks:,} blocks, prefix caching "
                     f"{'on' if log.caching else 'off'}", form.format(log.tokens), exactly(log.tokens),
                     f"{_IX}@{log.commit}", form, log.from_blocks) for i, log in enumerate(_CACHING_LOGS)]
    return [claim for pair in zip(whole, rounded, strict=True) for claim in pair] + caching


def _predicted() -> list[Claim]:
    """Pools predicted from HBM and weights."""
    source, mi355x = f"{_IX}@f04fbe68f", {"kv_dtype": "bf16", "max_num_batched_tokens": 4096}
    b300 = _Ask("b300", settings={"max_num_batched_tokens": 16_384})
    sharded = _Ask("b300", settings={"max_num_batched_tokens": 16_384, "dcp": 8})
    plain, drafted = _Ask("mi355x", settings=mi355x), _Ask("mi355x", settings={**mi355x, "draft": "dspark-bf16-k7"})
    return [
        Claim("5a", "C", "Kimi K3 on 8 x B300, utilization 0.90: predicted pool", "3,249,215 tokens",
              near(3_249_215, 0.10), source, "{:,.0f} tokens", lambda: Sample(b300.answer().capacity.kv_tokens)),
        Claim("5b", "C", "the same, per GPU", "42.23 GiB", near(42.23, 0.10), source, "{:.2f} GiB",
              lambda: Sample(b300.answer().budget.kv_bytes / GIB)),
        Claim("7", "C", "Kimi K3 on 8 x B300, TP8 x DCP8: predicted pool", "21.6M tokens", near(21.6e6, 0.15),
              f"{_IX} #2802", "{:,.0f} tokens", lambda: Sample(sharded.answer().capacity.kv_tokens)),
        Claim("8", "C", "Kimi K3 on 8 x MI355X, bf16: pool with a resident DSpark draft / without", "0.78",
              plus_minus(0.78, 0.05, "5 points"), f"{_IX}@6bb96187b", "{:.3f}",
              lambda: Sample(drafted.answer().capacity.kv_tokens / plain.answer().capacity.kv_tokens)),
    ]


def _fits() -> list[Claim]:
    """Where K3 fits at all."""
    cases = (("8 x B200", _Ask("b200"), 0), ("4 x B300", _Ask("b300", 4, {"tp": 4}), 0), ("8 x B300", _Ask("b300"), 1),
             ("8 x MI355X", _Ask("mi355x"), 1), ("16 x B200, TP8 x PP2", _Ask("b200", 16, {"tp": 8, "pp": 2}), 1))
    return [Claim(f"6{'abcde'[i]}", "C", f"Kimi K3 on {where}: fits (1) or not (0)", str(fits), exactly(fits), _RECIPES,
                  "{:.0f}", ask.fits) for i, (where, ask, fits) in enumerate(cases)]


def _others() -> list[Claim]:
    """Other models, and the benchmark's rule for host memory."""
    million = [Claim(f"9{part}", "E", f"{name}, KV of 1M tokens, bf16", f"{gib} GiB", near(gib, 0.01),
                     "vllm.ai/blog/deepseek-v4", "{:.2f} GiB",
                     lambda name=name: Sample(model_bytes_per_token(_model(name), "bf16") * MILLION / GIB))
               for part, name, gib in (("a", "deepseek-v4-pro", 9.62), ("b", "deepseek-v3.2", 83.9))]
    return [*million,
            Claim("10", "E", "Kimi K2 TP8, bf16, pool of 46.80 GiB per GPU", "715,072 tokens", near(715_072, 0.001),
                  "vllm.ai/blog/2026-08-07-decode-context-parallelism", "{:,.0f} tokens",
                  lambda: _logged_from_gib(_geometry("kimi-k2", "bf16", 8), 46.80, 262_144, "uniform")),
            Claim("11", "E", "AgentX host memory for a tier, b300-nv, share 0.63, TP8", "1,889 GB",
                  plus_minus(1889, 1, "1 GB"), f"{_IX} perf-changelog, #2371", "{:,.1f} GB", _agentx_dram_gb)]


@dataclass(frozen=True, slots=True)
class _Ask:
    """A question about K3's memory: TP8, fp8 KV, utilization 0.90, 1M tokens unless it says otherwise."""

    gpu: str
    num_gpus: int = 8
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def answer(self) -> Resolved:
        asked: dict[str, Any] = {"tp": 8, "kv_dtype": "fp8", "gpu_memory_utilization": 0.9, "max_model_len": MILLION}
        return kv_capacity("kimi-k3", self.gpu, self.num_gpus, **{**asked, **self.settings})

    def fits(self) -> Sample:
        try:
            return Sample(float(self.answer().capacity.max_concurrency > 1))
        except InfeasibleError:
            return Sample(0.0)


def _model(name: str) -> ModelProfile:
    """A shipped model."""
    return default_store().get("model", name)


def _geometry(name: str, kv_dtype: str, tp: int, caching: bool = True) -> KvGeometry:
    """KV geometry of a shipped model under TP."""
    return kv_geometry(_model(name), KvSpec(Layout(tp=tp), kv_dtype, caching))


def _logged_from_gib(geometry: KvGeometry, gib: float, max_len: int, formula: LogFormula) -> Sample:
    """What the engine would log for a pool of so many GiB per GPU."""
    return Sample(geometry.logged_tokens(geometry.num_blocks(gib * GIB), max_len, formula))


def _agentx_dram_gb() -> Sample:
    """The benchmark's rule: min(available, 2,861,022 MiB) x share x TP / GPUs of the node."""
    node = default_store().get("node", "hgx-b300-8")
    available = node.host_dram.available if node.host_dram is not None else None
    usable = min(available.base if available is not None else float("nan"), 2_861_022 * MIB)
    return Sample(usable * 0.63 * 8 / node.num_gpus.base / 1e9)
