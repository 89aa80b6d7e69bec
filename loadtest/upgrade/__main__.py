"""``python -m loadtest.upgrade``: a rolling upgrade from an older commit under load, and back.

Two of every process of the older version run on private services, with submissions at a steady
rate. The database is migrated as far as both versions can work with, every process is replaced,
one after the other, and the rest of the migrations follows; then all of it in reverse. Clients
see no failure but a quick 503, and every job ends once.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from rich.console import Console
from sqlalchemy import Engine

from app.stack.spec import PROJECT_ROOT
from loadtest.chaos.facts import wait_until_settled
from loadtest.chaos.judge import repeated_steps
from loadtest.chaos.witness import Line, read_lines
from loadtest.fleet import TENANT, database, fleet, rows
from loadtest.report import Report, Screen, Table, at_least, at_most, command
from loadtest.upgrade.clients import Clients
from loadtest.upgrade.deployment import DATABASE, Deployment, checkout

#: The previous release: its newest migration, 0004, is the last before those in two steps.
OLDER = "9031447"
LATEST = PROJECT_ROOT
#: The pauses before, between and after the steps.
STEADY_SECONDS = 5.0
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


def run(asked: argparse.Namespace, console: Console) -> Report:
    older = checkout(asked.older, console)
    with fleet("upgrade") as started, ExitStack() as stack:
        postgres, witness = started.postgres.service, started.home / "witness.jsonl"
        postgres.create_database(DATABASE)
        engine = stack.enter_context(database(postgres.url(DATABASE)))
        deployment = Deployment(started, engine, witness)
        clients = Clients(deployment.balancer, asked.per_second)
        upgraded = there_and_back(deployment, clients, older, stack.enter_context(Screen(console)))
        faults = judge(engine, clients, witness)
    return report(asked, clients, faults, upgraded)


def there_and_back(deployment: Deployment, clients: Clients, older: Path, screen: Screen) -> int:
    """The upgrade and the way back under load; how many jobs the first was accepted with."""

    def replace_all(root: Path, what: str) -> None:
        for number in screen.steps(what, len(deployment.names)):
            deployment.replace(deployment.names[number], root)

    deployment.migrate(older, "--tenant", TENANT)
    replace_all(older, "starting the older version")
    with clients.running():
        screen.wait("load on the older version", STEADY_SECONDS)
        before = deployment.revision()
        deployment.migrate(LATEST, "--expand")
        replace_all(LATEST, "replacing it by this one")
        deployment.migrate(LATEST)
        screen.wait("load on this version", STEADY_SECONDS)
        upgraded = len(clients.accepted)
        deployment.migrate(LATEST, "--back", "expand")
        replace_all(older, "replacing it by the older one")
        deployment.migrate(LATEST, "--back", before)
        screen.wait("load on the older version", STEADY_SECONDS)
    return upgraded


def report(
    asked: argparse.Namespace, clients: Clients, faults: dict[str, list[str]], upgraded: int
) -> Report:
    accepted, slowest = len(clients.accepted), max(clients.answered)
    figures = [
        ("accepted until the upgrade was over", str(upgraded)),
        ("accepted on the way back", str(accepted - upgraded)),
        ("503, repeated", str(clients.refused)),
        ("slowest answer", f"{slowest:,.0f} ms"),
    ]
    return Report(
        name="upgrade",
        title=f"A rolling upgrade from {asked.older} and back under load",
        tables=[Table("Submissions", ("", "count"), figures)],
        bars=[
            *(at_most(name, len(found)) for name, found in faults.items()),
            at_least("accepted", accepted, asked.per_second * STEADY_SECONDS * 3),
        ],
        notes=[f"{name}: {'; '.join(found[:3])}" for name, found in faults.items() if found],
        data={"faults": faults, "figures": dict(figures)},
    )


FLAGS = (
    ("--older", OLDER, "the commit to begin with"),
    ("--per-second", 50.0, "submissions"),
)

if __name__ == "__main__":
    sys.exit(command("python -m loadtest.upgrade", __doc__, run, *FLAGS))
