"""What takes part: a front door, workers, and a record of what was done, the same for all.

A contender is opened and closed in its turn, so that nobody else's processes run meanwhile.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import psutil
from sqlalchemy import create_engine

from app.stack.programs import command
from app.stack.spec import PROJECT_ROOT
from loadtest.fairline import free_port
from loadtest.fleet import Fleet
from loadtest.http_bytes import Request

#: The same server for every peer: gunicorn's own gevent worker. Fairline brings its own file.
GUNICORN = "loadtest/baselines/plain_celery/gunicorn.conf.py"

#: Jobs done since the counter was made, by the contender's own record.
Counter = Callable[[], int]


class Contender(ABC):
    """One library with its processes on the fleet's services."""

    #: As the reports name it.
    name: str
    #: Part of the names of its processes.
    key: str
    #: How it is configured, in words.
    tuning: str

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.port = free_port()
        self.witness = fleet.home / f"{self.key}.witness"
        self.env: dict[str, str] = {"PEER_WITNESS": str(self.witness)}

    @property
    @abstractmethod
    def singles(self) -> Sequence[Request]:
        """Submissions of one job each, of the same few hundred bytes for everybody."""

    @abstractmethod
    def open(self) -> None:
        """Start the front door; it answers."""

    @abstractmethod
    def work(self) -> None:
        """Start the workers; they may still be starting."""

    @abstractmethod
    def count_from_now(self) -> Counter:
        """Begin to count what is done."""

    @abstractmethod
    def forget(self) -> None:
        """Drop everything that waits or is done. No process of it may run."""

    def clear_accepted(self) -> None:
        """Drop what the accept rate left in line, while the front door stays open."""
        self.forget()

    @abstractmethod
    def remove(self) -> None:
        """Leave nothing behind in the services. No process may run."""

    @property
    def workers(self) -> list[str]:
        """The names of its worker processes."""
        return [name for name in self.fleet.children if name.startswith(f"{self.key}-worker")]

    @property
    def parts(self) -> Mapping[str, Sequence[str]]:
        """The names of its processes, by what they do."""
        return {"front door": [f"{self.key}-web"], "workers": self.workers}

    @property
    def is_open(self) -> bool:
        """Whether the front door runs."""
        return all(name in self.fleet.children for name in self.parts["front door"])

    @property
    def is_working(self) -> bool:
        """Whether a worker of the jobs measured here runs."""
        return bool(self.workers)

    def admit(self) -> None:
        """Start what runs beside the front door while its accept rate is taken: nothing."""
        return

    def kill_workers(self) -> None:
        """kill -9 for every worker process and all that it started."""
        self._kill(self.workers)

    def close(self) -> None:
        """End everything at once: its turn is over, nobody waits for a last word."""
        self._kill([name for names in self.parts.values() for name in names])

    def _kill(self, names: Sequence[str]) -> None:
        for name in names:
            if child := self.fleet.children.pop(name, None):
                child.kill()
                child.popen.wait()

    def start_web(self, application: str) -> None:
        """Two gunicorn workers, answering."""
        name = f"{self.key}-web"
        self.fleet.start(
            name,
            command("gunicorn", "-c", GUNICORN, "--bind", f"127.0.0.1:{self.port}", application),
            self.env,
        )
        self.fleet.await_answer(name, f"http://127.0.0.1:{self.port}/empty")

    def start_worker(self, *argv: str, number: int = 1, **env: str) -> None:
        """One worker process. Not every command looks for modules in the folder it runs in."""
        env = {"PYTHONPATH": str(PROJECT_ROOT), **self.env, **env}
        self.fleet.start(f"{self.key}-worker-{number}", command(*argv), env)

    def batch(self, kind: str, first: int, count: int, ms: int = 0) -> Request:
        """Many jobs in one request, with the same body for everybody."""
        jobs = [
            {"type": kind, "payload": {"n": number, "ms": ms}}
            for number in range(first, first + count)
        ]
        return Request("POST", "/jobs/batch", body=json.dumps({"jobs": jobs}))

    def single(self, kind: str, number: int, ms: int = 0) -> Request:
        """One job."""
        job = {"type": kind, "payload": {"n": number, "ms": ms}}
        return Request("POST", "/jobs", body=json.dumps(job))


class Rows:
    """The contender's own tables, through one connection."""

    def __init__(self, url: str) -> None:
        self._engine = create_engine(url, isolation_level="AUTOCOMMIT", pool_size=1, max_overflow=0)

    def count_from_now(self, sql: str) -> Counter:
        """What the statement says, less what it says now."""
        before = self.read(sql)
        return lambda: self.read(sql) - before

    def read(self, sql: str) -> int:
        """One number."""
        with self._engine.connect() as connection:
            return int(connection.exec_driver_sql(sql).scalar_one())

    def texts(self, sql: str) -> list[str]:
        """One column."""
        with self._engine.connect() as connection:
            return [str(value) for value in connection.exec_driver_sql(sql).scalars()]

    def run(self, sql: str) -> None:
        """Statements without a result."""
        with self._engine.connect() as connection:
            # The driver's own way: percent signs and colons mean nothing to it.
            connection.connection.cursor().execute(sql)

    def close(self) -> None:
        """Let the connection go."""
        self._engine.dispose()


def weigh(fleet: Fleet, names: Sequence[str]) -> float:
    """Megabytes of these processes and all that they started; shared pages count once."""
    total = 0.0
    for name in names:
        leader = psutil.Process(fleet.children[name].pid)
        for process in (leader, *leader.children(recursive=True)):
            with suppress(psutil.Error):
                total += process.memory_full_info().pss / 1e6
    return total


def ends_in(path: Path) -> Counter:
    """Ends that the witness was told of from now on; reads each byte once."""
    offset = path.stat().st_size if path.exists() else 0
    seen = 0

    def read() -> int:
        nonlocal offset, seen
        if path.exists():
            with path.open("rb") as file:
                file.seek(offset)
                said = file.read()
            whole = said[: said.rfind(b"\n") + 1]
            offset += len(whole)
            seen += whole.count(b"end ")
        return seen

    return read
