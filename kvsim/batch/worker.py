"""A worker process: reads a case a line, answers an outcome a line, ends when its input ends.

A process of its own program rather than a fork or a copy of the caller's script: it starts the same everywhere, a
notebook included, and its death is seen as the end of its output.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from typing import TextIO

from kvsim.batch.job import Job, run_case

READY = "ready"


def main(arguments: list[str]) -> None:
    """Serve cases from standard input; the first argument bounds this process's data [bytes], 0 for no bound."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    # Whatever else writes to standard output must not end up between the answers.
    os.dup2(2, 1)
    importlib.import_module("kvsim.simulation")
    bound_memory(int(arguments[0]))
    _say(answers, READY)
    try:
        for line in sys.stdin:
            _say(answers, json.dumps(run_case(Job.from_json(line))))
    except BrokenPipeError:
        # Whoever asked has gone; what was written but not sent must not be tried again at the end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), answers.fileno())


def bound_memory(num_bytes: int) -> None:
    """Make allocations beyond `num_bytes` of data fail (Linux; elsewhere the system may not enforce it)."""
    if not num_bytes:
        return
    try:
        import resource
    except ImportError:
        return
    resource.setrlimit(resource.RLIMIT_DATA, (num_bytes, num_bytes))


def _say(answers: TextIO, line: str) -> None:
    answers.write(line + "\n")
    answers.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
