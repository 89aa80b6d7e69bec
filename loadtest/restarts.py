"""``python -m loadtest.restarts``: rolling restarts of workers under load.

Two workers of every pool run on private services, green ones and prefork ones, with submissions at
a steady rate. One after the other is stopped with SIGTERM, as a deployment does it, and started
again when it has drained. Nothing may be lost or run twice, no crash counted and no attempt used.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from statistics import fmean

from rich.console import Console

from app.stack.spec import PROJECT_ROOT
from loadtest.fleet import TENANT, database, fleet
from loadtest.report import Report, Screen, Table, at_least, command, fault_bars
from loadtest.upgrade.clients import Clients
from loadtest.upgrade.deployment import DATABASE, Deployment
from loadtest.upgrade.judge import judge
from models.pools import POOLS

#: Load before the first restart and after the last.
STEADY_SECONDS = 5.0


def run(asked: argparse.Namespace, console: Console) -> Report:
    with fleet("restarts") as started, ExitStack() as stack:
        postgres, witness = started.postgres.service, started.home / "witness.jsonl"
        postgres.create_database(DATABASE)
        engine = stack.enter_context(database(postgres.url(DATABASE)))
        deployment = Deployment(started, engine, witness)
        clients = Clients(deployment.balancer, asked.per_second)
        screen = stack.enter_context(Screen(console))
        took = restart(deployment, clients, int(asked.count), screen)
        faults = judge(engine, clients, witness)
    return report(clients, faults, took)


def restart(
    deployment: Deployment, clients: Clients, count: int, screen: Screen
) -> dict[str, list[float]]:
    """So many restarts, one worker after the other; the seconds of each, by pool."""
    deployment.migrate(PROJECT_ROOT, "--tenant", TENANT)
    for number in screen.steps("starting two of every process", len(deployment.names)):
        deployment.replace(deployment.names[number], PROJECT_ROOT)
    took: dict[str, list[float]] = defaultdict(list)
    rounds = len(deployment.workers)
    with clients.running():
        screen.wait("load", STEADY_SECONDS)
        for first in range(0, count, rounds):
            last = min(count, first + rounds)
            for number in screen.steps(f"restarts {first + 1} to {last} of {count}", last - first):
                name = deployment.workers[number]
                began = time.monotonic()
                deployment.replace(name, PROJECT_ROOT)
                took[name.split("-")[1]].append(time.monotonic() - began)
        screen.wait("load", STEADY_SECONDS)
    return took


def report(
    clients: Clients, faults: dict[str, list[str]], took: Mapping[str, Sequence[float]]
) -> Report:
    restarts = sum(map(len, took.values()))
    lines = [
        (
            pool,
            POOLS[pool].concurrency,
            str(len(each)),
            f"{fmean(each):.1f} s",
            f"{max(each):.1f} s",
        )
        for pool, each in took.items()
    ]
    headings = ("pool", "workers", "restarts", "drain and start, mean", "longest")
    accepted = len(clients.accepted)
    return Report(
        name="restarts",
        title=f"{restarts} rolling restarts of workers under load",
        findings=[f"{restarts} restarts while {accepted:,} jobs were accepted and ended."],
        tables=[Table("Restarts", headings, lines)],
        bars=[
            *fault_bars(faults),
            at_least("accepted", accepted, clients.per_second * STEADY_SECONDS),
        ],
        notes=[f"{name}: {'; '.join(found[:3])}" for name, found in faults.items() if found],
        data={"faults": faults, "seconds": dict(took)},
    )


FLAGS = (
    ("--count", 100, "restarts"),
    ("--per-second", 30.0, "submissions"),
)

if __name__ == "__main__":
    sys.exit(command("python -m loadtest.restarts", __doc__, run, *FLAGS))
