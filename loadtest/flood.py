"""``python -m loadtest.flood``: a tenant limited to 100 submissions per second sends thousands.

Two API processes and a scheduler. The tenant submits as fast as it is answered; an empty Flask
route takes turns with it on the same machine. Admissions are counted by the answers, and the work
of PostgreSQL by its own statistics, against those of an idle stack.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median

from rich.console import Console
from sqlalchemy import Engine

from app.tenants.changes import create_tenant, issue_key
from app.tenants.terms import Change
from loadtest import closed_loop
from loadtest.bench import BAR_CONNECTIONS
from loadtest.closed_loop import Answered, Load, Request, applications
from loadtest.figures import CoreMeter, Sample
from loadtest.fleet import Fairline, Fleet, fleet, rows
from loadtest.plain import PlainCelery
from loadtest.report import Bar, Report, Table, command

WARM_SECONDS = 2.0
#: PostgreSQL's processes report their statistics at most once a second.
REPORTED_SECONDS = 1.5

READ_WORK = """
    SELECT xact_commit, tup_inserted + tup_updated + tup_deleted FROM pg_stat_database
    WHERE datname = current_database()
"""


@dataclass(frozen=True, slots=True)
class Work:
    """What PostgreSQL does per second."""

    commits: float
    writes: float


@dataclass(frozen=True, slots=True)
class Flood:
    refused: Answered
    admitted_per_second: float
    #: During the turn, its start and its end included.
    work: Work
    #: Cores that other processes used.
    strangers: float


def read_work(engine: Engine) -> tuple[float, ...]:
    """Commits and rows written so far, and the time."""
    return (*rows(engine, READ_WORK)[0], time.monotonic())


def work_since(engine: Engine, before: tuple[float, ...]) -> Work:
    time.sleep(REPORTED_SECONDS)
    pairs = zip(read_work(engine), before, strict=True)
    commits, writes, seconds = (now - then for now, then in pairs)
    return Work(commits / seconds, writes / seconds)


def flood(started: Fleet, engine: Engine, load: Load) -> Flood:
    """Drive the load; what was refused, what was admitted, and what that cost."""
    before = read_work(engine)
    generator = closed_loop.start(load)
    cores = CoreMeter({**started.pids(), "generator": [generator.pid]})
    answered = closed_loop.finish(generator)
    used = Sample("flood", answered.rate, cores=cores.read())
    unexpected = dict(answered.unexpected)
    admitted = unexpected.pop("202", 0) / load.seconds
    if unexpected:
        raise RuntimeError(f"unexpected answers: {unexpected}")
    return Flood(answered, admitted, work_since(engine, before), used.strangers)


def judge(
    asked: argparse.Namespace, quiet: Work, floods: Sequence[Flood], empty: Sequence[Answered]
) -> Report:
    """Medians of all rounds, and whether they are good enough."""
    admitted = median(one.admitted_per_second for one in floods)
    refused = median(one.refused.rate for one in floods)
    ceiling = median(one.rate for one in empty)
    commits = median(one.work.commits for one in floods)
    writes = median(one.work.writes for one in floods)
    per_request = median(
        (one.work.commits - quiet.commits) / (one.refused.rate + one.admitted_per_second)
        for one in floods
    )
    cells = (
        ("limit", f"{asked.per_second:,g}/s"),
        ("admitted", f"{admitted:,.1f}/s"),
        ("refused", f"{refused:,.0f}/s"),
        ("refused, p99", f"{median(one.refused.p99_ms for one in floods):,.1f} ms"),
        ("empty Flask route", f"{ceiling:,.0f}/s"),
        ("commits, idle", f"{quiet.commits:,.1f}/s"),
        ("commits, flood", f"{commits:,.1f}/s"),
        ("rows written, idle", f"{quiet.writes:,.1f}/s"),
        ("rows written, flood", f"{writes:,.1f}/s"),
        ("cores of other processes, most", f"{max(one.strangers for one in floods):.2f}"),
    )
    return Report(
        name="flood",
        title="A flood at a limit",
        tables=[Table(f"One tenant, {asked.connections} connections", ("", "median"), cells)],
        bars=[
            Bar("admitted, of the limit", admitted / asked.per_second, ">=", 0.9),
            Bar("admitted, of the limit", admitted / asked.per_second, "<=", 1.1),
            Bar("refused, of the empty route", refused / ceiling, ">=", 0.7),
            Bar("commits per request, beyond the idle ones", per_request, "<=", 0.1),
        ],
        data={
            "quiet": [quiet.commits, quiet.writes],
            "admitted": [one.admitted_per_second for one in floods],
            "refused": [one.refused.rate for one in floods],
            "empty": [one.rate for one in empty],
            "work": [[one.work.commits, one.work.writes] for one in floods],
        },
    )


def run(asked: argparse.Namespace, console: Console) -> Report:
    """The tenant and the empty route in turns, on private services."""
    floods: list[Flood] = []
    empty: list[Answered] = []
    with fleet("flood") as started:
        plain = PlainCelery(started)
        fairline = Fairline(started, served_pools="medium")
        with fairline.engine() as engine:
            create_tenant(
                engine,
                "flood",
                Change({"tier_limits": False, "submit_per_second": asked.per_second}),
            )
            headers = {"Authorization": f"Bearer {issue_key(engine, 'flood').key}"}
            bodies = [replace(one, headers=headers) for one in applications(200)]
            plain.start_web()
            fairline.start_api()
            fairline.start_scheduler()
            time.sleep(2.0)
            before = read_work(engine)
            time.sleep(asked.seconds)
            quiet = work_since(engine, before)
            shape = (asked.connections, WARM_SECONDS)
            load = Load(fairline.port, *shape, asked.seconds, bodies, 429)
            ceiling = Load(plain.port, *shape, asked.seconds / 2, [Request("GET", "/empty")], 200)
            for number in range(asked.rounds):
                floods.append(flood(started, engine, load))
                with started.frozen("scheduler"):
                    empty.append(closed_loop.finish(closed_loop.start(ceiling)))
                console.print(
                    f"round {number + 1}: {floods[-1].admitted_per_second:,.1f} admitted,"
                    f" {floods[-1].refused.rate:,.0f} refused,"
                    f" {empty[-1].rate:,.0f} of the empty route, per second",
                    highlight=False,
                )
    return judge(asked, quiet, floods, empty)


FLAGS = (
    ("--rounds", 3, "turns of each"),
    ("--seconds", 8.0, "of a flood"),
    ("--per-second", 100.0, "the limit"),
    ("--connections", BAR_CONNECTIONS, "of the tenant"),
)

if __name__ == "__main__":
    sys.exit(command("python -m loadtest.flood", __doc__, run, *FLAGS))
