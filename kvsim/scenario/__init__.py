"""What a user writes: a scenario as YAML, a dict or Python, with every mistake reported at once."""

from kvsim.scenario.cluster import (
    AutoscalePart,
    DisaggregationPart,
    FailurePart,
    ReplicaGroup,
    RolePart,
    RouterName,
    RouterPart,
    TrafficLimit,
)
from kvsim.scenario.engine import (
    AcceptancePart,
    EvictionPart,
    Hardware,
    LayoutPart,
    LinearStep,
    TableStep,
    Tier,
)
from kvsim.scenario.files import (
    apply_override,
    find_file,
    refuse_other_files,
    shipped_files,
    with_value,
)
from kvsim.scenario.loading import (
    find_scenario,
    load_scenario,
    naming,
    shipped_scenarios,
)
from kvsim.scenario.money import (
    Demand,
)
from kvsim.scenario.parts import (
    SCHEMA,
    Part,
    Positive,
)
from kvsim.scenario.plan import (
    DayPart,
    PlanHardware,
    PlanPart,
    SloLimits,
    SurvivePart,
)
from kvsim.scenario.traffic import (
    ArrivalsPart,
    LengthPart,
    StepPart,
    Traffic,
)
from kvsim.scenario.whole import (
    Scenario,
    require_alike,
)

__all__ = [
    "SCHEMA",
    "AcceptancePart",
    "ArrivalsPart",
    "AutoscalePart",
    "DayPart",
    "Demand",
    "DisaggregationPart",
    "EvictionPart",
    "FailurePart",
    "Hardware",
    "LayoutPart",
    "LengthPart",
    "LinearStep",
    "Part",
    "PlanHardware",
    "PlanPart",
    "Positive",
    "ReplicaGroup",
    "RolePart",
    "RouterName",
    "RouterPart",
    "Scenario",
    "SloLimits",
    "StepPart",
    "SurvivePart",
    "TableStep",
    "Tier",
    "Traffic",
    "TrafficLimit",
    "apply_override",
    "find_file",
    "find_scenario",
    "load_scenario",
    "naming",
    "refuse_other_files",
    "require_alike",
    "shipped_files",
    "shipped_scenarios",
    "with_value",
]
