"""Uploaded traces that the server keeps as files while it runs, so that scenarios can name them; no Streamlit."""

from __future__ import annotations

import hashlib
import os
import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Lock

from kvsim.dashboard.reuse import uploaded_trace
from kvsim.workload.table import Trace

MAX_KEPT = 8
"""Traces kept; the one that was uploaded the longest ago goes first."""
DIGEST_CHARS = 12


@dataclass(frozen=True, slots=True)
class Kept:
    """A trace that was uploaded.

    Attributes
    ----------
    name : str
        What choices and addresses call it: a digest of its content and its file's name.
    path : Path
        Where it lies.
    num_requests, num_sessions : int
        What it holds.
    duration_s : float
        From its first to its last arrival; of its longest session where sessions have no common clock.
    has_turns : bool
        Whether its sessions have requests that follow others.
    has_clock : bool
        Whether it says when its requests arrived, so that it can be replayed at those times.
    """

    name: str
    path: Path
    num_requests: int
    num_sessions: int
    duration_s: float
    has_turns: bool
    has_clock: bool

    @property
    def file_name(self) -> str:
        """Name of the file as it was uploaded."""
        return self.name[DIGEST_CHARS + 1:]


class Shelf:
    """Kept traces by name; shared by all sessions of a server."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._kept: dict[str, Kept] = {}
        self._lock = Lock()

    def keep(self, file_name: str, data: bytes) -> Kept:
        """Check an uploaded file and keep it; the same content under the same name is the same trace.

        Raises
        ------
        TraceError
            As `kvsim.dashboard.reuse.uploaded_trace`.
        """
        trace = uploaded_trace(file_name, data)
        own = re.sub(r"[^A-Za-z0-9._-]+", "_", Path(file_name).name)[-80:]
        name = f"{hashlib.sha256(data).hexdigest()[:DIGEST_CHARS]}-{own}"
        kept = _kept_of(name, self._folder / name, trace)
        with self._lock:
            kept.path.write_bytes(data)
            self._kept.pop(name, None)
            self._kept[name] = kept
            for old in list(self._kept)[:-MAX_KEPT]:
                self._kept.pop(old).path.unlink(missing_ok=True)
        return kept

    def told(self, text: str) -> str:
        """A message with the names under which traces were uploaded, not those that they have here."""
        return re.sub(re.escape(f"{self._folder}{os.sep}") + f"[0-9a-f]{{{DIGEST_CHARS}}}-", "", text)

    def find(self, name: str) -> Kept | None:
        """The trace of that name, unless it is not there any more."""
        with self._lock:
            return self._kept.get(name)


def _kept_of(name: str, path: Path, trace: Trace) -> Kept:
    duration_s = float(trace.time_s.max()) if len(trace) else 0.0
    return Kept(name, path, len(trace), trace.num_sessions, duration_s, bool(len(trace.dep_index)),
                trace.clock == "common")


@lru_cache(maxsize=1)
def _folder() -> TemporaryDirectory[str]:
    return TemporaryDirectory(prefix="kvsim-traces-")


@lru_cache(maxsize=1)
def shelf() -> Shelf:
    """The server's one shelf, emptied when the server ends."""
    return Shelf(Path(_folder().name))
