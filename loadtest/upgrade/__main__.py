"""``python -m loadtest.upgrade``: a rolling upgrade from an older commit under load, and back.

Two of every process of the older version run on private services, with submissions at a steady
rate. The database is migrated as far as both versions can work with, every process is replaced,
one after the other, and the rest of the migrations follows; then all of it in reverse. Clients
see no failure but a quick 503, and every job ends once.
"""

from __future__ import annotations

import argparse
import sys
from contextlib import ExitStack
from pathlib import Path

from rich.console import Console

from app.stack.spec import PROJECT_ROOT
from loadtest.fleet import TENANT, database, fleet
from loadtest.report import Report, Screen, Table, at_least, command, fault_bars
from loadtest.upgrade.clients import Clients
from loadtest.upgrade.deployment import DATABASE, Deployment, checkout
from loadtest.upgrade.judge import judge

#: The previous release: its newest migration, 0004, is the last before those in two steps.
OLDER = "9031447"
LATEST = PROJECT_ROOT
#: The pauses before, between and after the steps.
STEADY_SECONDS = 5.0


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
            *fault_bars(faults),
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
