"""``python -m loadtest.stampede``: very many jobs of one tenant are due at one instant.

Another tenant submits steadily over HTTP, before, during and after. What counts is how long its
jobs wait from their commit to their start, by the rows: the crowd may take as long as it takes,
but must not delay anybody else.
"""

from __future__ import annotations

import argparse
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from math import inf
from typing import Any, Self

from rich.console import Console
from sqlalchemy import Engine

from loadtest.chaos.client import Api
from loadtest.figures import percentile
from loadtest.fleet import GROUP, TENANT, NotReady, admit, rows, running_fairline, tenant_id
from loadtest.report import Bar, Report, Screen, command, table

TIMEOUT_SECONDS = 10.0


class SteadyTenant(threading.Thread):
    """Submits at a steady rate while the ``with`` block lasts."""

    def __init__(
        self, port: int, per_second: float, job: dict[str, Any] | None = None, key: str = ""
    ) -> None:
        """``job`` is what it submits, an echo by default; ``key`` is the tenant's."""
        super().__init__(daemon=True)
        self._port = port
        self._job = job or {"type": "echo", "payload": {}}
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._pause = 1.0 / per_second
        self._stopping = threading.Event()
        #: When each accepted job was to be sent, in seconds since the epoch.
        self.intended_at: dict[str, float] = {}
        #: Submissions that got no 202.
        self.unanswered = 0

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self.join(TIMEOUT_SECONDS)

    def run(self) -> None:
        due = time.time()
        with Api(self._port, TIMEOUT_SECONDS) as api:
            while not self._stopping.wait(max(0.0, due - time.time())):
                answer = api.call("POST", "/jobs", self._job, self._headers)
                if answer.status == 202:
                    self.intended_at[answer.document["id"]] = due
                else:
                    self.unanswered += 1
                due += self._pause


BAR_MS = 500.0
CROWD = "crowd"
#: Between the last insert and the instant.
LEAD_SECONDS = 3.0
#: Inserts per second that this machine must manage before the instant, about.
INSERTS_PER_SECOND = 3_000.0
STALL_SECONDS = 60.0

ENDED = "SELECT coalesce(sum(succeeded), 0) FROM job_counts WHERE tenant_id = :tenant"
DRAINED_AT = "SELECT extract(epoch FROM max(finished_at)) FROM jobs WHERE tenant_id = :tenant"
WAITS = """
    SELECT id::text AS id, extract(epoch FROM created_at)::float8 AS created,
           extract(epoch FROM dispatched_at - created_at)::float8 AS queued,
           extract(epoch FROM started_at)::float8 AS started
    FROM jobs WHERE tenant_id = ANY (CAST(:tenants AS bigint[])) AND started_at IS NOT NULL
"""
UNSTARTED = """
    SELECT count(*) FROM jobs
    WHERE tenant_id = ANY (CAST(:tenants AS bigint[])) AND started_at IS NULL
"""


@dataclass(frozen=True, slots=True)
class Wait:
    created_at: float
    #: From the commit to the dispatch, and to the start.
    queue_seconds: float
    seconds: float
    #: From when it should have been sent to the start.
    intended_seconds: float


def read_waits(
    engine: Engine, tenants: Iterable[int], intended_at: Mapping[str, float]
) -> list[Wait]:
    """The waits of these tenants' jobs that have started."""
    return [
        Wait(
            *(row.created, row.queued, row.started - row.created),
            row.started - intended_at.get(row.id, row.created),
        )
        for row in rows(engine, WAITS, tenants=list(tenants))
    ]


def unstarted(engine: Engine, tenants: Iterable[int]) -> int:
    return int(rows(engine, UNSTARTED, tenants=list(tenants))[0][0])


def column(share: float, name: str = "seconds") -> Callable[[tuple[str, Sequence[Wait]]], str]:
    """A column of a table of waits: a percentile in milliseconds."""
    return lambda row: f"{1000 * percentile((getattr(w, name) for w in row[1]), share):.0f} ms"


@dataclass(frozen=True, slots=True)
class Found:
    due_at: float
    drained_at: float
    #: How late the last of the crowd was inserted; negative if in time.
    late_seconds: float
    waits: list[Wait]
    unanswered: int

    def phase(self, name: str) -> list[Wait]:
        """The waits of jobs that were submitted before, during or after the stampede."""
        since, until = {
            "before": (0.0, self.due_at),
            "during": (self.due_at, self.drained_at),
            "after": (self.drained_at, inf),
        }[name]
        return [wait for wait in self.waits if since <= wait.created_at < until]


def read(engine: Engine, sql: str, tenant: int) -> float:
    return float(rows(engine, sql, tenant=tenant)[0][0] or 0.0)


def schedule_crowd(
    engine: Engine, tenant: int, jobs: int, due: datetime, progress: Callable[[float], None]
) -> None:
    for begin in range(0, jobs, GROUP):
        numbers = range(begin, min(begin + GROUP, jobs))
        admit(engine, tenant, "echo", "short", ({"n": n} for n in numbers), execute_at=due)
        progress(numbers.stop)


def await_crowd(engine: Engine, tenant: int, jobs: int, progress: Callable[[float], None]) -> None:
    ended, moved_at = 0.0, time.monotonic()
    while ended < jobs:
        time.sleep(0.5)
        before, ended = ended, read(engine, ENDED, tenant)
        if ended > before:
            moved_at = time.monotonic()
        elif time.monotonic() - moved_at > STALL_SECONDS:
            raise NotReady(f"{jobs - ended:,.0f} jobs of the crowd have not ended")
        progress(ended)


def run(asked: argparse.Namespace, console: Console) -> Report:
    with (
        running_fairline("stampede", "short", asked.workers) as (fairline, engine),
        Screen(console) as screen,
    ):
        crowd, steady = tenant_id(engine, CROWD), tenant_id(engine, TENANT)
        due_at = time.time() + max(asked.seconds, asked.jobs / INSERTS_PER_SECOND) + LEAD_SECONDS
        with SteadyTenant(fairline.port, asked.per_second) as sender:
            due = datetime.fromtimestamp(due_at, UTC)
            schedule_crowd(engine, crowd, asked.jobs, due, screen.task("scheduled", asked.jobs))
            late = time.time() - due_at
            time.sleep(max(0.0, -late))
            await_crowd(engine, crowd, asked.jobs, screen.task("run", asked.jobs))
            time.sleep(asked.seconds)
        drained_at = read(engine, DRAINED_AT, crowd)
        time.sleep(1.0)
        if never := unstarted(engine, [steady]):
            raise RuntimeError(f"{never} jobs of the steady tenant never started")
        waits = read_waits(engine, [steady], sender.intended_at)
    found = Found(due_at, drained_at, late, waits, sender.unanswered)
    return judge(found, asked.jobs, asked.per_second)


def judge(found: Found, jobs: int, per_second: float) -> Report:
    """The steady tenant's waits, phase by phase."""
    columns: dict[str, Any] = {
        "crowd": "{0[0]}",
        "jobs": lambda row: f"{len(row[1]):,}",
        "p50": column(0.5),
        "p99": column(0.99),
        "worst": column(1.0),
        "p99 in the queue": column(0.99, "queue_seconds"),
        "p99 as intended": column(0.99, "intended_seconds"),
    }
    title = f"Another tenant's jobs, {per_second:g} per second: from submission to start"
    phases = {name: found.phase(name) for name in ("before", "during", "after")}
    during = phases["during"]
    worst = 1000 * percentile((wait.seconds for wait in during), 0.99)
    seconds = found.drained_at - found.due_at
    return Report(
        "stampede",
        f"{jobs:,} jobs due at one instant",
        tables=[table(title, columns, phases.items())],
        bars=[
            Bar("p99 of the other tenant during the stampede", worst, "<=", BAR_MS, " ms"),
            Bar("its jobs during the stampede", len(during), ">=", 1),
            Bar("submissions without a 202", found.unanswered, "<=", 0),
            Bar("the crowd was scheduled in time, late by", found.late_seconds, "<=", 0, " s"),
        ],
        notes=[f"The crowd ran in {seconds:.1f} s: {jobs / max(seconds, 1e-9):,.0f} per second."],
        data={"seconds": seconds, "jobs": jobs},
    )


FLAGS = (
    ("--jobs", 100_000, "due at one instant"),
    ("--per-second", 20.0, "of the other tenant"),
    ("--seconds", 15.0, "before and after, at least"),
    ("--workers", 1, "of the short pool"),
)

if __name__ == "__main__":
    sys.exit(command("python -m loadtest.stampede", __doc__, run, *FLAGS))
