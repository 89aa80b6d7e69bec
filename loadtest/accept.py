"""What the front doors answer a second, and how many durable jobs go through one worker."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psutil
from rich.console import Console
from sqlalchemy import Engine

from loadtest import closed_loop
from loadtest.closed_loop import Client, Load, Request, applications
from loadtest.figures import CoreMeter, Sample
from loadtest.fleet import TENANT, Fairline, Fleet, admit, rows, tenant_id, until
from loadtest.plain import PlainCelery
from loadtest.report import RESULTS
from models.jobs.ids import new_id
from models.jobs.submission import Submission

WARM_SECONDS = 1.0
#: A poller's route gets a shorter slice than a submitter's.
POLL_SHARE = 0.5
POLLED = 300
KNOWN = 50
#: The youngest first: they are at the end of the line.
APPLICATIONS = """
    SELECT id::text FROM jobs WHERE type = 'score_application'
    AND status = CAST(:status AS job_status) ORDER BY id DESC LIMIT :most
"""
BACKGROUND = ("scheduler", "worker-medium-1")


class FrontDoors:
    """The servers, ready to be measured in turns."""

    def __init__(self, fairline: Fairline, plain: PlainCelery, seconds: float) -> None:
        self._fairline = fairline
        self._plain = plain
        self._fleet = fairline.fleet
        self._seconds = seconds
        self._bodies = applications(500)

    @contextmanager
    def open(self) -> Iterator[None]:
        """All of them running."""
        self._plain.start_web()
        self._fairline.start("medium")
        try:
            yield
        finally:
            self._fleet.stop("api", "worker-medium-1", "scheduler", "plain-web")
            self._plain.empty_queue()

    def take_turns(self, connections: int, *, poll: bool) -> list[Sample]:
        """One round at this number of connections."""
        samples = [self._slice("accept: Fairline", self._bodies, 202, connections)]
        if poll:
            samples += self._poll(connections)
        with self._fleet.frozen(*BACKGROUND):
            samples += [
                self._slice("accept: baseline", self._bodies, 202, connections, plain=True),
                self._slice(
                    "empty Flask route", [Request("GET", "/empty")], 200, connections, plain=True
                ),
            ]
            self._plain.empty_queue()
        self._fairline.await_ready()
        return samples

    def _slice(
        self,
        name: str,
        requests: Sequence[Request],
        status: int,
        connections: int,
        *,
        plain: bool = False,
        share: float = 1.0,
    ) -> Sample:
        port = self._plain.port if plain else self._fairline.port
        warm = min(WARM_SECONDS, self._seconds)
        load = Load(port, connections, warm, share * self._seconds, requests, status)
        return measure(self._fleet, f"{name} @{connections}", load)

    def _poll(self, connections: int) -> list[Sample]:
        pending, scored, known = polls(self._fairline)
        return [
            self._slice(name, requests, status, connections, share=POLL_SHARE)
            for name, requests, status in (
                ("poll: Fairline, pending", pending, 200),
                ("poll: Fairline, scored", scored, 200),
                ("poll: Fairline, 304", known, 304),
            )
            if requests
        ]


def measure(fleet: Fleet, name: str, load: Load) -> Sample:
    """Drive one route and note what it did and who used the cores meanwhile."""
    generator = closed_loop.start(load)
    time.sleep(load.start_seconds)
    meter = CoreMeter({**fleet.pids(), "generator": [generator.pid]})
    time.sleep(max(0.1, load.seconds - 0.3))
    cores = meter.read()
    answered = closed_loop.finish(generator)
    unexpected = sum(answered.unexpected.values())
    return Sample(name, answered.rate, answered.p50_ms, answered.p99_ms, unexpected, cores)


def polls(fairline: Fairline) -> tuple[list[Request], list[Request], list[Request]]:
    """Requests for applications that wait, that are scored, and that are known already."""
    with fairline.engine() as engine:
        pending, scored = (
            [
                Request("GET", f"/applications/{row[0]}")
                for row in rows(engine, APPLICATIONS, status=status, most=POLLED)
            ]
            for status in ("queued", "succeeded")
        )
    return pending, scored, known_polls(fairline.port)


def known_polls(port: int) -> list[Request]:
    """Requests of somebody who knows the answer already.

    For applications that are due in an hour: they keep their state while they are asked for.
    """
    due = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    asked = []
    with Client(port) as client:
        for request in applications(KNOWN, prefix="Later"):
            body = json.dumps({**json.loads(request.body), "execute_at": due})
            path = client.ask(replace(request, body=body)).header("Location")
            tag = client.ask(Request("GET", path), 200).header("ETag")
            asked.append(Request("GET", path, {"If-None-Match": tag}))
    return asked


LONGEST_SECONDS = 180.0

RATE = """
    SELECT count(*), extract(epoch FROM max(finished_at) - min(finished_at))
    FROM (SELECT finished_at, percent_rank() OVER (ORDER BY finished_at) AS share
          FROM {table} WHERE {mine} AND finished_at IS NOT NULL) AS ended
    WHERE share BETWEEN 0.1 AND 0.9
"""
LEFT = "SELECT count(*) FROM {table} WHERE {mine} AND finished_at IS NULL"


def drain_fairline(fairline: Fairline, jobs: int) -> Sample:
    """``echo`` jobs through the line, the scheduler, the broker and one short worker."""
    with fairline.engine() as engine:
        mine = f"id >= '{new_id()}' AND type = 'echo'"
        queue_echoes(engine, jobs)
        fairline.start_scheduler()
        fairline.start_worker("short")
        cores = watch(engine, "jobs", mine, fairline.fleet.pids(), jobs)
        rate = read_rate(engine, "jobs", mine)
    fairline.fleet.stop("worker-short-1", "scheduler")
    return Sample("no-op: Fairline, one worker", rate, cores=cores)


def queue_echoes(engine: Engine, jobs: int) -> None:
    """Put jobs in the short pool's line."""
    tenant = tenant_id(engine, TENANT)
    kind = (tenant, "echo", "short")
    admit(engine, (Submission(new_id(), *kind, f'{{"n":{number}}}') for number in range(jobs)))


def drain_plain(plain: PlainCelery, jobs: int) -> Sample:
    """Tasks that wait in RabbitMQ through one Celery worker."""
    engine = plain.engine()
    mine = f"role = 'noop-{uuid.uuid4().hex[:8]}'"
    plain.queue_tasks(jobs, role=mine.split("'")[1])
    plain.start_worker()
    cores = watch(engine, "applications", mine, plain.fleet.pids(), jobs)
    rate = read_rate(engine, "applications", mine)
    plain.fleet.stop("plain-worker")
    engine.dispose()
    return Sample("no-op: baseline, one worker", rate, cores=cores)


def watch(
    engine: Engine, table: str, mine: str, pids: dict[str, list[int]], jobs: int
) -> dict[str, float]:
    """Wait until every job has ended; who used the cores between a tenth and nine of them."""
    meter: CoreMeter | None = None
    cores: dict[str, float] = {}

    def ended() -> bool:
        nonlocal meter, cores
        left = rows(engine, LEFT.format(table=table, mine=mine))[0][0]
        if meter is None and left < 0.9 * jobs:
            meter = CoreMeter(pids)
        if meter is not None and not cores and left < 0.1 * jobs:
            cores = meter.read()
        return bool(left == 0)

    until(ended, LONGEST_SECONDS, f"all of {jobs} jobs in {table} to end", pause=0.25)
    return cores


def read_rate(engine: Engine, table: str, mine: str) -> float:
    """Endings a second in the middle part."""
    count, seconds = rows(engine, RATE.format(table=table, mine=mine))[0]
    return float(count) / max(float(seconds or 0.0), 1e-9)


BATCH = 1000
WORKER_SECONDS = 30.0

ALIVE = "SELECT count(*) FROM processes WHERE kind = 'worker' AND 'short' = ANY (pools)"
SPAN = """
    SELECT count(*), extract(epoch FROM max(finished_at) - min(created_at))
    FROM jobs WHERE {mine} AND status = 'succeeded'
"""


def flow_fairline(fairline: Fairline, jobs: int) -> Sample:
    """Jobs through the front door, the line, the broker and one short worker."""
    with fairline.engine() as engine:
        mine = f"id >= '{new_id()}' AND type = 'echo'"
        if "api" not in fairline.fleet.pids():
            fairline.start_api()
        fairline.start_scheduler()
        fairline.start_worker("short")
        until(lambda: rows(engine, ALIVE)[0][0], WORKER_SECONDS, "a worker")
        post_batches(fairline.port, jobs)
        cores = watch(engine, "jobs", mine, fairline.fleet.pids(), jobs)
        count, seconds = rows(engine, SPAN.format(mine=mine))[0]
    fairline.fleet.stop("worker-short-1", "scheduler", "api")
    return Sample("end to end: Fairline, HTTP batches", float(count) / float(seconds), cores=cores)


def post_batches(port: int, jobs: int) -> None:
    """Post the jobs, a batch after the other."""
    with Client(port) as client:
        for begin in range(0, jobs, BATCH):
            numbers = range(begin, min(begin + BATCH, jobs))
            body = {"jobs": [{"type": "echo", "payload": {"n": n}} for n in numbers]}
            client.ask(Request("POST", "/jobs/batch", body=json.dumps(body)))


SECONDS = 6
FOLDER = RESULTS / "bench" / "profiles"
TOP = 25


def record(pids: dict[str, int], console: Console) -> None:
    """Profile these processes for a while and show what takes their time."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    recorders = []
    for name, pid in pids.items():
        argv = (
            *(str(Path(sys.executable).parent / "py-spy"), "record", "--format", "raw"),
            *("--rate", "200", "--duration", str(SECONDS), "--pid", str(pid)),
            *("--output", str(FOLDER / f"{name}.stacks")),
        )
        quiet = subprocess.DEVNULL
        recorders.append(subprocess.Popen(argv, stdout=quiet, stderr=quiet))
    for recorder in recorders:
        recorder.wait()
    for name in pids:
        show(FOLDER / f"{name}.stacks", console)


def profile_accept(fairline: Fairline, console: Console) -> None:
    """One API process while it takes submissions; all of Fairline runs already."""
    load = Load(fairline.port, 64, 1.0, SECONDS + 2.0, applications(500), 202)
    generator = closed_loop.start(load)
    time.sleep(load.start_seconds)
    workers = psutil.Process(fairline.fleet.children["api"].pid).children()
    record({"api": workers[0].pid}, console)
    closed_loop.finish(generator)


def profile_noop(fairline: Fairline, jobs: int, console: Console) -> None:
    """Worker and scheduler while jobs flow."""
    with fairline.engine() as engine:
        queue_echoes(engine, 3 * jobs)
    fairline.start_scheduler()
    fairline.start_worker("short")
    time.sleep(5.0)
    names = {"worker": "worker-short-1", "scheduler": "scheduler"}
    record({name: fairline.fleet.children[each].pid for name, each in names.items()}, console)
    fairline.fleet.stop(*names.values())


def show(stacks: Path, console: Console) -> None:
    """The functions that take most, on their own and with what they call."""
    own: Counter[str] = Counter()
    whole: Counter[str] = Counter()
    total = 0
    for text in stacks.read_text().splitlines():
        stack, _, figure = text.rpartition(" ")
        count = int(figure)
        frames = [without_line(frame) for frame in stack.split(";")]
        total += count
        own[frames[-1]] += count
        for frame in set(frames):
            whole[frame] += count
    for title, counted in (("on its own", own), ("with what it calls", whole)):
        console.print(f"{stacks.stem}, {title}", style="bold")
        for name, count in counted.most_common(TOP):
            console.print(f"  {count / max(1, total):>6.1%}  {name}", highlight=False)


def without_line(frame: str) -> str:
    """``function (file)`` instead of ``function (file:line)``."""
    head, colon, tail = frame.rpartition(":")
    return f"{head})" if colon and tail.rstrip(")").isdigit() else frame
