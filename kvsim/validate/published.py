"""Published and measured values beside what kvsim says: the reproductions page."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvsim.profiles.paths import data_root
from kvsim.validate.claims import KINDS, PUBLISHED_KINDS, Claim, Finding, NotSimulated
from kvsim.validate.claims_drafts import draft_claims
from kvsim.validate.claims_measured import recorded_claims
from kvsim.validate.claims_memory import memory_claims
from kvsim.validate.claims_serving import K3Runs, serving_claims
from kvsim.validate.claims_speed import speed_claims

NOT_SIMULATED = (
    NotSimulated("33", "MiMo-V2-Flash on 8 x H200: KV throughput (4.66 Gbit/s)", "no profile of the model"),
)
"""Targets that are left out, and why."""

_INTRO = """\
# Reproductions

Made by `kvsim validate published -o docs/reproductions.md`; do not edit.

Each row is a value that was published or measured, and what kvsim says. The bands were fixed before the first run, and
nothing is tuned to them but what `fitted` names. A miss stays a miss and says why. Values over seeds are medians, with
the extremes in brackets; `seeds` counts the seeds that lie in the band on their own: about half is a close call. A
ratio is that of two medians, as the published ones are of published values; the median of the seeds' own ratios is a
remark. Negative controls are engine profiles that must *not* agree: a hit is a value outside the band.

Exact arithmetic, decisions of a scheduler and wide bands are counted apart. The last line counts the targets of
published values (1 to 35) that have every value in its band.
"""


@dataclass(frozen=True, slots=True)
class Reproductions:
    """What was compared; ``left_out`` were asked not to be, ``missing`` cannot be."""

    findings: tuple[Finding, ...]
    left_out: tuple[str, ...] = ()
    missing: tuple[NotSimulated, ...] = NOT_SIMULATED

    def targets(self) -> Mapping[str, bool]:
        """Targets of published values: whether all values of each are in their bands."""
        found: dict[str, bool] = {}
        for finding in self.findings:
            claim = finding.claim
            if claim.kind in PUBLISHED_KINDS:
                found[claim.target] = found.get(claim.target, True) and finding.hit
        return found

    def score(self) -> str:
        """The last line."""
        targets = self.targets()
        return f"published: {sum(targets.values())}/{len(targets)} rows inside their bands"

    def counts(self) -> list[str]:
        """One line a kind of row."""
        return [f"{title}: {sum(f.hit for f in mine)} of {len(mine)} values where they must be"
                for kind, title in KINDS.items() if (mine := self._of(kind))]

    def text(self) -> str:
        """For a terminal; the last line is the score."""
        rows = [f"{f.claim.id:5s} {f.verdict:4s} {f.claim.what}: {f.ours()} (published {f.claim.published}, "
                f"band {f.claim.band.text})" + (f"; {f.reason()}" if f.reason() else "") for f in self.findings]
        return "\n".join([*rows, *self._absent(), "", *self.counts(), self.score()])

    def markdown(self) -> str:
        """The page."""
        parts = [_INTRO]
        for kind, title in KINDS.items():
            if mine := self._of(kind):
                parts += [f"## {title.capitalize()}\n", *table(mine)]
        parts += ["## Not simulated yet\n", *(f"- {line}" for line in self._absent()), ""]
        parts += ["## Score\n", "```text", *self.counts(), self.score(), "```"]
        return "\n".join(parts) + "\n"

    def to_dict(self) -> dict[str, Any]:
        """Plain data; an open end of a band is None."""
        return {"rows": [_row_dict(finding) for finding in self.findings], "left_out": list(self.left_out),
                "not_simulated": [{"id": m.id, "what": m.what, "reason": m.reason} for m in self.missing],
                "targets": dict(self.targets()), "score": self.score()}

    def _of(self, kind: str) -> list[Finding]:
        return [f for f in self.findings if f.claim.kind == kind]

    def _absent(self) -> list[str]:
        absent = [f"{m.id}: {m.what}: {m.reason}" for m in self.missing]
        return absent + ([f"left out here: {', '.join(self.left_out)}"] if self.left_out else [])


def all_claims(runs: K3Runs, data: Path | None = None) -> list[Claim]:
    """Every claim, in the order of the page.

    Parameters
    ----------
    runs : K3Runs
        Makes the runs of the K3 study.
    data : Path, optional
        Folder of the recordings; default `recordings`.

    Returns
    -------
    list of Claim
        Without those on recordings if there is no such folder (an installed wheel has none).
    """
    folder = data or recordings()
    recorded = recorded_claims(folder) if folder.is_dir() else []
    return [*memory_claims(), *speed_claims(), *draft_claims(), *serving_claims(runs), *recorded]


def recordings() -> Path:
    """Folder of the recordings in a checkout."""
    return data_root() / "tests" / "data"


def check_published(runs: K3Runs, quick: bool = False, data: Path | None = None) -> Reproductions:
    """Compare published and measured values with what kvsim says.

    Parameters
    ----------
    runs : K3Runs
        Says how many seeds the K3 study has.
    quick : bool
        Leave out what takes simulations.
    data : Path, optional
        Folder of the recordings, ``tests/data`` of the checkout by default.

    Returns
    -------
    Reproductions
        With ``.text()``, ``.markdown()``, ``.to_dict()`` and ``.score()``.

    Raises
    ------
    KvsimError
        A recording or a shipped profile cannot be read.

    Examples
    --------
    >>> found = check_published(K3Runs(), quick=True)
    >>> {f.claim.id: f.verdict for f in found.findings}["3a"]
    'hit'
    """
    claims = all_claims(runs, data)
    wanted = [claim for claim in claims if not (quick and claim.simulated)]
    left_out = tuple(claim.id for claim in claims if quick and claim.simulated)
    return Reproductions(tuple(Finding(claim, claim.measure()) for claim in wanted), left_out)


_COLUMNS = ("id", "what", "published", "ours", "difference", "band", "seeds", "verdict", "source", "fitted", "remarks")


def table(findings: Sequence[Finding]) -> list[str]:
    """Rows of a Markdown table, and an empty line."""
    head = [_line(_COLUMNS), _line("---" for _ in _COLUMNS)]
    return [*head, *(_line(_cells(finding)) for finding in findings), ""]


def _cells(finding: Finding) -> list[str]:
    """One row of the page."""
    claim = finding.claim
    remarks = "; ".join(filter(None, [finding.sample.note, finding.reason()]))
    return [claim.id, claim.what, claim.published, finding.ours(), finding.difference(), claim.band.text,
            finding.seeds(), finding.verdict, claim.source, claim.fitted or "no", remarks]


def _line(cells: Iterable[str]) -> str:
    """One line of a Markdown table."""
    return "| " + " | ".join(cells) + " |"


def _row_dict(finding: Finding) -> dict[str, Any]:
    """One row as plain data."""
    claim, sample = finding.claim, finding.sample
    ends = [end if math.isfinite(end) else None for end in (claim.band.low, claim.band.high)]
    return {"id": claim.id, "kind": claim.kind, "what": claim.what, "published": claim.published,
            "source": claim.source, "value": sample.value, "each": list(sample.each), "band": ends,
            "outside": claim.band.outside, "hit": finding.hit,
            "fitted": claim.fitted, "note": sample.note, "reason": finding.reason()}
