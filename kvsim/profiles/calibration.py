"""Schema of calibrations (``kvsim/calibration/1``): measured multipliers of the terms of the physics step time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Literal

from pydantic import Field, model_validator

from kvsim.errors import Problem, ProfileError
from kvsim.profiles.figure import Count, Frac, Profile

FactorName = Literal["host_step", "host_sequence", "launches", "eager", "gemm_compute", "weight_bytes", "experts",
                     "prefill_attention", "decode_attention", "state_decode", "state_prefill"]


@dataclass(frozen=True, slots=True)
class CalibrationUse:
    """What a calibration is applied to: profiles by name, KV format, scheduling, and the physics under it."""

    gpu: str
    model: str
    kv_dtype: str
    engine_profile: str
    async_scheduling: bool
    physics_digest: str


class CalibrationProfile(Profile):
    """Coefficients of one GPU, model, KV format, engine profile and kind of scheduling.

    ``factors`` multiply the time of a term of the physics model (1 = as it was). ``physics_digest`` is that of the
    coefficients they were fitted to: once an engine, GPU or model profile changes them, the fit no longer holds.
    ``steps`` is how many measured steps it rests on.
    """

    schema_: Literal["kvsim/calibration/1"] = Field(alias="schema")
    gpu: str
    model: str
    kv_dtype: str
    engine_profile: str
    async_scheduling: bool
    physics_digest: str = Field(pattern=r"^[0-9a-f]{16}$")
    steps: Count
    factors: dict[FactorName, Frac] = Field(min_length=1)

    @model_validator(mode="after")
    def _check(self) -> CalibrationProfile:
        still = [name for name, figure in self.factors.items() if not figure.base > 0]
        if still:
            raise ValueError(f"{', '.join(still)} of 0; accepted: factors above 0")
        return self

    def require(self, use: CalibrationUse) -> None:
        """Check that the calibration is for this use.

        Raises
        ------
        ProfileError
            Another GPU, model, KV format, engine profile or kind of scheduling, or other physics, all of them named.
        """
        problems = [Problem(f"calibration {self.name}", field, f"a use with {given!r}",
                            f"{accepted!r}, which it is for", "kvsim calibrate makes one for other uses")
                    for field, given, accepted in self._differences(use)]
        if problems:
            raise ProfileError(f"calibration {self.name!r} is for something else", problems)

    def _differences(self, use: CalibrationUse) -> Iterator[tuple[str, object, object]]:
        for field in fields(CalibrationUse):
            given, accepted = getattr(use, field.name), getattr(self, field.name)
            if given != accepted:
                yield field.name, given, accepted
