"""What the reproductions page says today, computed once: whoever wants a row of it takes it from here.

Tests that do belong to the xdist group ``published``, so that one worker computes each row once.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

from kvsim.validate.claims import Claim, Finding
from kvsim.validate.claims_serving import K3Runs
from kvsim.validate.published import Reproductions, all_claims

PAGE = Path(__file__).parents[2] / "docs" / "reproductions.md"


@cache
def claims() -> dict[str, Claim]:
    """Every claim of the page by its id, with the seeds of `kvsim validate published`."""
    return {claim.id: claim for claim in all_claims(K3Runs())}


@cache
def finding(name: str) -> Finding:
    """What kvsim says to one claim."""
    return Finding(claims()[name], claims()[name].measure())


def fresh() -> Reproductions:
    """All of the page."""
    return Reproductions(tuple(finding(name) for name in claims()))


def table_rows(page: str) -> dict[str, str]:
    """Rows of a page's tables by the id in their first cell."""
    rows = [line for line in page.splitlines() if line.startswith("| ")]
    found = {line.split("|")[1].strip(): line for line in rows}
    return {key: line for key, line in found.items() if key not in ("id", "---")}
