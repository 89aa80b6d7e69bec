"""What must hold after processes were replaced under load: every job ended once, in one attempt."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from sqlalchemy import Engine

from loadtest.chaos.facts import wait_until_settled
from loadtest.chaos.judge import repeated_steps
from loadtest.chaos.witness import Line, read_lines
from loadtest.fleet import rows
from loadtest.upgrade.clients import Clients

SETTLE_SECONDS = 120.0
READ_JOBS = """
    SELECT id::text, type, status::text, attempt, crashes, deferrals, lease, worker, error_class,
           error_message
    FROM jobs
"""


def judge(engine: Engine, clients: Clients, witness: Path) -> dict[str, list[str]]:
    """Faults by name."""
    wait_until_settled(engine, SETTLE_SECONDS)
    found = {row.id: row for row in rows(engine, READ_JOBS)}
    promised = set(clients.accepted.values())
    lines = read_lines(witness)
    starts = Counter(line.job for line in lines if line.what == "start")
    finished = [row for row in found.values() if row.id in promised]
    return {
        "failed requests": clients.failures,
        "lost": sorted(promised - found.keys()),
        "admitted twice": sorted(found.keys() - promised),
        "not succeeded": [
            f"{row.id} {row.type} {row.status}: {row.error_class} {row.error_message}"
            for row in finished
            if row.status != "succeeded"
        ],
        "run lost": [f"{row.id} {row.crashes} crashes" for row in finished if row.crashes],
        "more than one attempt": [f"{row.id} {row.attempt}" for row in finished if row.attempt > 1],
        # A job with checkpoints is handed back by a worker that stops, and goes on elsewhere.
        "run twice": [job for job, times in starts.items() if times > 1 + handed_back(lines, job)],
        "step repeated": list(repeated_steps(lines)),
    }


def handed_back(lines: Sequence[Line], job: str) -> int:
    """How often a run of a job with checkpoints ended after a step."""
    return sum(line.job == job and line.what == "loaded" and line.step > 0 for line in lines)
