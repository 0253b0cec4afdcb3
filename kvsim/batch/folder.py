"""The folder of a sweep: one small file a finished case, from which an interrupted sweep goes on."""

from __future__ import annotations

import hashlib
import json
import os
from functools import lru_cache
from pathlib import Path
from typing import Any

from kvsim.batch.job import Outcome
from kvsim.batch.spec import Batch
from kvsim.errors import Problem, ScenarioError
from kvsim.profiles.store import default_store
from kvsim.simulation import package_version

_NO_RESULT = ("batch", "commands", "dashboard", "planning", "validate", "cli.py", "comparison.py")
"""Parts of the package that decide no result of a case."""

MANIFEST, TABLE, CASES, REQUESTS = "sweep.json", "cases.parquet", "cases", "requests"
DOUBTS = "doubts.json"


class Folder:
    """Results of one sweep on disk.

    ``sweep.json`` is the sweep with its base inlined, ``cases/DIGEST.json`` one outcome each, written in one
    piece when the case finishes, ``requests/DIGEST.parquet`` its requests if asked for, ``cases.parquet`` the table
    of the whole. A case counts as finished if its file was written by the same version and code, with the same
    profiles.

    Parameters
    ----------
    path : str or Path
        The folder.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    @property
    def table_path(self) -> Path:
        """The table of the whole sweep."""
        return self.path / TABLE

    def start(self, batch: Batch) -> None:
        """Make the folder and write down which sweep it holds.

        Raises
        ------
        ScenarioError
            It holds something else, or cannot be written.
        """
        if self.path.exists() and not self._is_free():
            accepted = "a new or empty folder, or that of a sweep to go on with"
            raise ScenarioError("cannot write the sweep's results", [
                Problem(str(self.path), "", "something that is no sweep's folder", accepted)])
        try:
            (self.path / CASES).mkdir(parents=True, exist_ok=True)
            manifest = {"sweep": batch.to_dict(), "digest": batch.digest, "version": package_version()}
            write_text(self.path / MANIFEST, json.dumps(manifest, indent=1) + "\n")
        except OSError as err:
            raise ScenarioError("cannot write the sweep's results", [
                Problem(str(self.path), "", err.strerror or str(err), "a folder that can be written")]) from None

    def batch(self) -> Batch:
        """The sweep whose results these are.

        Raises
        ------
        ScenarioError
            Not a sweep's folder.
        """
        try:
            manifest = json.loads((self.path / MANIFEST).read_text(encoding="utf-8"))
            return Batch.model_validate(manifest["sweep"])
        except (OSError, ValueError, KeyError) as err:
            given = f"{type(err).__name__} in {MANIFEST}" if self.path.is_dir() else "no such folder"
            if isinstance(err, FileNotFoundError) and self.path.is_dir():
                given = f"a folder without {MANIFEST}"
            raise ScenarioError("not the folder of a sweep", [
                Problem(str(self.path), "", given,
                        "a folder that kvsim sweep -o wrote")]) from None

    def outcome(self, digest: str, any_basis: bool = False) -> Outcome | None:
        """What a case came to; None if it has not finished with this version and these profiles, or with any."""
        try:
            kept: dict[str, Any] = json.loads(self._case(digest).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        return kept["outcome"] if any_basis or kept.get("basis") == basis() else None

    def save(self, digest: str, outcome: Outcome) -> None:
        """Keep the outcome of a finished case."""
        kept = {"basis": basis(), "outcome": outcome}
        write_text(self._case(digest), json.dumps(kept, sort_keys=True, allow_nan=False) + "\n")

    def doubts(self, key: str) -> dict[str, Any] | None:
        """What was kept about the ranges of figures under a key; None if nothing was, or under another one."""
        try:
            kept: dict[str, Any] = json.loads((self.path / DOUBTS).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        return kept["doubts"] if kept.get("key") == key else None

    def keep_doubts(self, key: str, doubts: dict[str, Any]) -> None:
        """Keep what the ranges of figures do; in place of what was kept before."""
        write_text(self.path / DOUBTS, json.dumps({"key": key, "doubts": doubts}, sort_keys=True) + "\n")

    def requests_path(self, digest: str) -> Path:
        """Where the requests of a case are."""
        return self.path / REQUESTS / f"{digest}.parquet"

    def drop_table(self) -> None:
        """Remove the table before cases change, so that it is never older than they are."""
        self.table_path.unlink(missing_ok=True)

    def _case(self, digest: str) -> Path:
        return self.path / CASES / f"{digest}.json"

    def _is_free(self) -> bool:
        return self.path.is_dir() and ((self.path / MANIFEST).is_file() or not any(self.path.iterdir()))


def write_text(path: Path, text: str) -> None:
    """Write a file in one piece: whoever reads it sees all of it or the one before."""
    fresh = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    fresh.write_text(text, encoding="utf-8")
    fresh.replace(path)


def basis() -> str:
    """What beside its scenario decides a result: kvsim's version and code, and the contents of all profiles."""
    return f"{package_version()}+{_contents_digest()}"


@lru_cache(maxsize=1)
def _contents_digest() -> str:
    """Digest of profiles and code: in a checkout, code changes while its version does not."""
    package = Path(__file__).resolve().parent.parent
    code = [path for path in package.rglob("*.py") if path.relative_to(package).parts[0] not in _NO_RESULT]
    total = hashlib.sha256()
    for digest in sorted(hashlib.sha256(path.read_bytes()).digest()
                         for path in (*code, *(file.path for file in default_store().files()))):
        total.update(digest)
    return total.hexdigest()[:16]
