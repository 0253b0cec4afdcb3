"""From what the user wrote to numbers: profiles looked up, defaults filled in, the pool sized."""

from __future__ import annotations

from dataclasses import dataclass, replace

from kvsim.cache.eviction.config import EvictionConfig
from kvsim.engine.pace import Drafting
from kvsim.engine.types import EngineConfig
from kvsim.errors import InfeasibleError, Problem, ScenarioError
from kvsim.layout import Layout
from kvsim.memory.acceptance import Acceptance, acceptance_of, find_draft_profile
from kvsim.memory.budget import EngineLimits, MemoryBudget, hbm_budget, require_room
from kvsim.memory.capacity import Capacity, Pool, capacity
from kvsim.memory.drafter import draft_weight_bytes, drafter_model, with_draft_weights
from kvsim.memory.drafts import Draft, parse_draft
from kvsim.memory.geometry import KvGeometry, KvSpec, kv_geometry
from kvsim.memory.layout_check import layout_problems
from kvsim.profiles.engine_profile import EngineProfile, resolve_base
from kvsim.profiles.figure import Profile
from kvsim.profiles.hardware import GpuProfile, NodeProfile
from kvsim.profiles.model import ModelProfile
from kvsim.profiles.store import ProfileStore, default_store
from kvsim.scenario import Scenario, naming
from kvsim.tiering import tier_configs
from kvsim.units import gib
from kvsim.workload.admission import AdmissionConfig


@dataclass(frozen=True, slots=True)
class Resolved:
    """A scenario with every number known.

    Attributes
    ----------
    scenario : Scenario
        As written.
    model, gpu, engine_profile
        Profiles; the engine profile is joined with its base.
    layout : Layout
        Parallel degrees.
    limits : EngineLimits
        Engine settings with defaults filled in.
    budget : MemoryBudget
        Predicted HBM budget, also when the pool itself was given.
    capacity : Capacity
        The pool that is simulated.
    predicted : Capacity or None
        The pool as predicted, when the scenario gives a logged one instead.
    engine : EngineConfig
        What the engine runs with.
    node : NodeProfile or None
        The named node, else the GPU's usual one.
    drafter : ModelProfile or None
        The draft as a model of its own.
    acceptance : Acceptance or None
        What a step with drafts gives; None without drafts, and where the scenario does not say.
    """

    scenario: Scenario
    model: ModelProfile
    gpu: GpuProfile
    engine_profile: EngineProfile
    layout: Layout
    limits: EngineLimits
    budget: MemoryBudget
    capacity: Capacity
    predicted: Capacity | None
    engine: EngineConfig
    node: NodeProfile | None = None
    drafter: ModelProfile | None = None
    acceptance: Acceptance | None = None

    @property
    def profiles(self) -> tuple[Profile, ...]:
        """The profiles whose figures the result rests on."""
        return (self.gpu, self.model, self.engine_profile)


def resolve(scenario: Scenario, store: ProfileStore | None = None) -> Resolved:
    """Look everything up and size the pool.

    Parameters
    ----------
    scenario : Scenario
        As written.
    store : ProfileStore, optional
        Where profiles are found; the shipped ones (and ``KVSIM_PROFILES``) by default.

    Raises
    ------
    ProfileError
        Unknown model, GPU or engine profile.
    ScenarioError
        A layout that cannot be built, with every reason.
    InfeasibleError
        The weights, or one request of ``max_model_len``, do not fit; carries the budget and what would fit.

    Notes
    -----
    Of a scenario with several groups of replicas (`resolve_groups`) these are the numbers of the first one.

    Examples
    --------
    >>> from kvsim.scenario import load_scenario
    >>> resolve(load_scenario("k3-b300-study")).capacity.num_blocks
    2135
    """
    store = store or default_store()
    if not isinstance(scenario.replicas, int):
        return replace(resolve_groups(scenario, store)[0], scenario=scenario)
    with naming(scenario, "model"):
        model = store.get("model", scenario.model)
    with naming(scenario, "hardware.gpu"):
        gpu = store.get("gpu", scenario.hardware.gpu)
    with naming(scenario, "engine.profile"):
        profile = resolve_base(store.get("engine", scenario.engine.profile), lambda n: store.get("engine", n))
    layout = Layout(**scenario.layout.model_dump())
    draft = parse_draft(scenario.engine.draft, scenario.origin, "engine.draft")
    problems = layout_problems(model, layout, scenario.hardware.num_gpus, scenario.origin)
    problems += draft_problems(draft, layout, profile, scenario.origin)
    if problems:
        raise ScenarioError(f"{model.name} cannot be laid out as {layout}", problems)
    limits = engine_limits(scenario, model, gpu, profile)
    geometry = _geometry(scenario, model, layout)
    drafter = _drafter(model, draft, store)
    budget = _with_draft(hbm_budget(model, gpu, layout, limits, profile.reserve, geometry), drafter, layout)
    acceptance = acceptance_of(scenario, model.name, draft, store)
    sizing = _Sizing(scenario, model, gpu, profile, layout, limits, geometry, budget, drafter)
    predicted, used = sizing.pools()
    node = node_of(scenario, gpu.name, store)
    engine = replace(engine_config(scenario, geometry, limits, used.num_blocks),
                     tiers=tier_configs(scenario, gpu, node, geometry), drafting=_drafting(draft, acceptance))
    return Resolved(scenario, model, gpu, profile, layout, limits, budget, used, predicted, engine, node, drafter,
                    acceptance)


def resolve_groups(scenario: Scenario, store: ProfileStore | None = None) -> tuple[Resolved, ...]:
    """Every group of replicas by itself; one where ``replicas`` is a number.

    Raises
    ------
    KvsimError
        As `resolve`, naming the group.
    """
    if isinstance(scenario.replicas, int):
        return (resolve(scenario, store),)
    return tuple(_resolve_group(scenario, i, store) for i in range(len(scenario.groups)))


def _resolve_group(scenario: Scenario, i: int, store: ProfileStore | None) -> Resolved:
    """One group; what does not fit says which group it is."""
    group = scenario.group(i)
    try:
        return resolve(group, store)
    except InfeasibleError as err:
        raise InfeasibleError(f"{group.origin}: {err.message}", err.problems) from None


def draft_problems(draft: Draft, layout: Layout, profile: EngineProfile, where: str) -> list[Problem]:
    """Why the engine of a profile refuses a draft in a layout; empty where it does not, or nothing is known of it."""
    if not draft.tokens or layout.pp == 1:
        return []
    fact = next((f for f in profile.support if f.feature == f"{draft.kind}-pipeline-parallel"), None)
    if fact is None or fact.supported:
        return []
    source = profile.sources[fact.source]
    given = f"{draft.kind} with layout.pp {layout.pp}, which {profile.engine} {fact.version} ({fact.date}) refuses"
    return [Problem(where, "engine.draft", given, "none, pp 1, or an engine profile of a later version",
                    f"{source.title}, {source.url}")]


def _drafter(model: ModelProfile, draft: Draft, store: ProfileStore) -> ModelProfile | None:
    """The draft as a model of its own, of its published size where that is known."""
    if not draft.tokens:
        return None
    known = find_draft_profile(model.name, draft, store)
    return drafter_model(model, draft, known.params.base if known is not None and known.params is not None else None)


def _with_draft(budget: MemoryBudget, drafter: ModelProfile | None, layout: Layout) -> MemoryBudget:
    """The budget less the draft's weights."""
    if drafter is None:
        return budget
    return with_draft_weights(budget, draft_weight_bytes(drafter, layout), f"{drafter.num_layers} layers, from shapes")


def _drafting(draft: Draft, acceptance: Acceptance | None) -> Drafting | None:
    """What the engine needs to know of a draft."""
    return None if acceptance is None else Drafting.of(draft.tokens, acceptance.length)


def node_of(scenario: Scenario, gpu: str, store: ProfileStore) -> NodeProfile | None:
    """The named node, else the one that has the GPU's name as an alias, else none."""
    name = scenario.hardware.node or gpu
    if scenario.hardware.node is None and not store.knows("node", name):
        return None
    with naming(scenario, "hardware.node"):
        return store.get("node", name)


def engine_limits(scenario: Scenario, model: ModelProfile, gpu: GpuProfile, profile: EngineProfile) -> EngineLimits:
    """Engine settings of a scenario, the engine profile's defaults where it says nothing."""
    given, defaults = scenario.engine, profile.defaults
    return EngineLimits(
        gpu_memory_utilization=given.gpu_memory_utilization or defaults.gpu_memory_utilization.base,
        max_num_batched_tokens=given.max_num_batched_tokens or defaults.batched_tokens(gpu.hbm_usable.base),
        max_num_seqs=given.max_num_seqs or int(defaults.max_num_seqs.base),
        max_model_len=given.max_model_len or model.max_positions,
    )


def engine_config(scenario: Scenario, geometry: KvGeometry, limits: EngineLimits, num_blocks: int) -> EngineConfig:
    """The engine's settings for a pool of `num_blocks` blocks."""
    given = scenario.engine
    return EngineConfig(
        num_blocks=num_blocks,
        block_tokens=geometry.block_capacity_tokens,
        max_num_seqs=limits.max_num_seqs,
        max_num_batched_tokens=limits.max_num_batched_tokens * _batches_a_step(scenario),
        max_model_len=limits.max_model_len,
        prefix_caching=given.prefix_caching,
        policy=given.policy,
        state_groups=geometry.state_groups,
        retention_interval_tokens=None if given.retention_interval == "dense" else given.retention_interval,
        extra_attention_groups=sum(g.kind == "attention" for g in geometry.groups) - 1,
        eviction=EvictionConfig(**{name: value for name, value in given.eviction if value is not None}),
        admission=AdmissionConfig(**given.admission.model_dump()) if given.admission is not None else None,
    )


def _batches_a_step(scenario: Scenario) -> int:
    """Batches that one step stands for: a pipeline's step is a cycle of as many as it has stages."""
    return scenario.layout.pp if scenario.engine.step_time is None else 1


@dataclass(frozen=True, slots=True)
class _Sizing:
    """Everything that decides the pool's size."""

    scenario: Scenario
    model: ModelProfile
    gpu: GpuProfile
    profile: EngineProfile
    layout: Layout
    limits: EngineLimits
    geometry: KvGeometry
    budget: MemoryBudget
    drafter: ModelProfile | None = None

    def pools(self) -> tuple[Capacity | None, Capacity]:
        """The predicted pool if another one is used, and the pool that is used."""
        given = self.scenario.engine
        if given.num_blocks is None and given.kv_bytes_per_gpu is None:
            return None, self._predicted()
        num_blocks = given.num_blocks or self._blocks_of(given.kv_bytes_per_gpu or 0.0)
        predicted = self._capacity(self.geometry.num_blocks(self.budget.kv_bytes)) if self.budget.kv_bytes > 0 else None
        return predicted, self._capacity(num_blocks)

    def _blocks_of(self, kv_bytes_per_gpu: float) -> int:
        """Blocks of a pool given in bytes: at least two, since one is the null block."""
        num_blocks = self.geometry.num_blocks(kv_bytes_per_gpu)
        if num_blocks >= 2:
            return num_blocks
        block = max(self.geometry.block_bytes)
        problem = Problem(self.scenario.origin, "engine.kv_bytes_per_gpu", f"{kv_bytes_per_gpu:,.0f} B",
                          f"at least {2 * block:,.0f} B, two blocks", "a number without a unit counts bytes")
        raise ScenarioError("the given pool is too small", [problem])

    def _predicted(self) -> Capacity:
        what = f"{self.model.name} on {self.scenario.hardware.num_gpus} x {self.gpu.name} ({self.layout})"
        needed = max(self.geometry.block_bytes)
        require_room(self.budget, needed, what, self._advice() if self.budget.kv_bytes < needed else "")
        found = self._capacity(self.geometry.num_blocks(self.budget.kv_bytes))
        self._require_one_request(found, what)
        return found

    def _capacity(self, num_blocks: int) -> Capacity:
        pool = Pool(num_blocks, self.layout.dp, self.limits.max_model_len, self.profile.defaults.log_formula)
        return capacity(self.model, self.geometry, pool, self.scenario.engine.kv_dtype, self.layout.tp, self.budget)

    def _require_one_request(self, found: Capacity, what: str) -> None:
        need = self.geometry.blocks_for(self.limits.max_model_len)
        if found.num_blocks > need:
            return
        longest = longest_context(self.geometry, found.num_blocks)
        problem = Problem(what, "engine.max_model_len", f"{self.limits.max_model_len:,} ({need:,} blocks)",
                          f"at most {longest:,} tokens ({found.num_blocks - 1:,} blocks)",
                          f"{gib((need + 1) * max(self.geometry.block_bytes))} of KV per GPU would hold it")
        raise InfeasibleError(f"{what}: one request of max_model_len does not fit\n{self.budget.text()}", [problem])

    def _advice(self) -> str:
        for factor in (2, 3, 4, 6, 8):
            larger = replace(self.layout, pp=self.layout.pp * factor)
            if self._fits(larger):
                return f"fits on {larger.num_gpus} GPUs as {larger}"
        return "no multiple of this hardware up to 8 x fits; take a GPU with more HBM or a smaller weight format"

    def _fits(self, layout: Layout) -> bool:
        if layout_problems(self.model, layout, layout.num_gpus):
            return False
        geometry = _geometry(self.scenario, self.model, layout)
        plain = hbm_budget(self.model, self.gpu, layout, self.limits, self.profile.reserve, geometry)
        budget = _with_draft(plain, self.drafter, layout)
        need = geometry.blocks_for(self.limits.max_model_len)
        return budget.kv_bytes > 0 and geometry.num_blocks(budget.kv_bytes) > need


def longest_context(geometry: KvGeometry, num_blocks: int) -> int:
    """Longest request [tokens] that fits into a pool of `num_blocks` blocks, the null block left out."""
    low, high = 0, num_blocks * geometry.block_capacity_tokens
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if geometry.blocks_for(middle) <= num_blocks - 1 else (low, middle - 1)
    return low


def _geometry(scenario: Scenario, model: ModelProfile, layout: Layout) -> KvGeometry:
    given = scenario.engine
    draft = parse_draft(given.draft, scenario.origin, "engine.draft")
    return kv_geometry(model, KvSpec(layout, given.kv_dtype, given.prefix_caching, draft, given.block_tokens))
