"""The next best dollar in a process of its own: minutes of simulations that must not slow the pages down.

Run as a program, it reads a scenario as JSON and writes the changes as JSON.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

from kvsim.dashboard.jobs import Cancelled, Job, Work
from kvsim.errors import KvsimError
from kvsim.scenario import Scenario

POLL_S = 0.2


def work_of(scenario: Scenario, fleet: int = 1) -> Work:
    """What finds the next best dollar as a job; its result is a list of changes as plain data, today first."""
    def work(job: Job) -> list[dict[str, Any]]:
        request = json.dumps({"scenario": scenario.to_dict(), "fleet": fleet})
        process = subprocess.Popen([sys.executable, "-m", "kvsim.dashboard.dollar"], stdin=subprocess.PIPE,
                                   stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, encoding="utf-8")
        try:
            return _answer(process, request, job)
        except Cancelled:
            process.kill()
            process.communicate()
            raise

    return work


def _answer(process: subprocess.Popen[str], request: str, job: Job) -> list[dict[str, Any]]:
    """What the process wrote once it has ended."""
    asked: str | None = request
    while True:
        job.tell(0.0, "Simulating every single change")
        try:
            text, _ = process.communicate(asked, timeout=POLL_S)
        except subprocess.TimeoutExpired:
            asked = None
            continue
        if process.returncode:
            raise KvsimError(f"the process ended with exit code {process.returncode}")
        found: dict[str, Any] = json.loads(text)
        if "error" in found:
            raise KvsimError(str(found["error"]))
        return list(found["changes"])


def change_rows(changes: list[dict[str, Any]]) -> list[dict[str, str]]:
    """Changes as rows of a table; medians over the seeds."""
    return [_row(change) for change in changes]


def _row(change: dict[str, Any]) -> dict[str, str]:
    sessions, each, extra = change["sessions"], change["usd_per_extra_session"], change["extra_sessions"]
    today = change["what"] == "today"
    note = str(change.get("note") or "")

    def shown(value: float | None, form: str) -> str:
        return "–" if value is None else f"{value:{form}}".replace("-", "−")

    return {
        "Change": change["what"], "Sessions inside the SLO": shown(sessions["median"], ",g"),
        "More sessions": "" if today else shown(extra["median"], "+,g"),
        "$ per hour": shown(change["usd_per_hour"], ",.2f"),
        "More $ per hour": "" if today else shown(change["extra_usd_per_hour"], "+,.2f"),
        "$ per hour and more session": "" if today else
        "no more sessions" if each["median"] is None and not note else shown(each["median"], ",.2f"),
        "Why not": note,
    }


def main() -> None:
    """Answer the request on standard input."""
    from kvsim.planning.changes import next_dollar, plain_changes

    asked = json.load(sys.stdin)
    try:
        changes = plain_changes(next_dollar(Scenario.from_dict(asked["scenario"]), asked["fleet"]))
        answer: dict[str, Any] = {"changes": changes}
    except KvsimError as err:
        answer = {"error": err.message}
    json.dump(answer, sys.stdout)


if __name__ == "__main__":
    main()
