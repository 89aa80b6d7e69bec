"""Several cells on one machine: a PostgreSQL, a broker, a scheduler and workers each, and the API.

The registry has a PostgreSQL of its own, so that any cell can be killed. Everything is stopped when
the ``with`` block ends. Call from the main thread: children die with the thread that started them.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import psutil
from sqlalchemy import Engine

from app.stack.ports import free_port
from app.stack.postgres import DATABASE, EmbeddedPostgres
from app.stack.programs import command, flask, module
from app.stack.rabbitmq import EmbeddedRabbitMQ
from app.stack.services import Running, running
from app.stack.spec import PROJECT_ROOT
from app.tenants.changes import create_tenant, issue_key
from app.tenants.terms import Change
from loadtest.chaos.witness import VARIABLE
from loadtest.figures import family
from loadtest.fleet import (
    QUEUE_TYPE,
    Fleet,
    celery_worker,
    clean_environment,
    database,
    rows,
    until,
)
from models.cells.placements import place_tenant
from models.cells.registry import CellRow, add_cell, identify
from models.pools import POOLS
from models.store.session import transaction

S = TypeVar("S", EmbeddedPostgres, EmbeddedRabbitMQ)

POOL = "medium"
#: Of servers of which there are several, for little data.
SMALL = {"shared_buffers": "64MB", "max_connections": "120"}
SLOTS = "SELECT coalesce(sum(slots), 0) FROM processes WHERE kind = 'worker'"


@dataclass(frozen=True, slots=True)
class CellPlan:
    """What a cell consists of."""

    name: str
    region: str = ""
    workers: int = 1


@dataclass(frozen=True, slots=True)
class Customer:
    """A tenant with its key."""

    name: str
    id: int
    key: str

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.key}"}


@dataclass(slots=True)
class Cell:
    """A cell and its processes."""

    plan: CellPlan
    fleet: Fleet
    #: Empty where there are no cells.
    registry_url: str
    settings: Mapping[str, str]
    engine: Engine
    customers: list[Customer] = field(default_factory=list)

    @property
    def name(self) -> str:
        return self.plan.name

    @property
    def postgres(self) -> Running[EmbeddedPostgres]:
        return self.fleet.postgres

    @property
    def env(self) -> dict[str, str]:
        """The environment of its processes."""
        return {
            "FAIRLINE_DATABASE_URL": self.postgres.service.url(),
            "FAIRLINE_BROKER_URL": self.fleet.rabbitmq.service.url(),
            "FAIRLINE_QUEUE_TYPE": QUEUE_TYPE,
            "FAIRLINE_REGISTRY_URL": self.registry_url,
            "FAIRLINE_REGION": self.plan.region,
            "FAIRLINE_SERVED_POOLS": POOL,
            "FAIRLINE_LOG_LEVEL": "warning",
            **self.settings,
        }

    def start(self) -> None:
        """Its scheduler and workers."""
        self.start_scheduler()
        for number in range(1, self.plan.workers + 1):
            name = f"worker-{number}"
            words = celery_worker("app", "gevent", POOLS[POOL].slots, name, "-Q", POOL, "-E")
            _, _, _, _, *options = words  # celery -A app worker
            self.fleet.start(name, module("app.worker", *options), self.env)

    def start_scheduler(self, name: str = "scheduler") -> None:
        self.fleet.start(name, module("app.scheduler"), self.env)

    def await_workers(self, seconds: float = 60.0) -> None:
        wanted = self.plan.workers * POOLS[POOL].slots
        until(lambda: rows(self.engine, SLOTS)[0][0] >= wanted, seconds, f"workers of {self.name}")

    def kill_scheduler(self) -> None:
        """As a crash would, and start it again."""
        self.fleet.kill("scheduler")
        self.start_scheduler()

    def signal_database(self, number: signal.Signals) -> None:
        """Send a signal to all processes of its PostgreSQL."""
        for process in list(family([child.pid for child in self.postgres.children])):
            with suppress(psutil.NoSuchProcess):
                process.send_signal(number)

    def kill_database(self) -> None:
        """Kill its PostgreSQL, all processes at once."""
        self.signal_database(signal.SIGKILL)
        self.postgres.kill()

    @contextmanager
    def frozen_database(self) -> Iterator[None]:
        """Its PostgreSQL neither answers nor refuses."""
        self.signal_database(signal.SIGSTOP)
        try:
            yield
        finally:
            self.signal_database(signal.SIGCONT)

    def kill(self) -> None:
        """Kill everything of it, as the loss of its region would."""
        self.fleet.kill(*self.fleet.children)
        self.kill_database()
        self.fleet.rabbitmq.kill()

    def restart_others(self) -> None:
        """Start everything else again."""
        self.fleet.rabbitmq.start()
        self.start()

    def restart_database(self) -> None:
        """Start PostgreSQL again, after it was killed."""
        self.postgres.start()
        self.engine.dispose()  # its connections are dead

    def pids(self) -> dict[str, list[int]]:
        """Its processes by kind."""
        kinds: dict[str, list[int]] = {}
        for name, pids in self.fleet.pids().items():
            kinds.setdefault(name.partition("-")[0], []).extend(pids)
        return kinds


class Installation:
    """Cells, their registry, and API processes that serve all of them."""

    def __init__(self, home: Path, stack: ExitStack, settings: Mapping[str, str]) -> None:
        self.home = home
        self._stack = stack
        self.witness = home / "witness.jsonl"
        self.settings = {
            "FAIRLINE_JOB_MODULES": "loadtest.chaos.witness",
            "FAIRLINE_SCORE_SECONDS": "0.02",
            VARIABLE: str(self.witness),
            **settings,
        }
        self.cells: dict[str, Cell] = {}
        self.registry: Engine | None = None
        self.registry_server: Running[EmbeddedPostgres] | None = None
        #: Ports by name of the API process.
        self.ports: dict[str, int] = {}
        self._apis: Fleet | None = None

    def open(self, plans: Sequence[CellPlan], *, registry: bool) -> None:
        """The services of all cells; without a registry there is one cell, and no others."""
        brokers = [self._begin(EmbeddedRabbitMQ(self.home / plan.name)) for plan in plans]
        template = self._template()
        names = [plan.name for plan in plans]
        servers = {
            name: self._server(name, template)
            for name in (["registry"] if registry else []) + names
        }
        if registry:
            self.registry_server = servers["registry"]
            self.registry_server.await_ready()
            self.registry = self._engine(self.registry_server)
        for number, (plan, rabbitmq) in enumerate(zip(plans, brokers, strict=True), 1):
            servers[plan.name].await_ready()
            rabbitmq.await_ready()
            self._add(plan, number, servers[plan.name], rabbitmq)

    def _add(
        self,
        plan: CellPlan,
        number: int,
        postgres: Running[EmbeddedPostgres],
        rabbitmq: Running[EmbeddedRabbitMQ],
    ) -> None:
        """A cell, with nothing of it running but its services."""
        fleet = Fleet(self.home / plan.name, postgres, rabbitmq)
        self._stack.callback(fleet.stop)
        engine = self._engine(postgres)
        cell = Cell(plan, fleet, self._registry_url, self.settings, engine)
        if self.registry is not None:
            urls = (postgres.service.url(), rabbitmq.service.url(), "")
            row = CellRow(plan.name, number, plan.region, *urls, "open")
            identify(engine, add_cell(self.registry, row, number=number), first=False)
        self.cells[plan.name] = cell

    @property
    def _registry_url(self) -> str:
        return "" if self.registry_server is None else self.registry_server.service.url()

    def _template(self) -> Path:
        """The data of a PostgreSQL with a migrated database, which others begin with."""
        folder = self.home / "template"
        with running(EmbeddedPostgres(folder, SMALL), folder / "logs") as server:
            server.service.create_database(DATABASE)
            self.flask("migrate", FAIRLINE_DATABASE_URL=server.service.url())
            return server.service.data

    def _server(self, name: str, template: Path) -> Running[EmbeddedPostgres]:
        """A PostgreSQL that is starting."""
        service = EmbeddedPostgres(self.home / name, SMALL)
        service.folder.mkdir(parents=True)
        # With its owner, who is not the one that measures.
        subprocess.run(("cp", "-a", str(template), str(service.data)), check=True)
        return self._begin(service)

    def _begin(self, service: S) -> Running[S]:
        """A service that is starting."""
        service.prepare()
        server = Running(service, service.folder.parent / "logs")
        self._stack.callback(server.stop)
        server.begin()
        return server

    def _engine(self, server: Running[EmbeddedPostgres]) -> Engine:
        return self._stack.enter_context(database(server.service.url()))

    def flask(self, *words: str, **variables: str) -> str:
        """A command of the product; what it printed."""
        done = subprocess.run(
            flask(*words),
            cwd=PROJECT_ROOT,
            env={**clean_environment(), **self.settings, **variables},
            check=False,
            capture_output=True,
            text=True,
        )
        if done.returncode:
            raise RuntimeError(f"{' '.join(words)} failed: {done.stderr.strip()[-2000:]}")
        return done.stdout

    def operate(self, *words: str) -> str:
        """A command about cells, as an operator would call it."""
        first = next(iter(self.cells.values()))
        api = {"FAIRLINE_DATABASE_URL": self._registry_url or first.env["FAIRLINE_DATABASE_URL"]}
        return self.flask(*words, **api, FAIRLINE_REGISTRY_URL=self._registry_url)

    def customer(self, name: str, cell: Cell) -> Customer:
        """A new tenant of a cell, without limits."""
        profile = create_tenant(cell.engine, name, Change({"tier_limits": False}))
        key = issue_key(cell.engine, name)
        if self.registry is not None:
            with transaction(self.registry) as connection:
                place_tenant(connection, name, {cell.name: 1.0})
        customer = Customer(name, profile.id, key.key)
        cell.customers.append(customer)
        return customer

    def start_api(self, name: str = "api", region: str = "", workers: int = 1) -> int:
        """An API process that serves all cells; its port."""
        first = next(iter(self.cells.values()))
        if self._apis is None:
            self._apis = Fleet(self.home, first.fleet.postgres, first.fleet.rabbitmq)
            self._stack.callback(self._apis.stop)
        port = self.ports.setdefault(name, free_port())
        env = {
            **first.env,
            "FAIRLINE_DATABASE_URL": self._registry_url or first.env["FAIRLINE_DATABASE_URL"],
            "FAIRLINE_PORT": str(port),
            "FAIRLINE_API_WORKERS": str(workers),
            "FAIRLINE_REGION": region,
        }
        argv = command("gunicorn", "-c", "gunicorn.conf.py", "app:create_app()")
        self._apis.start(name, argv, env)
        self._apis.await_answer(name, f"http://127.0.0.1:{port}/healthz")
        return port

    def kill_api(self, name: str) -> None:
        if self._apis is not None:
            self._apis.kill(name)

    def pids(self) -> dict[str, list[int]]:
        """All processes by kind."""
        found: dict[str, list[int]] = {}
        for cell in self.cells.values():
            for kind, pids in cell.pids().items():
                found.setdefault(kind, []).extend(pids)
        if self._apis is not None:
            found["api"] = [child.pid for child in self._apis.children.values()]
        if self.registry_server is not None:
            found["registry"] = [child.pid for child in self.registry_server.children]
        return found


@contextmanager
def installation(
    name: str, plans: Sequence[CellPlan], *, registry: bool = True, **settings: str
) -> Iterator[Installation]:
    """Cells with their schedulers and workers, ready; no API process yet."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    home = Path(tempfile.mkdtemp(prefix=f"fairline-{name}-"))
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, home, ignore_errors=True)
        made = Installation(home, stack, settings)
        made.open(plans, registry=registry)
        for cell in made.cells.values():
            cell.start()
        for cell in made.cells.values():
            cell.await_workers()
        yield made
