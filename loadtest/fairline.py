"""Fairline's own processes, started as the stack starts them."""

from __future__ import annotations

import json
import random
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import Engine

from app.stack.ports import PRIVATE_PORTS, is_taken
from app.stack.programs import command, flask
from app.stack.spec import PROJECT_ROOT
from loadtest.fleet import Fleet, NotReady, clean_environment
from models.config import DatabaseSettings
from models.pools import POOLS
from models.session import open_engine

TENANT = "demo"
TEMPLATE = "fairline_migrated"


class Fairline:
    """One Fairline on the fleet's services."""

    def __init__(
        self, fleet: Fleet, *, served_pools: str, name: str = "fairline", **settings: str
    ) -> None:
        """``name`` is its database; ``settings`` are more variables, without their prefix."""
        self.fleet = fleet
        self.port = free_port()
        fleet.postgres.service.create_database(name, template=migrated(fleet))
        self.env = {
            "FAIRLINE_DATABASE_URL": fleet.postgres.service.url(name),
            "FAIRLINE_BROKER_URL": fleet.rabbitmq.service.url(),
            "FAIRLINE_QUEUE_TYPE": "classic",
            "FAIRLINE_ANONYMOUS_TENANT": TENANT,
            "FAIRLINE_PORT": str(self.port),
            "FAIRLINE_SERVED_POOLS": served_pools,
            "FAIRLINE_LOG_LEVEL": "warning",
            **{f"FAIRLINE_{key.upper()}": value for key, value in settings.items()},
        }

    @property
    def url(self) -> str:
        """Where the API is."""
        return f"http://127.0.0.1:{self.port}"

    def start_api(self) -> None:
        """Two gunicorn workers, answering."""
        self.fleet.start(
            "api",
            command("gunicorn", "-c", "gunicorn.conf.py", "app:create_app()"),
            self.env,
        )
        self.fleet.await_answer("api", f"{self.url}/healthz")

    def start_scheduler(self) -> None:
        """One scheduler."""
        self.fleet.start("scheduler", flask("scheduler"), self.env)

    def start_worker(self, pool: str, number: int = 1) -> str:
        """One worker of a pool, with the pool's usual slots; its name."""
        shape = POOLS[pool]
        name = f"worker-{pool}-{number}"
        self.fleet.start(
            name,
            command(
                *("celery", "-A", "app", "worker"),
                *("-P", shape.concurrency, "-c", str(shape.slots)),
                *("-Q", pool, "-n", f"{pool}{number}@%h"),
                *("-E", "--without-gossip", "--without-mingle", "--loglevel=warning"),
            ),
            self.env,
        )
        return name

    def await_ready(self) -> None:
        """Wait until a submitted job would be accepted and run."""
        self.fleet.await_answer("api", f"{self.url}/readyz", seconds=60)

    def await_slots(self, pool: str, slots: int, seconds: float = 30.0) -> None:
        """Wait until living workers offer so many slots."""
        deadline = time.monotonic() + seconds
        wanted = f"workers.{pool}"
        while True:
            with urllib.request.urlopen(f"{self.url}/readyz", timeout=5) as answer:
                found = json.load(answer)["checks"][wanted]["slots"]
            if found >= slots:
                return
            if time.monotonic() > deadline:
                raise NotReady(f"{found} of {slots} slots in {pool}")
            time.sleep(0.1)

    @contextmanager
    def engine(self) -> Iterator[Engine]:
        """The product's own way to the rows."""
        engine = open_engine(
            DatabaseSettings(database_url=self.env["FAIRLINE_DATABASE_URL"]),
            process="loadtest",
        )
        try:
            yield engine
        finally:
            engine.dispose()


def migrated(fleet: Fleet) -> str:
    """A database with the schema and the tenant; made once, as a copy takes far less time."""
    if TEMPLATE not in fleet.templates:
        fleet.postgres.service.create_database(TEMPLATE)
        url = fleet.postgres.service.url(TEMPLATE)
        subprocess.run(
            flask("migrate", "--tenant", TENANT),
            cwd=PROJECT_ROOT,
            env={**clean_environment(), "FAIRLINE_DATABASE_URL": url},
            check=True,
            capture_output=True,
        )
        fleet.templates.add(TEMPLATE)
    return TEMPLATE


def free_port() -> int:
    """A port that nobody listens on."""
    return next(port for port in random.sample(PRIVATE_PORTS, 1000) if not is_taken(port))
