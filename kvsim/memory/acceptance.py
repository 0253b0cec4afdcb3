"""How many draft tokens a target accepts: a measured curve, or numbers of the user's own, always with a source."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvsim.errors import Problem, ScenarioError, nearest
from kvsim.memory.drafts import Draft
from kvsim.profiles.draft import DraftProfile
from kvsim.profiles.store import ProfileStore
from kvsim.scenario import AcceptancePart, Scenario

_FIELD = "engine.draft_acceptance"


@dataclass(frozen=True, slots=True)
class Acceptance:
    """What a step with drafts gives.

    Attributes
    ----------
    length : float
        Mean tokens a step and sequence, the target's own one included: 1 to 1 + k.
    kind : str
        ``golden``, ``measured`` or ``own``.
    source : str
        Where the number comes from.
    """

    length: float
    kind: str
    source: str


def accepted_length(rates: Sequence[float]) -> float:
    """Mean tokens of a step: 1 + sum over i of the product of the first i rates.

    Parameters
    ----------
    rates : sequence of float
        Probability that the i-th draft token is accepted when those before it were, 0 to 1.

    Returns
    -------
    float
        Tokens a step, 1 to 1 + number of rates.

    Examples
    --------
    >>> accepted_length([0.8, 0.5]), accepted_length([1.0, 1.0, 1.0]), accepted_length([])
    (2.2, 4.0, 1.0)
    """
    total, kept = 1.0, 1.0
    for rate in rates:
        kept *= rate
        total += kept
    return total


def find_draft_profile(model: str, draft: Draft, store: ProfileStore) -> DraftProfile | None:
    """The draft profile of a model and kind: the one that is named after both, else the only one."""
    found = [p for p in _profiles(store) if p.target == model and p.method == draft.kind]
    named = [p for p in found if p.name == f"{model}-{draft.kind}"]
    return named[0] if named else found[0] if len(found) == 1 else None


def acceptance_of(scenario: Scenario, model: str, draft: Draft, store: ProfileStore) -> Acceptance | None:
    """The acceptance that a scenario states, or None where it states none.

    Parameters
    ----------
    scenario : Scenario
        Its ``engine.draft_acceptance``.
    model : str
        Name of the target's profile.
    draft : Draft
        Kind and number of draft tokens.
    store : ProfileStore
        Where draft profiles are found.

    Raises
    ------
    ScenarioError
        No curve for that model, kind and number of tokens, or numbers that do not fit them.
    """
    given = scenario.engine.draft_acceptance
    if given is None:
        return None
    if not draft.tokens:
        raise _error(scenario, "", "draft_acceptance without a draft", "engine.draft beside it")
    if given.kind == "golden":
        return _golden(scenario, given, (model, draft), store)
    length = _own_length(given)
    count = len(given.rates or given.per_position or ()) or draft.tokens
    if count != draft.tokens or length > 1 + draft.tokens:
        stated = f"length {length:g}" if given.length is not None else f"{count} numbers"
        raise _error(scenario, "", f"{stated} with {draft.tokens} draft tokens",
                     f"{draft.tokens} numbers, or a length up to {1 + draft.tokens}")
    return Acceptance(length, given.kind, given.source or "")


def require_acceptance(scenario: Scenario, model: str, draft: Draft, store: ProfileStore) -> None:
    """Refuse a draft whose acceptance is not stated.

    Raises
    ------
    ScenarioError
        Names the presets for the model, or all of them.
    """
    if draft.tokens and scenario.engine.draft_acceptance is None:
        own = [p.name for p in _profiles(store) if p.target == model and p.method == draft.kind
               and p.length(draft.tokens) is not None]
        presets = ", ".join(own) if own else f"none for {model}, of others {', '.join(store.names('draft'))}"
        raise _error(scenario, "", "nothing, beside a draft",
                     f"{{kind: golden}} with one of the presets ({presets}), or {{kind: measured|own, source: ..., and "
                     "one of rates, per_position, length}")


def _golden(scenario: Scenario, given: AcceptancePart, what: tuple[str, Draft], store: ProfileStore) -> Acceptance:
    """The measured curve of a preset."""
    model, draft = what
    if given.preset is not None and not store.knows("draft", given.preset):
        names = store.names("draft")
        raise _error(scenario, ".preset", repr(given.preset), ", ".join(names), nearest(given.preset, names))
    profile = store.get("draft", given.preset) if given.preset else find_draft_profile(model, draft, store)
    if profile is None:
        raise _error(scenario, "", f"golden for {draft.kind} drafts of {model}",
                     f"preset: one of {', '.join(store.names('draft'))}; or numbers of your own")
    length = profile.length(draft.tokens)
    if length is None or profile.method != draft.kind:
        known = ", ".join(str(entry.drafted) for entry in profile.accepted)
        raise _error(scenario, ".preset", f"{profile.name} for {draft.tokens} tokens of {draft.kind}",
                     f"{known} tokens of {profile.method}; or numbers of your own")
    entry = next(e for e in profile.accepted if e.drafted == draft.tokens)
    source = profile.sources[entry.length.source]
    return Acceptance(length, "golden", f"{profile.name}: {source.title}, {source.url}")


def _own_length(given: AcceptancePart) -> float:
    if given.rates is not None:
        return accepted_length(given.rates)
    if given.per_position is not None:
        return 1.0 + sum(given.per_position)
    return given.length or 1.0


def _profiles(store: ProfileStore) -> list[DraftProfile]:
    return [store.get("draft", name) for name in store.names("draft")]


def _error(scenario: Scenario, field: str, given: str, accepted: str, hint: str = "") -> ScenarioError:
    return ScenarioError("the drafts' acceptance is not known",
                         [Problem(scenario.origin, _FIELD + field, given, accepted, hint)])
