"""Contenders of the comparison: an API, workers, and a count of what was done."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any

import psutil
from sqlalchemy import Engine, create_engine

from app.stack.ports import free_port
from app.stack.programs import command
from app.stack.spec import PROJECT_ROOT
from loadtest.closed_loop import Request, applications
from loadtest.figures import family
from loadtest.fleet import Fleet, rows
from loadtest.lab.experiment import POOL, RunContext
from loadtest.plain import serve
from models.pools import POOLS

#: Jobs done since the counter was made, by the contender's own record.
Counter = Callable[[], int]


class Contender(ABC):
    """One library with its processes on the fleet's services."""

    #: As the reports name it.
    name: str
    #: Part of the names of its processes.
    key: str
    #: Its WSGI application, as gunicorn imports it.
    application = ""
    #: How it is configured, for the report.
    tuning: str
    #: Jobs that its workers run at the same time, all processes together.
    slots: int
    #: Whether its API takes applications, or only jobs with an application as their payload.
    takes_applications = False
    #: Statements on its own database: counts the jobs that are done, and deletes all jobs.
    count_done = ""
    delete_jobs = ""
    database_url: str

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.port = free_port()
        #: Its own, if it has one.
        self.database_url = fleet.postgres.service.url("postgres")
        #: Where tasks append a line at their start and at their end.
        self.witness = fleet.home / f"{self.key}.witness"
        self.env: dict[str, str] = {"PEER_WITNESS": str(self.witness)}

    @property
    def singles(self) -> Sequence[Request]:
        """Submissions of one job each, of the same few hundred bytes for every contender."""
        found = applications(500)
        if self.takes_applications:
            return found
        jobs = [{"type": "peer.noop", "payload": json.loads(each.body)} for each in found]
        return [Request("POST", "/jobs", body=json.dumps(job)) for job in jobs]

    def open(self) -> None:
        """Start the API, two gunicorn workers, and wait until it responds."""
        serve(self.fleet, f"{self.key}-web", self.port, self.application, self.env)

    @abstractmethod
    def work(self) -> None:
        """Start the workers; they may still be starting."""

    @cached_property
    def engine(self) -> Engine:
        options: dict[str, Any] = {"isolation_level": "AUTOCOMMIT", "pool_size": 1}
        return create_engine(self.database_url, max_overflow=0, **options)

    def read(self, sql: str) -> int:
        return int(rows(self.engine, sql)[0][0])

    def execute(self, sql: str) -> None:
        """Run statements without a result in its own database."""
        with self.engine.connect() as connection:
            # The driver's cursor does not interpret percent signs and colons.
            connection.connection.cursor().execute(sql)

    def count_from_now(self) -> Counter:
        before = self.read(self.count_done)
        return lambda: self.read(self.count_done) - before

    def forget(self) -> None:
        """Delete all jobs. None of its processes may run."""
        self.execute(self.delete_jobs)

    def clear_accepted(self) -> None:
        """Delete the jobs queued by the accept rate, while the API runs."""
        self.forget()

    @abstractmethod
    def remove(self) -> None:
        """Leave nothing behind in PostgreSQL and RabbitMQ. None of its processes may run."""

    @property
    def workers(self) -> list[str]:
        return [name for name in self.fleet.children if name.startswith(f"{self.key}-worker")]

    @property
    def parts(self) -> Mapping[str, Sequence[str]]:
        """The names of its processes, by what they do."""
        return {"API": [f"{self.key}-web"], "workers": self.workers}

    @property
    def is_open(self) -> bool:
        return all(name in self.fleet.children for name in self.parts["API"])

    @property
    def is_working(self) -> bool:
        """Whether a worker of the jobs measured here runs."""
        return bool(self.workers)

    def admit(self) -> None:
        """Start what runs beside the API while its accept rate is measured: nothing."""
        return

    def witness_bytes(self) -> int:
        return self.witness.stat().st_size if self.witness.exists() else 0

    def kill_workers(self) -> None:
        """kill -9 every worker process and all that it started."""
        self.fleet.kill(*self.workers)

    def close(self) -> None:
        """Kill all its processes: its turn is over."""
        self.fleet.kill(*(name for names in self.parts.values() for name in names))

    def start_worker(self, *argv: str, number: int = 1) -> None:
        """One worker process. Not every command looks for modules in the folder it runs in."""
        env = {"PYTHONPATH": str(PROJECT_ROOT), **self.env}
        self.fleet.start(f"{self.key}-worker-{number}", command(*argv), env)

    def batch(self, kind: str, first: int, count: int, ms: int = 0) -> Request:
        """Many jobs in one request, with the same body for every contender."""
        jobs = [
            {"type": kind, "payload": {"n": number, "ms": ms}}
            for number in range(first, first + count)
        ]
        return Request("POST", "/jobs/batch", body=json.dumps({"jobs": jobs}))

    def single(self, kind: str, number: int, ms: int = 0) -> Request:
        job = {"type": kind, "payload": {"n": number, "ms": ms}}
        return Request("POST", "/jobs", body=json.dumps(job))


def weigh(fleet: Fleet, names: Sequence[str]) -> float:
    """Megabytes of these processes and all that they started; shared pages count once."""
    total = 0.0
    for process in family([fleet.children[name].pid for name in names]):
        with suppress(psutil.Error):
            total += process.memory_full_info().pss / 1e6
    return total


def ends_in(path: Path) -> Counter:
    """Ends written to the witness file from now on; reads each byte once."""
    offset = path.stat().st_size if path.exists() else 0
    seen = 0

    def read() -> int:
        nonlocal offset, seen
        if path.exists():
            with path.open("rb") as file:
                file.seek(offset)
                text = file.read()
            whole = text[: text.rfind(b"\n") + 1]
            offset += len(whole)
            seen += whole.count(b"end ")
        return seen

    return read


#: Fairline's.
DATABASE = "peers_fairline"
#: Every job of a pool that ended, in whatever way; kept by the same statements that end jobs.
ENDED = """
    SELECT coalesce(sum(succeeded + dead + cancelled + expired), 0) FROM job_counts
    WHERE tenant_id = 0 AND pool = '{}'
"""
#: Jobs of the medium pool that are queued or at the broker.
WAITING = """
    SELECT coalesce(sum(queued + dispatched), 0) FROM job_counts
    WHERE tenant_id = 0 AND pool = 'medium'
"""
#: All that jobs leave behind; tenants and schema stay.
EMPTY = """
    TRUNCATE jobs, applications, job_count_deltas, job_count_sums, job_count_keys, attempts,
             checkpoints, events, tallies, verdicts, usage, express_lanes, processes, leaders
"""


class Ours(Contender):
    """Fairline: a row per job, committed before the response and settled after the run."""

    name = "Fairline"
    key = "fairline"
    tuning = (
        f"2 gevent workers of the short pool with {POOLS['short'].slots // 2} slots each, half of "
        "what `make up` gives to one, and one scheduler"
    )
    takes_applications = True
    delete_jobs = EMPTY

    def __init__(
        self,
        context: RunContext,
        score_seconds: float,
        pool: str = "short",
        processes: int = 1,
        **settings: str,
    ) -> None:
        super().__init__(context.fleet)
        self.pool, self.slots, self._processes = pool, POOLS[pool].slots, processes
        self.count_done = ENDED.format(pool)
        jobs = {"job_modules": "loadtest.baselines.peer_jobs"}
        self.fairline = context.fairline(DATABASE, score_seconds, **jobs, **settings)
        self.port = self.fairline.port
        self.fairline.env |= self.env
        self.database_url = self.fairline.env["FAIRLINE_DATABASE_URL"]

    @property
    def workers(self) -> list[str]:
        return [name for name in self.fleet.children if name.startswith("worker-")]

    @property
    def parts(self) -> Mapping[str, Sequence[str]]:
        started = {"API": ["api"], "scheduler": ["scheduler"], "workers": self.workers}
        return started | ({"Flower": ["flower"]} if "flower" in self.fleet.children else {})

    def open(self) -> None:
        self.fairline.start_api()
        self.fairline.start_scheduler()

    @property
    def is_working(self) -> bool:
        return f"worker-{self.pool}-1" in self.fleet.children

    def admit(self) -> None:
        """A worker of the applications' pool, as in production."""
        self.fairline.start_worker(POOL)
        self.fairline.await_ready()

    def work(self) -> None:
        for number in range(1, self._processes + 1):
            self.fairline.start_worker(self.pool, number, self.slots // self._processes)

    def clear_accepted(self) -> None:
        """Nothing: those are queued in the medium pool, whose worker no longer runs."""

    def remove(self) -> None:
        self.engine.dispose()
        self.fleet.postgres.service.drop_database(DATABASE)
