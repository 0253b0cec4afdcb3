"""Speculative drafts as far as memory is concerned: extra layers and a wider state."""

from __future__ import annotations

import re
from dataclasses import dataclass

from kvsim.errors import Problem, ScenarioError

DSPARK_LAYERS = 5
"""Attention layers of the published DSpark drafts, with the target's latent shape."""

_FORM = re.compile(r"^(?:none|mtp-k(?P<mtp>\d+)|dspark-(?P<dtype>fp8|bf16)-k(?P<dspark>\d+))$")


@dataclass(frozen=True, slots=True)
class Draft:
    """A draft model kept beside the target.

    Attributes
    ----------
    kind : "none", "mtp" or "dspark"
        MTP is one more layer of the target's full attention; DSpark five more latent layers.
    tokens : int
        Draft tokens verified in a step (k).
    kv_dtype : str
        KV format of a DSpark draft; empty for the others (they use the target's).
    """

    kind: str = "none"
    tokens: int = 0
    kv_dtype: str = ""

    @property
    def num_layers(self) -> int:
        """Attention layers that the draft adds to the pool."""
        return {"none": 0, "mtp": 1, "dspark": DSPARK_LAYERS}[self.kind]


NO_DRAFT = Draft()
"""The target alone."""


def parse_draft(text: str, where: str = "scenario", field: str = "draft") -> Draft:
    """Read ``none``, ``mtp-kN``, ``dspark-fp8-kN`` or ``dspark-bf16-kN``; `where` and `field` name it in messages.

    Raises
    ------
    ScenarioError
        Anything else, or k = 0.

    Examples
    --------
    >>> parse_draft("dspark-fp8-k2")
    Draft(kind='dspark', tokens=2, kv_dtype='fp8')
    """
    match = _FORM.match(text)
    if match is None or (match["mtp"] or match["dspark"]) == "0":
        accepted = "none, mtp-kN, dspark-fp8-kN or dspark-bf16-kN with N >= 1"
        raise ScenarioError("unknown draft", [Problem(where, field, repr(text), accepted)])
    if match["mtp"]:
        return Draft("mtp", int(match["mtp"]))
    if match["dspark"]:
        return Draft("dspark", int(match["dspark"]), match["dtype"])
    return NO_DRAFT
