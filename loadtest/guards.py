"""``python -m loadtest.guards``: what retry budgets and other guards cost with many tenants.

Eight worker processes read the rules every two seconds and the leader judges; every tenant has had
first runs and retries in each of the last ten minutes. What counts is CPU time of the process and
of its PostgreSQL session, so that a busy machine does not disturb.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from sqlalchemy import Engine

from app.scheduler.protection.circuits import Circuits
from app.scheduler.protection.classifier import CLASSIFY_SECONDS, Classifier
from app.scheduler.protection.restrictions import JUDGE_SECONDS, Quarantine, RetryBudgets
from app.scheduler.role import Role, pause_seconds
from app.scheduler.service import PAUSE_FACTOR
from app.stack.postgres import EmbeddedPostgres
from app.stack.services import running
from loadtest.dispatching import Meter
from loadtest.fleet import database, migrated
from loadtest.report import Bar, Report, Screen, at_most, command, table
from models.leadership import Leader
from models.presence import PRESENCE_SECONDS
from tasks.registry import load_types
from tasks.worker.rules import Rules, read_rules

SCENES = (100, 10_000)
#: Worker processes of the deployment.
WORKERS = 8
REPEATS = 40
#: Part of the tenants that is without budget.
SPENT_PART = 100
MOST_PERCENT = 1.0

#: First runs and retries in every minute; one tenant in a hundred has had far too many.
FILL = """
    INSERT INTO tallies (kind, bucket, name, total, amount)
    SELECT 'retry', date_bin('1 minute', now(), 'epoch') - minute * interval '1 minute',
           tenant::text, 9, CASE WHEN tenant %% %(part)s = 0 THEN 99 ELSE 3 END
    FROM generate_series(1, %(tenants)s) AS tenant, generate_series(0, 9) AS minute
"""
#: A type that many use: what eight workers write of the busiest tenants and of a hundred that fail.
FILL_APART = """
    INSERT INTO tallies (kind, bucket, name, total, amount)
    SELECT part.kind, date_bin(part.seconds * interval '1 s', now(), 'epoch')
               - number * part.seconds * interval '1 s',
           part.name || CASE WHEN part.kind LIKE 'tenant%%' THEN E'\n' || tenant ELSE '' END,
           CASE WHEN part.kind LIKE 'tenant%%' THEN 9 ELSE 9 * %(tenants)s END, 1
    FROM (VALUES ('type', 60, 'echo', 60), ('tenant_type', 300, 'echo', 12),
                 ('dependency', 10, 'claude', 6), ('tenant_dependency', 10, 'claude', 6),
                 ('run', 300, 'short:9:echo', 12), ('tenant_run', 300, 'short:9:echo', 12))
             AS part (kind, seconds, name, buckets),
         generate_series(0, part.buckets - 1) AS number,
         generate_series(1, CASE WHEN part.kind LIKE 'tenant%%' THEN least(132, %(tenants)s)
                                 ELSE 1 END) AS tenant
"""


class Cost(NamedTuple):
    """CPU milliseconds of one reading or judgement with so many tenants."""

    tenants: int
    #: A worker's reading: the verdicts unchanged, and after a change.
    unchanged: float
    changed: float
    #: The leader's turn over budgets, with its pause afterwards in seconds.
    judging: float
    pause: float
    #: Its other guards, a second of them.
    guarding: float

    @property
    def percent(self) -> float:
        """Of a core, all workers and the leader; every judgement changes something."""
        readings = self.unchanged * WORKERS / PRESENCE_SECONDS + self.guarding
        return (readings + (self.judging + self.changed * WORKERS) / self.pause) / 10


@contextmanager
def filled(server: EmbeddedPostgres, tenants: int) -> Iterator[Engine]:
    """A migrated database with the counts of so many tenants."""
    url = migrated(server, f"guards_{tenants}")
    with database(url, 60.0) as engine:
        with engine.connect() as connection:
            connection.exec_driver_sql(FILL, {"tenants": tenants, "part": SPENT_PART})
            connection.exec_driver_sql(FILL_APART, {"tenants": tenants})
            connection.exec_driver_sql("VACUUM ANALYZE")
        yield engine


def milliseconds(engine: Engine, act: Callable[[], object], repeats: int = REPEATS) -> float:
    """CPU time of one call, with that of the database."""
    act()
    meter = Meter(engine)
    before = meter.read()
    for _ in range(repeats):
        act()
    after = meter.read()
    return (sum(after) - sum(before)) / repeats * 1e3


def measure(engine: Engine, tenants: int) -> Cost:
    leader = Leader(engine, "bench")
    leader.run_once(0.0)
    budgets = RetryBudgets(engine, leader)
    guards: tuple[tuple[Role, float], ...] = (
        (Circuits(engine, leader, ["claude"]), 1.0),
        (Quarantine(engine, leader), 10.0),
        (Classifier(engine, leader, load_types()), CLASSIFY_SECONDS),
    )
    judge_once = partial(budgets.run_once, 0.0)
    judge_once()
    known = [Rules()]

    def read_again() -> None:
        known[0] = read_rules(engine, known[0])

    unchanged = milliseconds(engine, read_again)
    changed = milliseconds(engine, lambda: read_rules(engine))
    began = time.monotonic()
    judging = milliseconds(engine, judge_once, repeats=20)
    pause = max(JUDGE_SECONDS, pause_seconds((time.monotonic() - began) / 21, PAUSE_FACTOR))
    guarding = 0.0
    for role, seconds in guards:
        leader.run_once(0.0)
        guarding += milliseconds(engine, partial(role.run_once, 0.0)) / seconds
    leader.resign()
    return Cost(tenants, unchanged, changed, judging, pause, guarding)


def judge(costs: Sequence[Cost]) -> Report:
    columns: dict[str, Any] = {
        "tenants": "{.tenants:,}",
        "unchanged": "{.unchanged:.2f} ms",
        "changed": "{.changed:.2f} ms",
        "judging": "{.judging:.2f} ms",
        "each": "{.pause:.0f} s",
        "other guards": "{.guarding:.2f} ms/s",
        "of a core": "{.percent:.2f} %",
    }
    most = costs[-1]
    bars: list[Bar] = [
        at_most(
            f"guards with {most.tenants:,} tenants", most.percent, MOST_PERCENT, " % of a core"
        ),
    ]
    title = f"What the guards cost: {WORKERS} workers and the leader"
    return Report("guards", title, tables=[table("CPU time", columns, costs)], bars=bars)


def run(chosen: argparse.Namespace, console: Console) -> Report:
    """Each number of tenants with its own database on a private server."""
    costs: list[Cost] = []
    with (
        tempfile.TemporaryDirectory(prefix="fairline-guards-") as home,
        running(EmbeddedPostgres(Path(home)), Path(home) / "logs") as started,
        Screen(console) as screen,
    ):
        for tenants in SCENES:
            progress = screen.task(f"{tenants:,} tenants", 2)
            with filled(started.service, tenants) as engine:
                progress(1)
                costs.append(measure(engine, tenants))
            progress(2)
    return judge(costs)


if __name__ == "__main__":
    sys.exit(command("python -m loadtest.guards", __doc__, run))
