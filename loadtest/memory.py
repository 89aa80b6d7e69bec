"""``python -m loadtest.memory``: resident memory of the processes after many jobs.

Applications go through the API, the queue, the broker and a worker that scores them in no time.
Memory is read at the start, after a warm-up and at the end: every process must stay below a limit,
and must not have grown since the warm-up.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence

import psutil
from rich.console import Console
from sqlalchemy import Engine

from loadtest import closed_loop
from loadtest.closed_loop import Load, applications
from loadtest.fleet import Fairline, Fleet, rows, running_fairline
from loadtest.report import Bar, Report, Table, command

LIMIT_MB = 150.0
GROWTH = 1.10
#: Jobs of the warm-up.
WARM_JOBS = 5_000
#: Submissions pause while more than this wait, so that the worker sets the pace.
MOST_WAITING = 3_000
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
    processes = {name: psutil.Process(child.pid) for name, child in started.children.items()}
    workers = sorted(processes.pop("api").children(), key=lambda process: process.pid)
    processes |= {f"api-{number}": worker for number, worker in enumerate(workers, 1)}
    return {name: process.memory_info().rss / 1e6 for name, process in processes.items()}


def read_counts(engine: Engine) -> tuple[int, int, int]:
    """Jobs that have not ended, succeeded, and ended otherwise."""
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
            raise RuntimeError(f"{live} jobs do not end")
        if not live and succeeded >= goal:
            return
        if live > MOST_WAITING or live + succeeded >= goal:
            time.sleep(0.2)
        else:
            # The same bodies each time: what is measured is the server, not this list.
            load = Load(fairline.port, CONNECTIONS, 0.0, SLICE_SECONDS, applications(500), 202)
            answered = closed_loop.finish(closed_loop.start(load))
            if answered.unexpected:
                raise RuntimeError(f"unexpected answers: {answered.unexpected}")


def run(asked: argparse.Namespace, console: Console) -> Report:
    readings = []
    jobs, warm = asked.jobs, min(WARM_JOBS, asked.jobs // 2)
    steps = (warm, *(warm + (jobs - warm) * part // 4 for part in range(1, 5)))
    with running_fairline("memory", "medium", score_seconds="0") as (fairline, engine):
        readings.append((0, weigh(fairline.fleet)))
        for goal in steps:
            process_jobs(fairline, engine, goal)
            ended = read_counts(engine)[1]
            readings.append((ended, weigh(fairline.fleet)))
            note = ", ".join(f"{name} {mb:.1f}" for name, mb in readings[-1][1].items())
            console.print(f"after {ended:,} jobs: {note} MB", highlight=False)
    return judge(readings)


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
            *(Bar(f"{name} at the end", end[name], "<=", LIMIT_MB, " MB") for name in names),
            *(
                Bar(f"{name}, of its memory when warm", end[name] / warm[name], "<=", GROWTH, " x")
                for name in names
            ),
            Bar("processes that were replaced", len(end) - len(names), "<=", 0),
        ],
        data={"readings": [{"jobs": jobs, "mb": weights} for jobs, weights in readings]},
    )


if __name__ == "__main__":
    jobs = ("--jobs", 100_000, "in all")
    sys.exit(command("python -m loadtest.memory", __doc__, run, jobs))
