"""Requests per second of the HTTP servers, and durable jobs per second through one worker."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
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

WARM_SECONDS = 1.0
#: Polls are measured for this part of the time of submissions.
POLL_SHARE = 0.5
KNOWN = 50
#: The youngest first: they are at the end of the queue.
APPLICATIONS = """
    SELECT id::text FROM jobs WHERE type = 'score_application'
    AND status = CAST(:status AS job_status) ORDER BY id DESC LIMIT 300
"""
BACKGROUND = ("scheduler", "worker-medium-1")


class Servers:
    """Fairline's API and the baseline's, measured in turns."""

    def __init__(self, fairline: Fairline, plain: PlainCelery, seconds: float) -> None:
        self._fairline = fairline
        self._plain = plain
        self._fleet = fairline.fleet
        self._seconds = seconds
        self._bodies = applications(500)

    @contextmanager
    def open(self) -> Iterator[None]:
        self._plain.start_web()
        self._fairline.start("medium")
        try:
            yield
        finally:
            self._fleet.stop("api", "worker-medium-1", "scheduler", "plain-web")
            self._plain.empty_queue()

    def take_turns(self, connections: int, *, poll: bool) -> list[Sample]:
        """One round at this number of connections."""

        def drive(
            name: str, port: int, requests: Sequence[Request], status: int, share: float = 1.0
        ) -> Sample:
            warm = min(WARM_SECONDS, self._seconds)
            load = Load(port, connections, warm, share * self._seconds, requests, status)
            return measure(self._fleet, f"{name} @{connections}", load)

        ours, theirs = self._fairline.port, self._plain.port
        samples = [drive("accept: Fairline", ours, self._bodies, 202)]
        for name, (requests, status) in polls(self._fairline).items() if poll else ():
            if requests:
                samples.append(drive(f"poll: Fairline, {name}", ours, requests, status, POLL_SHARE))
        with self._fleet.frozen(*BACKGROUND):
            samples.append(drive("accept: baseline", theirs, self._bodies, 202))
            samples.append(drive("empty Flask route", theirs, [Request("GET", "/empty")], 200))
            self._plain.empty_queue()
        self._fairline.await_ready()
        return samples


def measure(fleet: Fleet, name: str, load: Load) -> Sample:
    """Drive one route; its rate and latencies, and the cores in use meanwhile."""
    generator = closed_loop.start(load)
    time.sleep(load.start_seconds)
    meter = CoreMeter({**fleet.pids(), "generator": [generator.pid]})
    time.sleep(max(0.1, load.seconds - 0.3))
    cores = meter.read()
    answered = closed_loop.finish(generator)
    unexpected = sum(answered.unexpected.values())
    return Sample(name, answered.rate, answered.p50_ms, answered.p99_ms, unexpected, cores)


def polls(fairline: Fairline) -> dict[str, tuple[list[Request], int]]:
    """Requests, and their status, for applications that wait, are scored, or have not changed."""
    pending, scored = (polls_of(fairline, status) for status in ("queued", "succeeded"))
    known = known_polls(fairline.port)
    return {"pending": (pending, 200), "scored": (scored, 200), "304": (known, 304)}


def polls_of(fairline: Fairline, status: str) -> list[Request]:
    """Polls of the youngest applications in this state."""
    with fairline.engine() as engine:
        found = rows(engine, APPLICATIONS, status=status)
    return [Request("GET", f"/applications/{row.id}") for row in found]


def known_polls(port: int) -> list[Request]:
    """Conditional requests, answered 304: for applications that are due in an hour."""
    due = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    asked = []
    with Client(port) as client:
        for request in applications(KNOWN, prefix="Later"):
            body = json.dumps({**json.loads(request.body), "execute_at": due})
            path = client.ask(replace(request, body=body)).header("Location")
            tag = client.ask(Request("GET", path), 200).header("ETag")
            asked.append(Request("GET", path, {"If-None-Match": tag}))
    return asked


BATCH = 1000
LONGEST_SECONDS = 180.0
WORKER_SECONDS = 30.0

#: Jobs per second between a tenth and nine tenths of the ends; few jobs may end in one commit.
MIDDLE_RATE = """
    SELECT count(*) / greatest(extract(epoch FROM max(finished_at) - min(finished_at)), 0.001)
    FROM (SELECT finished_at,
                 row_number() OVER (ORDER BY finished_at)::float8 / count(*) OVER () AS share
          FROM {table} WHERE {mine} AND finished_at IS NOT NULL) AS ended
    WHERE share BETWEEN 0.1 AND 0.9
"""
#: Jobs per second from the first submission to the last end.
WHOLE_RATE = """
    SELECT count(*) / extract(epoch FROM max(finished_at) - min(created_at))
    FROM {table} WHERE {mine} AND status = 'succeeded'
"""
LEFT = "SELECT count(*) FROM {table} WHERE {mine} AND finished_at IS NULL"
ALIVE = "SELECT count(*) FROM processes WHERE kind = 'worker' AND 'short' = ANY (pools)"


def drain_fairline(fairline: Fairline, jobs: int, *, over_http: bool = False) -> Sample:
    """``echo`` jobs through the scheduler, the broker and one short worker.

    They are in the queue before the worker starts, or come in batches over HTTP after it has.
    """
    with fairline.engine() as engine:
        mine = f"id >= '{new_id()}' AND type = 'echo'"
        if not over_http:
            queue_echoes(engine, jobs)
        elif "api" not in fairline.fleet.pids():
            fairline.start_api()
        fairline.start_scheduler()
        fairline.start_worker("short")
        if over_http:
            until(lambda: rows(engine, ALIVE)[0][0], WORKER_SECONDS, "a worker")
            post_batches(fairline.port, jobs)
        name = "end to end: Fairline, HTTP batches" if over_http else "no-op: Fairline, one worker"
        rate = WHOLE_RATE if over_http else MIDDLE_RATE
        sample = watch(name, engine, "jobs", mine, rate, fairline.fleet.pids(), jobs)
    fairline.fleet.stop("worker-short-1", "scheduler", *(["api"] if over_http else []))
    return sample


def queue_echoes(engine: Engine, jobs: int) -> None:
    payloads = ({"n": number} for number in range(jobs))
    admit(engine, tenant_id(engine, TENANT), "echo", "short", payloads)


def post_batches(port: int, jobs: int) -> None:
    with Client(port) as client:
        for begin in range(0, jobs, BATCH):
            numbers = range(begin, min(begin + BATCH, jobs))
            body = {"jobs": [{"type": "echo", "payload": {"n": n}} for n in numbers]}
            client.ask(Request("POST", "/jobs/batch", body=json.dumps(body)))


def drain_plain(plain: PlainCelery, jobs: int) -> Sample:
    """Tasks that wait in RabbitMQ through one Celery worker."""
    role = f"noop-{uuid.uuid4().hex[:8]}"
    plain.queue_tasks(jobs, role=role)
    plain.start_worker()
    where = ("applications", f"role = '{role}'", MIDDLE_RATE)
    sample = watch("no-op: baseline, one worker", plain.engine, *where, plain.fleet.pids(), jobs)
    plain.fleet.stop("plain-worker")
    return sample


def watch(
    name: str,
    engine: Engine,
    table: str,
    mine: str,
    rate: str,
    pids: Mapping[str, Sequence[int]],
    jobs: int,
) -> Sample:
    """Wait until every job has ended; the rate, and cores in use in the middle of it."""
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
    per_second = rows(engine, rate.format(table=table, mine=mine))[0][0]
    return Sample(name, float(per_second), cores=cores)


SECONDS = 6
FOLDER = RESULTS / "bench" / "profiles"
TOP = 25


def record(pids: dict[str, int], console: Console) -> None:
    """Profile these processes for a while and show what takes their time."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    program = str(Path(sys.executable).parent / "py-spy")
    recorders = []
    for name, pid in pids.items():
        argv = (
            *(program, "record", "--format", "raw", "--nolineno", "--rate", "200"),
            *("--duration", str(SECONDS), "--pid", str(pid)),
            *("--output", str(FOLDER / f"{name}.stacks")),
        )
        quiet = subprocess.DEVNULL
        recorders.append(subprocess.Popen(argv, stdout=quiet, stderr=quiet))
    for recorder in recorders:
        recorder.wait()
    for name in pids:
        show(FOLDER / f"{name}.stacks", console)


def profile_accept(fairline: Fairline, console: Console) -> None:
    """One API process under submissions; all of Fairline runs already."""
    load = Load(fairline.port, 64, 1.0, SECONDS + 2.0, applications(500), 202)
    generator = closed_loop.start(load)
    time.sleep(load.start_seconds)
    workers = psutil.Process(fairline.fleet.children["api"].pid).children()
    record({"api": workers[0].pid}, console)
    closed_loop.finish(generator)


def profile_noop(fairline: Fairline, jobs: int, console: Console) -> None:
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
    for text in stacks.read_text().splitlines():
        stack, _, samples = text.rpartition(" ")
        frames = stack.split(";")
        own[frames[-1]] += int(samples)
        whole.update(dict.fromkeys(frames, int(samples)))
    for title, counted in (("on its own", own), ("with what it calls", whole)):
        console.print(f"{stacks.stem}, {title}", style="bold")
        for name, count in counted.most_common(TOP):
            console.print(f"  {count / max(1, own.total()):>6.1%}  {name}", highlight=False)
