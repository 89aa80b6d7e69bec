"""The processes of a measurement: a private PostgreSQL and RabbitMQ, then whatever is started.

Everything is stopped when the ``with`` block ends, whatever happened inside it. Call from the
main thread: children die with the thread that started them.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, Self, TypeVar

from sqlalchemy import Engine, text

from app.stack.ports import free_port
from app.stack.postgres import EmbeddedPostgres
from app.stack.programs import command, flask, module
from app.stack.rabbitmq import EmbeddedRabbitMQ
from app.stack.services import Running, running, tail
from app.stack.spawn import Child, spawn
from app.stack.spec import PROJECT_ROOT, ProcessSpec
from models.jobs.admit import admit_group
from models.jobs.ids import new_id
from models.jobs.submission import Submission, SubmissionGroup
from models.pools import POOLS
from models.settings import DatabaseSettings
from models.store.session import open_engine

TENANT = "demo"
TEMPLATE = "fairline_migrated"
#: Of the queues of what is tested or measured.
QUEUE_TYPE = os.environ.get("QUEUE_TYPE") or "classic"
#: Jobs of one statement.
GROUP = 500
UPSERT_TENANT = """
    INSERT INTO tenants (name, tier, weight) VALUES (:name, :tier, :weight)
    ON CONFLICT (name) DO UPDATE SET tier = excluded.tier, weight = excluded.weight,
        changed_at = now() RETURNING id
"""
Found = TypeVar("Found")


class NotReady(RuntimeError):
    """Something did not happen in time; for a process, the message ends with its log."""


def until(found: Callable[[], Found], seconds: float, what: str = "", pause: float = 0.1) -> Found:
    """Wait for a true value; after a timeout an error if ``what`` names it, else the value."""
    deadline = time.monotonic() + seconds
    while not (value := found()) and time.monotonic() < deadline:
        time.sleep(pause)
    if what and not value:
        raise NotReady(f"waited {seconds:g} s for {what}")
    return value


@contextmanager
def database(url: str, statement_seconds: float = 5.0) -> Iterator[Engine]:
    """The product's own engine for a database, with this statement timeout."""
    settings = DatabaseSettings(database_url=url, db_statement_seconds=statement_seconds)
    engine = open_engine(settings, process="loadtest")
    try:
        yield engine
    finally:
        engine.dispose()


def migrated(server: EmbeddedPostgres, name: str) -> str:
    """The URL of a new database with the schema and nothing else."""
    server.create_database(name)
    subprocess.run(
        [sys.executable, "-m", "alembic", "upgrade", "head"],
        cwd=PROJECT_ROOT,
        env={**os.environ, "FAIRLINE_DATABASE_URL": server.url(name)},
        check=True,
        capture_output=True,
    )
    return server.url(name)


def rows(engine: Engine, sql: str, **values: Any) -> Sequence[Any]:
    """What a statement returns, with its ``:names`` filled in."""
    with engine.connect() as connection:
        return connection.execute(text(sql), values).all()


def admit(
    engine: Engine, tenant: int, type_name: str, pool: str, payloads: Iterable[Any], **more: Any
) -> None:
    """Queue jobs with the API's own statement, a few hundred at a time."""
    kind, texts = (tenant, type_name, pool), map(json.dumps, payloads)
    while jobs := tuple(Submission(new_id(), *kind, each, **more) for each in islice(texts, GROUP)):
        admit_group(engine, [SubmissionGroup(jobs)], express=False)


def tenant_id(
    engine: Engine, name: str, tier: str = "standard", weight: float | None = None
) -> int:
    """A tenant with these terms; its id."""
    return int(rows(engine, UPSERT_TENANT, name=name, tier=tier, weight=weight)[0][0])


class Fleet:
    """Started processes by name, beside a private PostgreSQL and RabbitMQ."""

    def __init__(
        self, home: Path, postgres: Running[EmbeddedPostgres], rabbitmq: Running[EmbeddedRabbitMQ]
    ) -> None:
        self.home = home
        self.postgres = postgres
        self.rabbitmq = rabbitmq
        self.children: dict[str, Child] = {}

    @cached_property
    def template(self) -> str:
        """A database with schema and tenant: migrated once, copied for each Fairline."""
        self.postgres.service.create_database(TEMPLATE)
        url = self.postgres.service.url(TEMPLATE)
        subprocess.run(
            flask("migrate", "--tenant", TENANT),
            cwd=PROJECT_ROOT,
            env={**clean_environment(), "FAIRLINE_DATABASE_URL": url},
            check=True,
            capture_output=True,
        )
        return TEMPLATE

    def start(self, name: str, argv: Sequence[str], env: Mapping[str, str]) -> Child:
        """Start a process; its log is in the home."""
        spec = ProcessSpec(name, tuple(argv))
        self.children[name] = spawn(spec, {**clean_environment(), **env}, self.log(name))
        return self.children[name]

    def stop(self, *names: str) -> None:
        """Stop these processes in this order; without a name, all of them, the youngest first."""
        for name in names or tuple(reversed(self.children)):
            child = self.children.pop(name, None)
            if child is not None:
                child.stop()

    def kill(self, *names: str) -> None:
        """Kill these processes: for those whose work is no longer needed."""
        killed = [self.children.pop(name) for name in names if name in self.children]
        for child in killed:
            child.kill()
        for child in killed:
            child.popen.wait()

    @contextmanager
    def frozen(self, *names: str) -> Iterator[None]:
        frozen = [self.children[name] for name in names]
        for child in frozen:
            child.send(signal.SIGSTOP)
        try:
            yield
        finally:
            for child in frozen:
                child.send(signal.SIGCONT)

    def log(self, name: str) -> Path:
        return self.home / "logs" / f"{name}.log"

    def await_answer(self, name: str, url: str, seconds: float = 30.0) -> None:
        error = ""

        def answered() -> bool:
            nonlocal error
            if self.children[name].poll() is not None:
                raise NotReady(f"{name} ended:\n{tail(self.log(name))}")
            try:
                with urllib.request.urlopen(url, timeout=2):
                    return True
            except OSError as refused:
                error = str(refused)  # not itself: an answer such as 503 holds its connection
                return False

        if not until(answered, seconds, pause=0.05):
            raise NotReady(f"{url}: {error}\n{name} logged:\n{tail(self.log(name))}")

    def pids(self) -> dict[str, list[int]]:
        """The main processes of every part, by name."""
        return {
            **{name: [child.pid] for name, child in self.children.items()},
            "postgres": [child.pid for child in self.postgres.children],
            "rabbitmq": [child.pid for child in self.rabbitmq.children],
        }


@contextmanager
def fleet(name: str) -> Iterator[Fleet]:
    """Private services, ready; stopped in order on SIGTERM too."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    home = Path(tempfile.mkdtemp(prefix=f"fairline-{name}-"))
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, home, ignore_errors=True)
        logs = home / "logs"
        postgres = stack.enter_context(running(EmbeddedPostgres(home), logs))
        rabbitmq = stack.enter_context(running(EmbeddedRabbitMQ(home), logs))
        started = Fleet(home, postgres, rabbitmq)
        stack.callback(started.stop)
        yield started


#: Variables of the caller that would configure what is measured.
NAMES = ("FAIRLINE", "OTEL", "CELERY", "GUNICORN", "FLASK", "FLOWER", "WORKERS", "LOCUST")
FOREIGN = tuple(f"{name}_" for name in NAMES)


def clean_environment() -> dict[str, str]:
    """The environment without anything that would configure what is measured."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(FOREIGN)}
    kept.pop(
        "PYTHONDONTWRITEBYTECODE", None
    )  # compiled at each start, modules cost time and memory
    # What is measured are the types to try things out with.
    return kept | {"PYTHONUNBUFFERED": "1", "FAIRLINE_DEMO_TYPES": "true"}


def celery_worker(app: str, kind: str, slots: int, name: str, *more: str) -> tuple[str, ...]:
    """The command line of a Celery worker."""
    words = ("celery", "-A", app, "worker", "-P", kind, "-c", str(slots), "-n", f"{name}@%h")
    return (*words, "--without-gossip", "--without-mingle", "--loglevel=warning", *more)


class Fairline:
    """One Fairline on the fleet's services."""

    def __init__(
        self, fleet: Fleet, *, served_pools: str, name: str = "fairline", **settings: str
    ) -> None:
        """``name`` is its database; ``settings`` are more variables, without their prefix."""
        self.fleet = fleet
        self.port = free_port()
        fleet.postgres.service.create_database(name, template=fleet.template)
        self.env = {
            "FAIRLINE_DATABASE_URL": fleet.postgres.service.url(name),
            "FAIRLINE_BROKER_URL": fleet.rabbitmq.service.url(),
            "FAIRLINE_QUEUE_TYPE": QUEUE_TYPE,
            "FAIRLINE_ANONYMOUS_TENANT": TENANT,
            "FAIRLINE_PORT": str(self.port),
            "FAIRLINE_SERVED_POOLS": served_pools,
            "FAIRLINE_LOG_LEVEL": "warning",
            **{f"FAIRLINE_{key.upper()}": value for key, value in settings.items()},
        }

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start_api(self, name: str = "api", **env: str) -> None:
        """Two gunicorn workers, answering."""
        argv = command("gunicorn", "-c", "gunicorn.conf.py", "app:create_app()")
        self.fleet.start(name, argv, self.env | env)
        self.fleet.await_answer(name, f"{self.url}/healthz")

    def start_scheduler(self) -> None:
        self.fleet.start("scheduler", module("app.scheduler"), self.env)

    def start_flower(self) -> None:
        port = free_port()
        argv = command("celery", "-A", "app", "flower", "--address=127.0.0.1", f"--port={port}")
        self.fleet.start("flower", argv, self.env)
        self.fleet.await_answer("flower", f"http://127.0.0.1:{port}/healthcheck")

    def start_worker(self, pool: str, number: int = 1, slots: int = 0) -> str:
        """One worker of a pool, with the pool's usual slots unless told; its name."""
        shape, name = POOLS[pool], f"worker-{pool}-{number}"
        count = slots or shape.slots
        words = celery_worker("app", shape.concurrency, count, name, "-Q", pool, "-E")
        _, _, _, _, *options = words  # celery -A app worker
        self.fleet.start(name, module("app.worker", *options), self.env)
        return name

    def start(self, pool: str, workers: int = 1) -> list[str]:
        """Workers of a pool, scheduler and API, all of them ready; their names."""
        names = [self.start_worker(pool, number) for number in range(1, workers + 1)]
        self.start_scheduler()
        self.start_api()
        self.await_ready()
        self.await_slots(pool, workers * POOLS[pool].slots)
        return ["api", *names, "scheduler"]

    @contextmanager
    def running(self, pool: str) -> Iterator[Self]:
        """With one worker of a pool, scheduler and API, which are killed afterwards."""
        try:
            self.start(pool)
            yield self
        finally:
            self.fleet.kill("api", f"worker-{pool}-1", "scheduler")

    def await_ready(self) -> None:
        """Wait until a submitted job would be accepted and run."""
        self.fleet.await_answer("api", f"{self.url}/readyz", seconds=60)

    def await_slots(self, pool: str, slots: int, seconds: float = 30.0) -> None:
        """Wait until live workers have so many slots."""

        def offered() -> bool:
            with urllib.request.urlopen(f"{self.url}/readyz", timeout=5) as answer:
                return bool(json.load(answer)["checks"][f"workers.{pool}"]["slots"] >= slots)

        until(offered, seconds, f"{slots} slots in {pool}")

    def engine(self, statement_seconds: float = 5.0) -> AbstractContextManager[Engine]:
        """Its database, by the product's own engine."""
        return database(self.env["FAIRLINE_DATABASE_URL"], statement_seconds)


@contextmanager
def running_fairline(
    name: str, pool: str, workers: int = 1, **settings: str
) -> Iterator[tuple[Fairline, Engine]]:
    """A Fairline with workers of one pool on private services, ready, and its database."""
    with fleet(name) as started:
        fairline = Fairline(started, served_pools=pool, **settings)
        fairline.start(pool, workers)
        with fairline.engine() as engine:
            yield fairline, engine
