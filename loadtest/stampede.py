"""``python -m loadtest.stampede``: very many jobs of one tenant fall due at one instant.

Another tenant submits steadily through the front door, before, during and after. What counts
is how long its jobs wait from their commit to their start, by the rows: the crowd may take
as long as it takes, but nobody else may notice it.
"""

from __future__ import annotations

import argparse
import http.client
import json
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from math import inf
from typing import Any, Self

from rich.console import Console
from sqlalchemy import Engine

from loadtest.figures import percentile, percentiles
from loadtest.fleet import GROUP, TENANT, Fairline, admit, fleet, rows, tenant_id, until
from loadtest.report import NO_FAIL, Bar, Report, Screen, Table, options
from models.jobs.ids import new_id
from models.jobs.submission import Submission

TIMEOUT_SECONDS = 10.0


class SteadyTenant:
    """Sends while the ``with`` block lasts."""

    def __init__(
        self, port: int, per_second: float, job: dict[str, Any] | None = None, key: str = ""
    ) -> None:
        """``job`` is what it submits, an echo unless told otherwise; ``key`` is the tenant's."""
        self._port = port
        self._job = job or {"type": "echo", "payload": {}}
        self._headers = {"Content-Type": "application/json"}
        if key:
            self._headers["Authorization"] = f"Bearer {key}"
        self._pause = 1.0 / per_second
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="steady", daemon=True)
        #: When each accepted job was to be sent, in seconds since the epoch.
        self.intended_at: dict[str, float] = {}
        #: Submissions that got no 202.
        self.unanswered = 0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(TIMEOUT_SECONDS)

    def _run(self) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=TIMEOUT_SECONDS)
        due = time.time()
        while not self._stop.wait(max(0.0, due - time.time())):
            try:
                job_id = self._submit(connection)
            except (OSError, http.client.HTTPException):
                connection.close()  # opened again by the next request
                job_id = None
            if job_id is None:
                self.unanswered += 1
            else:
                self.intended_at[job_id] = due
            due += self._pause
        connection.close()

    def _submit(self, connection: http.client.HTTPConnection) -> str | None:
        connection.request("POST", "/jobs", json.dumps(self._job), self._headers)
        response = connection.getresponse()
        answer = response.read()
        if response.status != 202:
            return None
        with suppress(ValueError, KeyError):
            return str(json.loads(answer)["id"])
        return None


BAR_MS = 500.0
CROWD = "crowd"
#: Between the last insert and the instant.
LEAD_SECONDS = 3.0
#: Inserts a second that this machine must manage before the instant, about.
INSERTS_PER_SECOND = 3_000.0
STALL_SECONDS = 60.0

ENDED = "SELECT coalesce(sum(succeeded), 0) FROM job_counts WHERE tenant_id = :tenant"
DRAINED_AT = "SELECT extract(epoch FROM max(finished_at)) FROM jobs WHERE tenant_id = :tenant"
WAITS = """
    SELECT id::text, extract(epoch FROM created_at)::float8,
           extract(epoch FROM dispatched_at - created_at)::float8,
           extract(epoch FROM started_at)::float8
    FROM jobs WHERE tenant_id = :tenant
"""


@dataclass(frozen=True, slots=True)
class Wait:
    """One job of the steady tenant."""

    created_at: float
    #: From the commit to the broker, and to the start.
    line_seconds: float
    seconds: float
    #: From when it should have been sent to the start.
    intended_seconds: float


@dataclass(frozen=True, slots=True)
class Found:
    """What a run saw."""

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
    """One number of a tenant."""
    return float(rows(engine, sql, tenant=tenant)[0][0] or 0.0)


def schedule_crowd(
    engine: Engine, tenant: int, jobs: int, due: datetime, tell: Callable[[float], None]
) -> None:
    """Insert the crowd, all due at one instant."""
    for begin in range(0, jobs, GROUP):
        end = min(begin + GROUP, jobs)
        admit(
            engine,
            (
                Submission(new_id(), tenant, "echo", "short", f'{{"n":{number}}}', execute_at=due)
                for number in range(begin, end)
            ),
        )
        tell(end)


def await_crowd(engine: Engine, tenant: int, jobs: int, tell: Callable[[float], None]) -> None:
    """Wait until all of the crowd has been run."""
    ended = -1
    while ended < jobs:
        last = ended
        what = f"{jobs - ended} jobs of the crowd that stand still"
        until(lambda last=last: read(engine, ENDED, tenant) != last, STALL_SECONDS, what, 0.5)
        tell(ended := int(read(engine, ENDED, tenant)))


def run(asked: argparse.Namespace, console: Console) -> Found:
    """Everything, on services of its own."""
    with fleet("stampede") as started, Screen(console) as screen:
        fairline = Fairline(started, served_pools="short")
        fairline.start("short", asked.workers)
        with fairline.engine() as engine:
            crowd, steady = tenant_id(engine, CROWD), tenant_id(engine, TENANT)
            due_at = time.time() + max(asked.seconds, asked.jobs / INSERTS_PER_SECOND)
            due_at += LEAD_SECONDS
            with SteadyTenant(fairline.port, asked.per_second) as sender:
                due = datetime.fromtimestamp(due_at, UTC)
                tell = screen.task("scheduled", asked.jobs)
                schedule_crowd(engine, crowd, asked.jobs, due, tell)
                late = time.time() - due_at
                time.sleep(max(0.0, -late))
                await_crowd(engine, crowd, asked.jobs, screen.task("run", asked.jobs))
                time.sleep(asked.seconds)
            drained_at = read(engine, DRAINED_AT, crowd)
            time.sleep(1.0)
            waits = read_waits(engine, steady, sender)
    return Found(due_at, drained_at, late, waits, sender.unanswered)


def read_waits(engine: Engine, tenant: int, sender: SteadyTenant) -> list[Wait]:
    """How long each answered submission waited, by its row."""
    found = rows(engine, WAITS, tenant=tenant)
    never = [row for row in found if row[3] is None]
    if never:
        raise RuntimeError(f"{len(never)} jobs of the steady tenant never started")
    return [
        Wait(row[1], row[2], row[3] - row[1], row[3] - sender.intended_at.get(row[0], row[1]))
        for row in found
    ]


def judge(found: Found, jobs: int, per_second: float) -> Report:
    """The steady tenant's waits, phase by phase."""
    lines = []
    for name in ("before", "during", "after"):
        waits = [
            (1000 * w.seconds, 1000 * w.line_seconds, 1000 * w.intended_seconds)
            for w in found.phase(name)
        ]
        whole, in_line, intended = zip(*waits, strict=True) if waits else ((), (), ())
        figures = [
            *percentiles(whole, 0.5, 0.99, 1.0),
            percentile(in_line, 0.99),
            percentile(intended, 0.99),
        ]
        lines.append((name, f"{len(whole):,}", *(f"{each:.0f} ms" for each in figures)))
    during = percentile((1000 * wait.seconds for wait in found.phase("during")), 0.99)
    seconds = found.drained_at - found.due_at
    return Report(
        "stampede",
        f"{jobs:,} jobs due at one instant",
        tables=[
            Table(
                f"Another tenant's jobs, {per_second:g} a second: from submission to start",
                ("crowd", "jobs", "p50", "p99", "worst", "p99 in the line", "p99 as intended"),
                lines,
            )
        ],
        bars=[
            Bar("p99 of the other tenant during the stampede", during, "<=", BAR_MS, " ms"),
            Bar("its jobs during the stampede", len(found.phase("during")), ">=", 1),
            Bar("submissions without a 202", found.unanswered, "<=", 0),
            Bar("the crowd was scheduled in time, late by", found.late_seconds, "<=", 0, " s"),
        ],
        notes=[f"The crowd was run in {seconds:.1f} s: {jobs / max(seconds, 1e-9):,.0f} a second."],
        data={"seconds": seconds, "jobs": jobs},
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, write."""
    asked = options(
        *("python -m loadtest.stampede", __doc__),
        ("--jobs", 100_000, "due at one instant"),
        ("--per-second", 20.0, "of the other tenant"),
        ("--seconds", 15.0, "before and after, at least"),
        ("--workers", 1, "of the short pool"),
        NO_FAIL,
        given=arguments,
    )
    console = Console()
    report = judge(run(asked, console), asked.jobs, asked.per_second)
    return report.conclude(console, no_fail=asked.no_fail)


if __name__ == "__main__":
    sys.exit(main())
