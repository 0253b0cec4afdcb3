"""Long work beside the pages: one thread a job, with progress, cancelling, and a result that any page may ask for."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from kvsim.errors import KvsimError

MAX_JOBS = 32
"""Jobs remembered; the oldest that have ended are forgotten first."""


class Cancelled(Exception):
    """Raised inside a job, at its next report of progress, once it was cancelled."""


@dataclass(slots=True)
class Job:
    """Work in a thread of its own.

    Attributes
    ----------
    share : float
        Finished share, 0 to 1.
    text : str
        What it is at.
    state : str
        "running", "done", "failed" or "cancelled".
    result : Any
        What the work returned.
    error : KvsimError or None
        Why it failed.
    """

    share: float = 0.0
    text: str = ""
    state: str = "running"
    result: Any = None
    error: KvsimError | None = None
    began_s: float = field(default_factory=time.monotonic)
    ended_s: float | None = None
    first_share: float | None = None
    _cancelled: threading.Event = field(default_factory=threading.Event)

    def tell(self, share: float, text: str) -> None:
        """Report progress from inside the work.

        Raises
        ------
        Cancelled
            Somebody has asked the job to stop.
        """
        if self._cancelled.is_set():
            raise Cancelled
        if self.first_share is None:
            self.first_share = share
        self.share, self.text = share, text

    def cancel(self) -> None:
        """Ask it to stop; it does so when it next reports progress."""
        self._cancelled.set()

    @property
    def stopping(self) -> bool:
        """Whether it was asked to stop and still runs."""
        return self.state == "running" and self._cancelled.is_set()

    @property
    def elapsed_s(self) -> float:
        """How long it has run [s]."""
        return (self.ended_s or time.monotonic()) - self.began_s

    @property
    def left_s(self) -> float | None:
        """About how long it still takes [s], from its pace so far; None before the first progress.

        Examples
        --------
        >>> job = Job(share=0.5, first_share=0.0, began_s=0.0, ended_s=10.0)
        >>> job.left_s
        10.0
        """
        done = self.share - min(self.first_share or 0.0, self.share)
        return self.elapsed_s * (1.0 - self.share) / done if done > 0 else None


Work = Callable[[Job], Any]


class Jobs:
    """Jobs by name; a name has one running job at most."""

    def __init__(self) -> None:
        self._jobs: dict[str, Job] = {}
        self._lock = threading.Lock()

    def find(self, name: str) -> Job | None:
        """The latest job of that name."""
        with self._lock:
            return self._jobs.get(name)

    def start(self, name: str, work: Work) -> Job:
        """Run `work` in a thread, unless a job of that name is running."""
        with self._lock:
            known = self._jobs.get(name)
            if known is not None and known.state == "running":
                return known
            job = Job()
            self._jobs.pop(name, None)
            self._jobs[name] = job
            self._forget()
        threading.Thread(target=_run, args=(job, work), name=f"kvsim {name}", daemon=True).start()
        return job

    def _forget(self) -> None:
        ended = [name for name, job in self._jobs.items() if job.state != "running"]
        for name in ended[:max(len(self._jobs) - MAX_JOBS, 0)]:
            del self._jobs[name]


def _run(job: Job, work: Work) -> None:
    """The thread: whatever happens, the job ends in a state that pages can show."""
    try:
        job.result = work(job)
        job.share, state = 1.0, "done"
    except Cancelled:
        state = "cancelled"
    except KvsimError as err:
        job.error, state = err, "failed"
    except (ArithmeticError, LookupError, OSError, RuntimeError, TypeError, ValueError) as err:
        job.error, state = KvsimError(f"this failed: {type(err).__name__}: {err}"), "failed"
    job.ended_s = time.monotonic()
    job.state = state
