"""What is asked, and how it is let in."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import (
    BeforeValidator,
    Field,
    model_validator,
)

from kvsim.scenario.parts import Frac, NonNegative, Part, Positive, PositiveSeconds, Seconds, Tokens, TokensOrZero
from kvsim.units import human_int

SOURCES = ("preset", "trace", "fixed", "chat", "rag", "batch")
"""Fields of a workload that say what is asked; one of them is set."""


def _length(given: Any) -> Any:
    given = found if isinstance(given, str) and (found := human_int(given)) is not None else given
    return {"median": given} if isinstance(given, int | float) and not isinstance(given, bool) else given


class LengthPart(Part):
    """A log-normal length or time around a median; sigma 0 (or a bare number instead of this) = always the median."""

    median: Annotated[float, Field(ge=0)]
    sigma: Annotated[float, Field(ge=0)] = 0.0
    max: Annotated[float, Field(gt=0)] | None = None


Length = Annotated[LengthPart, BeforeValidator(_length)]


class FixedLengths(Part):
    """Requests of given lengths that share nothing; sigma > 0 makes them lognormal around these medians."""

    num_requests: Positive
    input_tokens: Tokens
    output_tokens: Tokens
    input_sigma: Annotated[float, Field(ge=0)] = 0.0
    output_sigma: Annotated[float, Field(ge=0)] = 0.0


class ChatPart(Part):
    """Conversations over one system prompt; `kvsim.workload.synthetic.Chat`. ``think_s`` is the pause between turns."""

    turns: Length
    user_tokens: Length
    output_tokens: Length
    system_tokens: TokensOrZero = 0
    think_s: Length = LengthPart(median=0.0)


class RagPart(Part):
    """Questions about shared documents; `kvsim.workload.synthetic.Rag`. ``zipf`` 0 = all documents alike."""

    num_documents: Positive
    document_tokens: Length
    question_tokens: Length
    output_tokens: Length
    documents_per_request: Positive = 1
    zipf: Annotated[float, Field(ge=0)] = 1.0
    system_tokens: TokensOrZero = 0
    sort_documents: bool = False

    @model_validator(mode="after")
    def _enough_documents(self) -> RagPart:
        if self.documents_per_request > self.num_documents:
            raise ValueError(f"{self.documents_per_request} documents per request of {self.num_documents}; "
                             f"accepted: at most num_documents")
        return self


class BatchPart(Part):
    """Items behind one instruction, all there at the start; `kvsim.workload.synthetic.Batch`."""

    num_requests: Positive
    input_tokens: Length
    output_tokens: Length
    shared_tokens: TokensOrZero = 0


class ArrivalsPart(Part):
    """How times between open arrivals vary, and how their rate swings over the day.

    ``cv`` is the coefficient of variation of gamma or weibull times. The rate is ``1 + swing cos(2 pi (t - peak) /
    period)`` times its mean. ``trace_rate`` names a trace instead, whose rate in windows of about ``window_s`` is
    followed, over and over: at its own mean, or at the workload's ``rate_per_s`` where that is set.
    """

    family: Literal["poisson", "gamma", "weibull", "even"] = "poisson"
    cv: Annotated[float, Field(gt=0, le=100)] = 1.0
    swing: Annotated[float, Field(ge=0, le=1)] = 0.0
    period_s: PositiveSeconds = 86_400.0
    peak_s: Seconds = 0.0
    trace_rate: str | None = None
    window_s: PositiveSeconds | None = None

    @model_validator(mode="after")
    def _one_pattern(self) -> ArrivalsPart:
        if self.trace_rate is not None and self.swing:
            raise ValueError("swing and trace_rate both set; accepted: one of them")
        if self.trace_rate is None and self.window_s is not None:
            raise ValueError("window_s without trace_rate; accepted: both, or none of them")
        return self

    @model_validator(mode="after")
    def _has_cv(self) -> ArrivalsPart:
        if self.cv != 1.0 and self.family in ("poisson", "even"):
            raise ValueError(f"cv {self.cv:g} with {self.family}; accepted: a cv for gamma or weibull")
        return self


class StepPart(Part):
    """From ``at_s`` on (counted from the end of the warm-up) another number of live sessions, or another rate."""

    at_s: PositiveSeconds
    concurrency: NonNegative | None = None
    rate_per_s: Annotated[float, Field(ge=0)] | None = None

    @model_validator(mode="after")
    def _one(self) -> StepPart:
        if (self.concurrency is None) == (self.rate_per_s is None):
            raise ValueError("both or none of concurrency and rate_per_s; accepted: one of them")
        return self


class ReplayPart(Part):
    """How live sessions are let in, where it is not as AgentX does; see `kvsim.workload.trees.ReplayRules`.

    ``start_frac``: first sessions begin uniformly in this part of themselves; ``from_start``: at their first turn.
    """

    gap_cap_s: Seconds | None = None
    idle_cap_s: Seconds | None = None
    start_frac: tuple[Annotated[float, Field(ge=0, le=1)], Annotated[float, Field(ge=0, le=1)]] | None = None
    from_start: bool = False
    warmup_requests: NonNegative | None = None


class Traffic(Part):
    """One kind of traffic: what is asked, and how it is let in.

    Exactly one of ``preset`` (a name, or the path of a fitted one), ``trace`` (file or folder of any known format),
    ``fixed``, ``chat``, ``rag``, ``batch`` says what; ``mapping`` names the columns of a trace of one's own (as for
    ``kvsim trace info --mapping``). ``concurrency`` counts live session trees (parent and sub-agents,
    thinking or not), or clients where sessions are single requests. ``mode: open`` lets requests of a trace in at their
    recorded times, ``rate_factor`` times as fast, or lets sessions begin at ``rate_per_s``. ``burstiness`` is the
    coefficient of variation of gamma-distributed times between arrivals. No more than ``max_concurrency`` requests are
    in flight: who comes then waits at the client.
    """

    preset: str | None = None
    trace: str | None = None
    mapping: dict[str, str] | None = None
    fixed: FixedLengths | None = None
    chat: ChatPart | None = None
    rag: RagPart | None = None
    batch: BatchPart | None = None
    mode: Literal["open", "closed"] | None = None
    concurrency: Positive | None = None
    rate_per_s: Annotated[float, Field(gt=0)] | None = None
    rate_factor: Annotated[float, Field(gt=0)] | None = None
    burstiness: Annotated[float, Field(gt=0, le=100)] | None = None
    arrivals: ArrivalsPart | None = None
    steps: tuple[StepPart, ...] | None = None
    max_concurrency: Positive | None = None
    max_sessions: Positive | None = None
    replay: ReplayPart | None = None

    @property
    def sources(self) -> list[str]:
        """Names of what is asked that are set."""
        return [n for n in SOURCES if getattr(self, n) is not None]

    @property
    def has_sessions(self) -> bool:
        """Whether there are sessions of several turns, as far as the scenario itself says."""
        return self.preset is not None or self.trace is not None or self.chat is not None

    @model_validator(mode="after")
    def _consistent(self) -> Traffic:
        if self.mapping is not None and self.trace is None:
            raise ValueError("mapping without trace; accepted: both, or none of them")
        if self.burstiness is not None and self.arrivals is not None:
            raise ValueError("burstiness and arrivals both set; accepted: one of them (burstiness: 2 is arrivals: "
                             "{family: gamma, cv: 2})")
        times = [step.at_s for step in self.steps or ()]
        if times != sorted(set(times)):
            raise ValueError(f"steps at {times}; accepted: times that rise")
        return self


class TrafficClass(Traffic):
    """One of several kinds of traffic side by side.

    ``share`` is the part of the workload's ``concurrency`` or ``rate_per_s`` that it gets, where it states none of
    its own. ``priority`` (lower is more urgent) acts with ``engine.policy: priority``. Limits of its own stand in the
    scenario's ``slo.by_class`` under its name. ``api`` names the API price that it sells at, where that is not the
    general one (``prices.api``).
    """

    name: Annotated[str, Field(min_length=1)]
    share: Frac | None = None
    priority: int = 0
    api: str | None = None

    @model_validator(mode="after")
    def _one_source(self) -> TrafficClass:
        if len(self.sources) != 1:
            raise ValueError(f"{' and '.join(self.sources) or 'none of them'}; accepted: "
                             f"exactly one of {', '.join(SOURCES)}")
        return self


class WorkloadPart(Traffic):
    """All traffic: one kind, or several ``classes`` side by side.

    ``duration_s`` and ``warmup_s`` are the measured time and what comes before it, both after the warm-up requests of
    live sessions. ``measure: auto`` measures from where the run has become steady instead (`kvsim.report.statistics`).
    """

    duration_s: PositiveSeconds | None = None
    warmup_s: Seconds = 0.0
    measure: Literal["auto"] | None = None
    classes: Annotated[tuple[TrafficClass, ...], Field(min_length=1)] | None = None

    @model_validator(mode="after")
    def _one_source(self) -> WorkloadPart:
        given = [*self.sources, *(["classes"] if self.classes else [])]
        if len(given) != 1:
            raise ValueError(f"{' and '.join(given) or 'none of them'}; accepted: "
                             f"exactly one of {', '.join(SOURCES)}, classes")
        endless = [c.name for c in self.classes or () if c.preset or c.chat or c.rag]
        if self.duration_s is None and (endless or self.preset or self.chat or self.rag):
            what = f"{', '.join(endless) or given[0]} without duration_s"
            raise ValueError(f"a {what}; accepted: both, since its sessions never run out")
        names = [c.name for c in self.classes or ()]
        if len(set(names)) < len(names):
            raise ValueError(f"classes {', '.join(names)}; accepted: every name once")
        return self
