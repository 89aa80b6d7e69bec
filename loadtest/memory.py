"""``python -m loadtest.memory``: what the processes weigh after many jobs.

Applications go through the front door, the line, the broker and a worker that scores them in no
time. Resident memory is read at the start, after a warm-up and at the end: every process must stay
below a limit, and must not have grown since the warm-up.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

import psutil
from rich.console import Console
from sqlalchemy import Engine

from loadtest import closed_loop
from loadtest.closed_loop import Load, applications
from loadtest.fleet import Fairline, Fleet, fleet, rows
from loadtest.report import NO_FAIL, Bar, Report, Table, options

LIMIT_MB = 150.0
GROWTH = 1.10
#: What the warm-up amounts to, in jobs.
WARM_JOBS = 5_000
#: Submissions pause while more than this wait, so that the worker's pace sets the pace.
LONGEST_LINE = 3_000
SLICE_SECONDS = 2.0
CONNECTIONS = 16
STALL_SECONDS = 120.0

COUNTS = """
    SELECT coalesce(sum(scheduled + queued + dispatched + running), 0),
           coalesce(sum(succeeded), 0), coalesce(sum(dead + expired + cancelled), 0)
    FROM job_counts WHERE tenant_id = 0
"""

Weights = dict[str, float]


def weigh(started: Fleet) -> Weights:
    """Resident megabytes of every process of Fairline, by name."""
    weights = {}
    for name, child in started.children.items():
        leader = psutil.Process(child.pid)
        if name == "api":
            for number, worker in enumerate(sorted(leader.children(), key=lambda p: p.pid), 1):
                weights[f"api-{number}"] = worker.memory_info().rss / 1e6
        else:
            weights[name] = leader.memory_info().rss / 1e6
    return weights


def read_counts(engine: Engine) -> tuple[int, int, int]:
    """Jobs on their way, succeeded, and ended otherwise."""
    live, succeeded, failed = rows(engine, COUNTS)[0]
    return int(live), int(succeeded), int(failed)


def process_jobs(fairline: Fairline, engine: Engine, goal: int) -> None:
    """Submit until so many jobs exist in all, and wait until all have ended."""
    changed_at, last = time.monotonic(), -1
    while True:
        live, succeeded, failed = read_counts(engine)
        if failed:
            raise RuntimeError(f"{failed} jobs did not succeed")
        if succeeded != last:
            changed_at, last = time.monotonic(), succeeded
        elif time.monotonic() - changed_at > STALL_SECONDS:
            raise RuntimeError(f"{live} jobs stand still")
        if live + succeeded >= goal:
            if not live:
                return
            time.sleep(0.2)
        elif live > LONGEST_LINE:
            time.sleep(0.2)
        else:
            # The same bodies each time: what is measured is the server, not this list.
            load = Load(fairline.port, CONNECTIONS, 0.0, SLICE_SECONDS, applications(500), 202)
            answered = closed_loop.finish(closed_loop.start(load))
            if answered.unexpected:
                raise RuntimeError(f"unexpected answers: {answered.unexpected}")


def run(jobs: int, console: Console) -> list[tuple[int, Weights]]:
    """Weights after so many jobs."""
    readings = []
    with fleet("memory") as started:
        fairline = Fairline(started, served_pools="medium", score_seconds="0")
        fairline.start("medium")
        readings.append((0, weigh(started)))
        warm = min(WARM_JOBS, jobs // 2)
        steps = (warm, *(warm + (jobs - warm) * part // 4 for part in range(1, 5)))
        with fairline.engine() as engine:
            for goal in steps:
                process_jobs(fairline, engine, goal)
                ended = read_counts(engine)[1]
                readings.append((ended, weigh(started)))
                note = ", ".join(f"{name} {mb:.1f}" for name, mb in readings[-1][1].items())
                console.print(f"after {ended:,} jobs: {note} MB", highlight=False)
    return readings


def judge(readings: Sequence[tuple[int, Weights]]) -> Report:
    """Every process against the limit and against itself."""
    warm, end = readings[1][1], readings[-1][1]
    names = [name for name in end if name in warm]
    return Report(
        "memory",
        f"Memory after {readings[-1][0]:,} jobs",
        tables=[
            Table(
                "Resident memory, MB",
                ("jobs", *names),
                [
                    (f"{jobs:,}", *(f"{weights.get(name, 0.0):.1f}" for name in names))
                    for jobs, weights in readings
                ],
            )
        ],
        bars=[
            bar
            for name in names
            for bar in (
                Bar(f"{name} at the end", end[name], "<=", LIMIT_MB, " MB"),
                Bar(f"{name}, of its weight when warm", end[name] / warm[name], "<=", GROWTH, " x"),
            )
        ]
        + [Bar("processes that were replaced", len(end) - len(names), "<=", 0)],
        data={"readings": [{"jobs": jobs, "mb": weights} for jobs, weights in readings]},
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, write."""
    asked = options(
        *("python -m loadtest.memory", __doc__),
        ("--jobs", 100_000, "in all"),
        NO_FAIL,
        given=arguments,
    )
    console = Console()
    return judge(run(asked.jobs, console)).conclude(console, no_fail=asked.no_fail)


if __name__ == "__main__":
    sys.exit(main())
