"""Clients that submit applications at a steady rate, and the judge of what they were promised.

A request without a 202 is tried again as a new submission: the client cannot know whether the
first one was admitted, so the tables may hold more applications than the log, never fewer. Every
application with a 202 must be in the tables, settled exactly once as succeeded with the score
that follows from it, and once on the leaderboard; the counters must equal a recount; and nothing
may still be on its way, whoever submitted it.
"""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from sqlalchemy import Engine

from loadtest.chaos.client import Api
from loadtest.chaos.facts import MISCOUNTED, READ_LIVE, expected_score
from loadtest.chaos.judge import Findings
from loadtest.chaos.plan import application
from models.jobs.states import JobStatus
from models.store.session import connect

#: Pause of a client after a request that was not accepted.
RETRY_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class Promise:
    """One 202."""

    id: str
    #: What was sent; the expected score follows from it.
    candidate: str
    #: Wall clock, for reading the log beside those of the stack.
    accepted_at: float
    seconds: float


class ClientLog:
    """Every 202, appended to a file before anything else is done with it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = path.open("a")
        self._lock = threading.Lock()

    def append(self, promise: Promise) -> None:
        """Write one line, through to the file."""
        with self._lock:
            self._file.write(json.dumps(asdict(promise)) + "\n")
            self._file.flush()

    def read(self) -> list[Promise]:
        """All promises so far, from the file."""
        with self._lock:
            return [Promise(**json.loads(line)) for line in self.path.read_text().splitlines()]

    def close(self) -> None:
        """The file stays."""
        self._file.close()


class Submitter:
    """Several clients on a common clock of intended start times."""

    def __init__(
        self, port: int, log: ClientLog, *, role: str, per_second: float = 20.0, clients: int = 4
    ) -> None:
        self.role = role
        self.log = log
        self._port = port
        self._interval = clients / per_second
        self._clients = clients
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []
        self._counting = threading.Lock()
        self._number = 0
        #: Requests that got a 202, and those that got anything else.
        self.accepted = 0
        self.refused = 0
        #: How the refused ones were answered; 0 is a broken connection.
        self.refusals: dict[int, int] = {}

    @contextmanager
    def running(self) -> Iterator[Submitter]:
        """Submit while the block runs; the rate holds as long as the server keeps up."""
        for number in range(self._clients):
            thread = threading.Thread(target=self._run, args=(number,), daemon=True)
            self._threads.append(thread)
            thread.start()
        try:
            yield self
        finally:
            self._stop.set()
            for thread in self._threads:
                thread.join(15)

    def submit(self, api: Api) -> Promise | None:
        """One application; None if there is no promise."""
        with self._counting:
            self._number += 1
            candidate = f"{self.role} {self._number}"
        began = time.monotonic()
        answer = api.call("POST", "/applications", application(candidate, self.role))
        promise = None
        if answer.status == 202:
            seconds = time.monotonic() - began
            promise = Promise(answer.document["id"], candidate, time.time(), seconds)
            self.log.append(promise)
        with self._counting:
            if promise:
                self.accepted += 1
            else:
                self.refused += 1
                self.refusals[answer.status] = self.refusals.get(answer.status, 0) + 1
        return promise

    def _run(self, number: int) -> None:
        due = time.monotonic() + number * self._interval / self._clients
        with Api(self._port) as api:
            while not self._stop.wait(max(0.0, due - time.monotonic())):
                promise = self.submit(api)
                # An outage is not made up for: the stack is to be loaded, not punished.
                due = max(due + self._interval, time.monotonic())
                if promise is None:
                    due = time.monotonic() + RETRY_SECONDS


READ_JOBS = """
    SELECT job.id::text, job.status::text, job.attempt, job.crashes, application.score::float8
    FROM jobs AS job JOIN applications AS application USING (id)
    WHERE application.role = %(role)s
"""


@dataclass(frozen=True, slots=True)
class JobFacts:
    """What the tables say about one application."""

    id: str
    status: str
    attempt: int
    crashes: int
    score: float | None


def check(promises: Sequence[Promise], role: str, engine: Engine, port: int) -> Findings:
    """Read and judge; call it when nothing is on its way any more."""
    with connect(engine) as connection:
        jobs = connection.exec_driver_sql(READ_JOBS, {"role": role}).all()
        stuck = connection.exec_driver_sql(READ_LIVE).all()
        miscounted = connection.exec_driver_sql(MISCOUNTED).all()
    with Api(port, seconds=30.0) as api:
        listed = [entry["id"] for entry in api.leaderboard(role)]
    report = judge(promises, role, [JobFacts(*row) for row in jobs], listed)
    report.faults["stuck"] = [str(tuple(row)) for row in stuck]
    report.faults["miscounted"] = [str(tuple(row)) for row in miscounted]
    return report


def judge(
    promises: Sequence[Promise], role: str, jobs: Sequence[JobFacts], listed: Sequence[str]
) -> Findings:
    """Compare the promises with the rows and with the ids on the leaderboard."""
    rows = {job.id: job for job in jobs}
    times = Counter(listed)
    # Also those whose answer was lost: what is admitted is done, once.
    twice = [f"{job.id} attempt {job.attempt}" for job in jobs if job.attempt > 1]
    listed_twice = [one for one, count in times.items() if count > 1]
    found = [(promise, rows[promise.id]) for promise in promises if promise.id in rows]
    ended = [(promise, job) for promise, job in found if JobStatus(job.status).terminal]
    scored = {promise.id: expected_score(promise.candidate, role) for promise, _ in ended}
    return Findings(
        {
            "promised": len(promises),
            "admitted without an answer": len(rows.keys() - {promise.id for promise in promises}),
            "crashes": sum(job.crashes for job in jobs),
        },
        {
            "lost": [promise.id for promise in promises if promise.id not in rows],
            "unfinished": [f"{p.id} {job.status}" for p, job in found if (p, job) not in ended],
            "wrong_end": [f"{p.id} {job.status}" for p, job in ended if job.status != "succeeded"],
            "settled_twice": twice,
            "wrong_score": [f"{p.id} {job.score}" for p, job in ended if job.score != scored[p.id]],
            "missing_on_leaderboard": [p.id for p, _ in ended if not times[p.id]],
            "twice_on_leaderboard": listed_twice,
        },
    )
