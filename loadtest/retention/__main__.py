"""``make retention``: twenty million finished jobs on disk, and how they are best retired.

Starts a PostgreSQL of its own and measures, first on empty tables and then on full ones, what a job
costs from its admission to its end, what pages of the console and polls cost, and what it takes to
retire the oldest jobs under load: by the product's batches of deletes, and by dropping partitions
of the same tables divided by time. One layout is on disk at a time; the data is deleted at the end.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from rich.console import Console

from app.stack.postgres import EmbeddedPostgres
from app.stack.services import Running, running
from loadtest.fleet import database, migrated
from loadtest.report import Report, Screen, command
from loadtest.retention.flow import STATEMENT_SECONDS, loaded, take_turns
from loadtest.retention.judge import Empty, Full, judge
from loadtest.retention.layout import DAYS, Layout, divide, spans
from loadtest.retention.reads import measure_reads
from loadtest.retention.retire import DELETES, DROPS, REPLACES, retire
from loadtest.retention.rows import FILLING, VACUUM, check_space, fill, prepare, run
from loadtest.retention.tables import count_jobs, read_tables

JOBS = 20_000_000
#: The youngest generated job is this old: its end is in the past.
YOUNGEST = timedelta(minutes=1)
#: A migrated database that the others are copies of.
TEMPLATE = "retention_migrated"
PLAIN = Layout("one table")
#: Of partitions that are tried on empty tables only, for what their number costs. As many as of
#: three days in a month are needed for a week of jobs and a partition per day.
OTHER_DAYS = (7, 3)


@dataclass(frozen=True, slots=True)
class Size:
    """How much is measured."""

    jobs: int
    tenants: int = 1_000
    #: Of load, in each stretch.
    seconds: float = 30.0
    per_second: float = 250.0
    #: Of every read.
    calls: int = 10


QUICK = Size(500_000, seconds=8.0, calls=5)


@contextmanager
def server(home: Path, filling: bool = False) -> Iterator[Running[EmbeddedPostgres]]:
    """The server of the run, with the product's settings or with those for filling."""
    service = EmbeddedPostgres(home, FILLING if filling else None)
    # It may have to recover what was not written at its last stop.
    with running(service, home / "logs", seconds=300.0) as started:
        yield started


def divided(days: int) -> Layout:
    return Layout(f"a partition per {'day' if days == 1 else f'{days} days'}", days)


def layouts(chosen: str, days: int) -> list[Layout]:
    return {"plain": [PLAIN], "partitioned": [divided(days)]}.get(chosen, [PLAIN, divided(days)])


def with_others(chosen: Sequence[Layout]) -> list[Layout]:
    """With those of other numbers of partitions, if there are any: fewer partitions first."""
    more = [divided(days) for days in OTHER_DAYS] if any(each.days for each in chosen) else []
    return sorted({*chosen, *more}, key=lambda each: -each.days or -DAYS)


def create(
    service: EmbeddedPostgres, layout: Layout, until: datetime, tenants: int, *, beside: bool = True
) -> str:
    """A database of this layout without a job; its URL. ``beside``: it stays without."""
    name = layout.database + "_empty" * beside
    service.drop_database(name)
    service.create_database(name, template=TEMPLATE)
    url = service.url(name)
    with database(url, STATEMENT_SECONDS) as engine:
        if layout.days:
            divide(engine, spans(until, layout.days))
        prepare(engine, tenants)
    return url


def measure_empty(
    started: Running[EmbeddedPostgres], every: Sequence[Layout], until: datetime, size: Size
) -> list[Empty]:
    """Costs on tables with no jobs but those of the measurement, of all layouts in turn."""
    pids = [child.pid for child in started.children]
    urls = [create(started.service, layout, until, size.tenants) for layout in every]
    with ExitStack() as stack:
        loads = [stack.enter_context(loaded(url, pids, size.per_second)) for url in urls]
        flows = take_turns(loads, size.seconds)
    found = []
    for layout, url, flow in zip(every, urls, flows, strict=True):
        with database(url, STATEMENT_SECONDS) as engine:
            run(engine, VACUUM)
            tables, jobs = read_tables(engine), count_jobs(engine, until, until + timedelta(1))
        found.append(Empty(layout, flow, measure_reads(url, size.calls), tables, jobs))
    return found


def measure_full(
    started: Running[EmbeddedPostgres],
    layout: Layout,
    until: datetime,
    size: Size,
    span_days: int,
    screen: Screen,
) -> Full:
    """Costs on full tables, in turn with those of empty ones, and of retiring the oldest jobs."""
    url = started.service.url(layout.database)
    with database(url, STATEMENT_SECONDS) as engine:
        tables = read_tables(engine)
    done = screen.task(f"{layout.name}: measuring", 5)
    pids = [child.pid for child in started.children]
    oldest, second, *_ = spans(until, span_days)
    empty = [PLAIN, layout] if layout.days else [PLAIN]
    others = [create(started.service, each, until, size.tenants) for each in empty]
    with loaded(url, pids, size.per_second) as load:
        with ExitStack() as stack:
            loads = [stack.enter_context(loaded(one, pids, size.per_second)) for one in others]
            flow, *beside = take_turns([load, *loads], size.seconds)
        done(1)
        reads = measure_reads(url, size.calls)
        done(2)
        first = DROPS if layout.days else DELETES
        retired = [retire(load, url, flow, oldest, until, first)]
        done(3)
        if layout.days:
            retired.append(retire(load, url, flow, second, until, REPLACES))
        done(4)
        after = load.run(size.seconds)
        done(5)
    return Full(layout, flow, reads, tables, retired, after, dict(zip(empty, beside, strict=True)))


def measure(home: Path, chosen: Sequence[Layout], size: Size, keep: bool, screen: Screen) -> Report:
    """Everything, on a server below ``home``."""
    until = (datetime.now(UTC) - YOUNGEST).replace(microsecond=0)
    check_space(home, size.jobs)
    with server(home) as started:
        migrated(started.service, TEMPLATE)
        screen.task("empty tables", 1)
        empty = measure_empty(started, with_others(chosen), until, size)
    span_days = max([1, *(each.days for each in chosen)])
    full = []
    for layout in chosen:
        began = time.monotonic()
        with server(home, filling=True) as started:
            url = create(started.service, layout, until, size.tenants, beside=False)
            with database(url, STATEMENT_SECONDS) as engine:
                fill(engine, size.jobs, size.tenants, until, screen)
        os.sync()
        took = time.monotonic() - began
        with server(home) as started:
            found = measure_full(started, layout, until, size, span_days, screen)
            full.append(replace(found, fill_seconds=took))
            if not keep or layout is not chosen[-1]:
                started.service.drop_database(layout.database)
    return judge(empty, full, size.jobs)


def run_chosen(asked: argparse.Namespace, console: Console) -> Report:
    # As an end of the command, so that what is on disk is deleted.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    size = replace(QUICK, jobs=min(asked.jobs, QUICK.jobs)) if asked.quick else Size(asked.jobs)
    if not 1 <= asked.days <= DAYS // 2:
        raise SystemExit(f"--days must be between 1 and {DAYS // 2}")
    chosen = layouts(asked.layout or "both", asked.days)
    with Screen(console) as screen:
        if asked.keep:
            home = Path(asked.keep)
            home.mkdir(parents=True, exist_ok=True)
            return measure(home, chosen, size, True, screen)
        with tempfile.TemporaryDirectory(prefix="fairline-retention-") as folder:
            return measure(Path(folder), chosen, size, False, screen)


FLAGS = (
    ("--jobs", JOBS, "finished jobs on disk; 20 million need 46 GB"),
    ("--layout", ("plain", "partitioned", "both"), "one table, partitions by time, or both (both)"),
    ("--days", 1, "days of a partition"),
    ("--quick", False, "500,000 jobs at most, and shorter measurements, for a first look"),
    ("--keep", "", "a folder for the data of the last layout, which is not deleted then"),
)

if __name__ == "__main__":
    sys.exit(command("python -m loadtest.retention", __doc__, run_chosen, *FLAGS))
