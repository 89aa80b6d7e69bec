"""What a job writes: bytes and flushes of the WAL, and bytes that stay on disk.

``python -m loadtest.job_io``. Jobs that do nothing are submitted one after the other, and by 64
connections at once, and run by one worker; PostgreSQL's own counters are read before the first and
after the last has ended. Counts, not times: other work on the machine changes little.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import asdict, dataclass

from rich.console import Console
from sqlalchemy import Engine

from loadtest import closed_loop
from loadtest.closed_loop import Load, Request
from loadtest.fleet import Fairline, rows, running_fairline, until
from loadtest.report import Report, command, table

POOL = "short"
CONNECTIONS = (1, 64)
#: Backends report what they did about once a second.
REPORT_SECONDS = 2.0
COUNTERS = """
    SELECT (SELECT pg_current_wal_lsn() - '0/0'::pg_lsn)::bigint AS wal,
           (SELECT sum(fsyncs) FROM pg_stat_io WHERE object = 'wal')::bigint AS flushes,
           (SELECT count(*) FROM jobs WHERE status = 'succeeded') AS ended
"""
UNFINISHED = "SELECT NOT EXISTS (SELECT FROM jobs WHERE finished_at IS NULL) AS none"
SIZE = "SELECT pg_total_relation_size('jobs')::bigint AS bytes"


@dataclass(frozen=True, slots=True)
class Written:
    """What jobs wrote, each."""

    connections: int
    jobs: int
    wal_bytes: float
    flushes: float
    #: Of the table of jobs with its indexes, per job that is in it.
    stored_bytes: float


def read(engine: Engine) -> tuple[int, int, int]:
    time.sleep(REPORT_SECONDS)
    row = rows(engine, COUNTERS)[0]
    return int(row.wal), int(row.flushes), int(row.ended)


def measure(fairline: Fairline, engine: Engine, connections: int, seconds: float) -> Written:
    bodies = [json.dumps({"type": "echo", "payload": {"n": number}}) for number in range(500)]
    requests = [Request("POST", "/jobs", body=body) for body in bodies]
    wal, flushes, ended = read(engine)
    closed_loop.finish(
        closed_loop.start(Load(fairline.port, connections, 0.5, seconds, requests, 202))
    )
    until(lambda: rows(engine, UNFINISHED)[0].none, 120.0, "all jobs to end")
    wal_after, flushes_after, ended_after = read(engine)
    jobs = ended_after - ended
    return Written(
        connections,
        jobs,
        (wal_after - wal) / jobs,
        (flushes_after - flushes) / jobs,
        rows(engine, SIZE)[0].bytes / ended_after,
    )


def run(asked: argparse.Namespace, console: Console) -> Report:
    with running_fairline("job-io", POOL) as (fairline, engine):
        found = [measure(fairline, engine, each, asked.seconds) for each in CONNECTIONS]
    columns = {
        "connections": "{.connections}",
        "jobs": "{.jobs:,}",
        "WAL bytes": "{.wal_bytes:,.0f}",
        "WAL flushes": "{.flushes:.2f}",
        "bytes in the table": "{.stored_bytes:,.0f}",
    }
    return Report(
        "job_io",
        "What a job writes",
        tables=[table("Per job", columns, found)],
        notes=["Payloads and results of some twenty bytes; larger ones are added to each figure."],
        data={"written": [asdict(each) for each in found]},
    )


FLAGS = (("--seconds", 10.0, "of submissions"),)

if __name__ == "__main__":
    sys.exit(command("python -m loadtest.job_io", __doc__, run, *FLAGS))
