"""Schema of a draft (``engine_profiles/drafts/``): what proposes tokens for a model, and how many of them it keeps."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from kvsim.profiles.figure import Figure, Params, Profile, Strict

Method = Literal["mtp", "eagle3", "dflash", "dspark"]


class AcceptedLength(Strict):
    """Mean tokens that a step gives with ``drafted`` draft tokens: the target's own one and those it accepts."""

    drafted: Annotated[int, Field(ge=1)]
    length: Figure

    @model_validator(mode="after")
    def _check(self) -> AcceptedLength:
        if self.length.unit != "tokens":
            raise ValueError(f"length in {self.length.unit!r}; accepted: tokens")
        if not 1.0 <= self.length.value <= 1.0 + self.drafted:
            raise ValueError(f"length {self.length.value:g} of {self.drafted} drafted; "
                             f"accepted: 1 to {1 + self.drafted} tokens")
        return self


class DraftProfile(Profile):
    """A draft for one model (``kvsim/draft/1``).

    ``target`` names the model. ``accepted`` is the measured curve of mean tokens a step by tokens drafted, on the
    traffic that ``note`` and the sources tell. ``params`` is the size of a draft that is a model of its own, embedding
    and head left out; without it (MTP, or unknown) the size is counted from the target's shapes.
    """

    schema_: Literal["kvsim/draft/1"] = Field(alias="schema")
    method: Method
    target: str
    params: Params | None = None
    accepted: tuple[AcceptedLength, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _check(self) -> DraftProfile:
        drafted = [entry.drafted for entry in self.accepted]
        if sorted(set(drafted)) != drafted:
            raise ValueError(f"accepted for {drafted} drafted tokens; accepted: ascending, each once")
        return self

    def length(self, drafted: int) -> float | None:
        """Mean tokens a step with so many drafted; None where it was not measured."""
        return next((entry.length.base for entry in self.accepted if entry.drafted == drafted), None)
