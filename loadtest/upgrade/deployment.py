"""A deployment of two of every process, each of which may be of another version."""

from __future__ import annotations

import subprocess
import tarfile
from io import BytesIO
from pathlib import Path
from signal import SIGTERM

from rich.console import Console
from sqlalchemy import Engine

from app.stack.services import tail
from app.stack.spawn import spawn
from app.stack.spec import PROJECT_ROOT, ProcessSpec, StopStep
from loadtest.chaos.witness import VARIABLE
from loadtest.fleet import TENANT, Fleet, NotReady, celery_worker, clean_environment, rows, until
from loadtest.upgrade.clients import Balancer
from models.pools import POOLS

#: Checkouts of older versions, each with its own environment.
VERSIONS = PROJECT_ROOT / ".versions"
READY_SECONDS = 60.0
DRAIN_SECONDS = 60.0
DATABASE = "fairline"
NEWCOMERS = "SELECT name FROM processes WHERE started_at > :since"


def checkout(commit: str, console: Console) -> Path:
    """The files of a commit with their own environment, made by the commit's own ``make venv``."""
    root = VERSIONS / commit
    if not (root / ".venv").exists():
        console.print(f"installing {commit} into {root}", highlight=False)
        packed = subprocess.run(
            ("git", "archive", commit), cwd=PROJECT_ROOT, capture_output=True, check=True
        )
        with tarfile.open(fileobj=BytesIO(packed.stdout)) as archive:
            archive.extractall(root, filter="data")
        subprocess.run(("make", "--silent", "venv"), cwd=root, check=True)
    return root


class Deployment:
    """Two of every process, each of one version or another."""

    def __init__(self, started: Fleet, engine: Engine, witness: Path) -> None:
        self.fleet = started
        self._engine = engine
        self.workers = [f"worker-{pool}-{number}" for number in (1, 2) for pool in POOLS]
        self.schedulers = ["scheduler-1", "scheduler-2"]
        self.apis = ["api-1", "api-2"]
        self.balancer = Balancer(self.apis)
        self.env = {
            **clean_environment(),
            "FAIRLINE_DATABASE_URL": started.postgres.service.url(DATABASE),
            "FAIRLINE_BROKER_URL": started.rabbitmq.service.url(),
            "FAIRLINE_QUEUE_TYPE": "classic",
            "FAIRLINE_ANONYMOUS_TENANT": TENANT,
            "FAIRLINE_API_WORKERS": "1",
            "FAIRLINE_JOB_MODULES": "loadtest.chaos.witness",
            VARIABLE: str(witness),
        }

    @property
    def names(self) -> list[str]:
        """In the order in which they are replaced."""
        return [*self.schedulers, *self.workers, *self.apis]

    def migrate(self, root: Path, *arguments: str) -> None:
        subprocess.run(
            (str(root / ".venv/bin/flask"), "--app", "app", "migrate", *arguments),
            cwd=root,
            env=self.env,
            check=True,
            capture_output=True,
        )

    def revision(self) -> str:
        return str(rows(self._engine, "SELECT version_num FROM alembic_version")[0][0])

    def replace(self, name: str, root: Path) -> None:
        """Stop a process, if it runs, and start it as the other version has it."""
        if name in self.fleet.children:
            if name in self.apis:
                self.balancer.remove(name)
            self.fleet.stop(name)
        log = self.fleet.log(f"{name}.{root.name}")
        argv, now = self._argv(name, root.name), rows(self._engine, "SELECT now()")[0][0]
        spec = ProcessSpec(
            name,
            (str(root / ".venv/bin" / argv[0]), *argv[1:]),
            env={"FAIRLINE_PORT": str(self.balancer.ports.get(name, 8000))},
            cwd=root,
            stop=(StopStep(SIGTERM, DRAIN_SECONDS),),
        )
        self.fleet.children[name] = spawn(spec, self.env, log)
        if name in self.apis:
            self.fleet.await_answer(name, f"http://127.0.0.1:{self.balancer.ports[name]}/readyz")
            self.balancer.add(name)
        else:
            # A process announces itself when it works.
            if not until(lambda: rows(self._engine, NEWCOMERS, since=now), READY_SECONDS):
                raise NotReady(f"{name} does not start:\n{tail(log)}")

    def _argv(self, name: str, version: str) -> tuple[str, ...]:
        kind, _, rest = name.partition("-")
        if kind == "api":
            return ("gunicorn", "-c", "gunicorn.conf.py", "app:create_app()")
        if kind == "scheduler":
            return ("flask", "--app", "app", "scheduler")
        pool = POOLS[rest.partition("-")[0]]
        words = (pool.concurrency, min(pool.slots, 10), f"{name}.{version}", "-Q", pool.name)
        return (*celery_worker("app", *words), "-E")
