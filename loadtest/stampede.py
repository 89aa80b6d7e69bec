"""``python -m loadtest.stampede``: very many jobs of one tenant fall due at one instant.

Another tenant submits steadily through the front door, before, during and after. What counts
is how long its jobs wait from their commit to their start, by the rows: the crowd may take
as long as it takes, but nobody else may notice it.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from sqlalchemy import Engine, text

from app.admission.admit import admit_group
from app.admission.submission import Entry, Submission
from loadtest.bars import Bar
from loadtest.fairline import TENANT, Fairline
from loadtest.fleet import fleet
from loadtest.percentiles import percentile
from loadtest.report import Report, Table
from loadtest.steady_tenant import SteadyTenant
from models.ids import new_id

BAR_MS = 500.0
CROWD = "crowd"
GROUP = 500
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
        return [
            wait
            for wait in self.waits
            if name
            == (
                "before"
                if wait.created_at < self.due_at
                else "during"
                if wait.created_at < self.drained_at
                else "after"
            )
        ]


def tenant_id(engine: Engine, name: str) -> int:
    """The tenant, now or already."""
    with engine.connect() as connection:
        connection.execute(
            text("INSERT INTO tenants (name) VALUES (:name) ON CONFLICT DO NOTHING"), {"name": name}
        )
        found = text("SELECT id FROM tenants WHERE name = :name")
        return int(connection.execute(found, {"name": name}).scalar_one())


def schedule_crowd(
    engine: Engine, tenant: int, jobs: int, due: datetime, told: Callable[[int], None]
) -> None:
    """Insert the crowd with the front door's own statement, all due at one instant."""
    for begin in range(0, jobs, GROUP):
        group = tuple(
            Submission(new_id(), tenant, "echo", "short", f'{{"n":{number}}}', execute_at=due)
            for number in range(begin, min(begin + GROUP, jobs))
        )
        admit_group(engine, [Entry(group)], express=False)
        told(begin + len(group))


def read(engine: Engine, sql: str, tenant: int) -> float:
    """One number of a tenant."""
    with engine.connect() as connection:
        return float(connection.execute(text(sql), {"tenant": tenant}).scalar_one() or 0.0)


def await_crowd(engine: Engine, tenant: int, jobs: int, told: Callable[[int], None]) -> None:
    """Wait until all of the crowd has been run."""
    changed_at, last = time.monotonic(), -1
    while last < jobs:
        ended = int(read(engine, ENDED, tenant))
        if ended != last:
            changed_at, last = time.monotonic(), ended
        elif time.monotonic() - changed_at > STALL_SECONDS:
            raise RuntimeError(f"{jobs - ended} jobs of the crowd stand still")
        told(ended)
        time.sleep(0.5)


def run(asked: argparse.Namespace, console: Console) -> Found:
    """Everything, on services of its own."""
    with fleet("stampede") as started:
        fairline = Fairline(started, served_pools="short")
        fairline.start_api()
        fairline.start_scheduler()
        for number in range(1, asked.workers + 1):
            fairline.start_worker("short", number)
        fairline.await_ready()
        with fairline.engine() as engine, bars(console) as progress:
            crowd, steady = tenant_id(engine, CROWD), tenant_id(engine, TENANT)
            due_at = time.time() + max(asked.seconds, asked.jobs / INSERTS_PER_SECOND)
            due_at += LEAD_SECONDS
            sender = SteadyTenant(fairline.port, asked.per_second)
            with sender:
                scheduled = progress.add_task("scheduled", total=asked.jobs)
                schedule_crowd(
                    engine,
                    crowd,
                    asked.jobs,
                    datetime.fromtimestamp(due_at, UTC),
                    lambda done: progress.update(scheduled, completed=done),
                )
                late = time.time() - due_at
                time.sleep(max(0.0, -late))
                drained = progress.add_task("run", total=asked.jobs)
                await_crowd(
                    engine, crowd, asked.jobs, lambda done: progress.update(drained, completed=done)
                )
                time.sleep(asked.seconds)
            drained_at = read(engine, DRAINED_AT, crowd)
            time.sleep(1.0)
            waits = read_waits(engine, steady, sender)
    return Found(due_at, drained_at, late, waits, sender.unanswered)


def read_waits(engine: Engine, tenant: int, sender: SteadyTenant) -> list[Wait]:
    """How long each answered submission waited, by its row."""
    with engine.connect() as connection:
        rows = connection.execute(text(WAITS), {"tenant": tenant}).all()
    never = [row for row in rows if row[3] is None]
    if never:
        raise RuntimeError(f"{len(never)} jobs of the steady tenant never started")
    return [
        Wait(row[1], row[2], row[3] - row[1], row[3] - sender.intended_at.get(row[0], row[1]))
        for row in rows
    ]


def bars(console: Console) -> Progress:
    """How far the crowd is."""
    return Progress(
        TextColumn("{task.description:<10}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
    )


def judge(found: Found, jobs: int, per_second: float) -> Report:
    """The steady tenant's waits, phase by phase."""
    rows, during = [], 0.0
    for name in ("before", "during", "after"):
        waits = found.phase(name)
        ordered = sorted(1000 * wait.seconds for wait in waits)
        in_line = sorted(1000 * wait.line_seconds for wait in waits)
        intended = sorted(1000 * wait.intended_seconds for wait in waits)
        rows.append(
            (
                name,
                f"{len(ordered):,}",
                *(f"{percentile(ordered, share):.0f} ms" for share in (0.5, 0.99, 1.0)),
                f"{percentile(in_line, 0.99):.0f} ms",
                f"{percentile(intended, 0.99):.0f} ms",
            )
        )
        if name == "during":
            during = percentile(ordered, 0.99)
    seconds = found.drained_at - found.due_at
    return Report(
        "stampede",
        f"{jobs:,} jobs due at one instant",
        tables=[
            Table(
                f"Another tenant's jobs, {per_second:g} a second: from submission to start",
                ("crowd", "jobs", "p50", "p99", "worst", "p99 in the line", "p99 as intended"),
                rows,
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
    parser = argparse.ArgumentParser(prog="python -m loadtest.stampede", description=__doc__)
    add = parser.add_argument
    add("--jobs", type=int, default=100_000, help="due at one instant (100000)")
    add("--per-second", type=float, default=20.0, help="of the other tenant (20)")
    add("--seconds", type=float, default=15.0, help="before and after, at least (15)")
    add("--workers", type=int, default=1, help="of the short pool (1)")
    add("--no-fail", action="store_true", help="exit 0 even if a bar is missed")
    asked = parser.parse_args(arguments)
    console = Console()
    report = judge(run(asked, console), asked.jobs, asked.per_second)
    report.show(console)
    console.print(f"written to {report.write()}")
    return 0 if report.passed or asked.no_fail else 1


if __name__ == "__main__":
    sys.exit(main())
