"""Durable jobs a second from the HTTP batch to the settled row, everything at work at once.

One client posts batches of a thousand ``echo`` jobs while API, scheduler and one worker run;
the rate is that of all jobs between the first admission and the last ending.
"""

from __future__ import annotations

import http.client
import json
import time

from sqlalchemy import Engine, text

from loadtest.fairline import Fairline
from loadtest.noop import watch
from loadtest.samples import Sample
from models.ids import new_id

BATCH = 1000
WORKER_SECONDS = 30.0

ALIVE = "SELECT count(*) FROM processes WHERE kind = 'worker' AND 'short' = ANY (pools)"
SPAN = """
    SELECT count(*), extract(epoch FROM max(finished_at) - min(created_at))
    FROM jobs WHERE {mine} AND status = 'succeeded'
"""


class Refused(RuntimeError):
    """The front door did not take a batch."""


def flow_fairline(fairline: Fairline, jobs: int) -> Sample:
    """Jobs through the front door, the line, the broker and one short worker."""
    with fairline.engine() as engine:
        mine = f"id >= '{new_id()}' AND type = 'echo'"
        if "api" not in fairline.fleet.pids():
            fairline.start_api()
        fairline.start_scheduler()
        fairline.start_worker("short")
        await_worker(engine)
        post_batches(fairline.port, jobs)
        cores = watch(engine, "jobs", mine, fairline.fleet.pids(), jobs)
        with engine.connect() as connection:
            count, seconds = connection.execute(text(SPAN.format(mine=mine))).one()
    fairline.fleet.stop("worker-short-1", "scheduler", "api")
    return Sample("end to end: Fairline, HTTP batches", float(count) / float(seconds), cores=cores)


def await_worker(engine: Engine) -> None:
    """Wait until a worker of the pool says that it lives."""
    deadline = time.monotonic() + WORKER_SECONDS
    while True:
        with engine.connect() as connection:
            if connection.execute(text(ALIVE)).scalar_one():
                return
        if time.monotonic() > deadline:
            raise Refused("no worker in time")
        time.sleep(0.1)


def post_batches(port: int, jobs: int) -> None:
    """Post the jobs, a batch after the other."""
    client = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    for begin in range(0, jobs, BATCH):
        items = [
            {"type": "echo", "payload": {"n": n}} for n in range(begin, min(begin + BATCH, jobs))
        ]
        body = json.dumps({"jobs": items})
        client.request("POST", "/jobs/batch", body, {"Content-Type": "application/json"})
        answer = client.getresponse()
        read = answer.read()
        if answer.status != 202:
            raise Refused(f"{answer.status}: {read[:300]!r}")
    client.close()
