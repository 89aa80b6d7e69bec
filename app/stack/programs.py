"""The process table: which commands make up the stack, how many of each, who stops when."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from app.stack.home import Home
from app.stack.leftovers import STACK_VARIABLE
from app.stack.options import StackOptions
from app.stack.services import Service
from app.stack.spec import ProcessSpec, StopStep
from app.stack.supervisor import Program
from models.pools import POOLS, parse_queue
from models.settings import Pool
from models.signals import RETIRE

#: Where the commands of this environment are; not resolved, so a virtual one stays itself.
COMMANDS = Path(sys.executable).parent

#: Who stops when. The front door first, so that nothing new comes in while workers drain; the
#: services last, as everybody else still writes to them.
STOP_API, STOP_WORKER, STOP_SCHEDULER, STOP_FLOWER, STOP_SERVICE = 0, 1, 2, 2, 3


@dataclass(frozen=True, slots=True)
class Task:
    """A command that runs once, before the programs."""

    title: str
    spec: ProcessSpec
    seconds: float = 120.0


@dataclass(frozen=True, slots=True)
class ProgramTable:
    """Everything that runs besides the services."""

    tasks: Sequence[Task]
    #: Start as soon as the database is there; they can bear a broker that is still starting.
    early: Sequence[tuple[Program, int]]
    #: Start when the broker is ready too.
    late: Sequence[tuple[Program, int]]


def environment(
    options: StackOptions, home: Home, database_url: str, broker_url: str
) -> dict[str, str]:
    """What every process of the stack is told."""
    return {
        **os.environ,
        "PATH": f"{COMMANDS}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
        "PYTHONUNBUFFERED": "1",
        STACK_VARIABLE: home.stack_id(),
        "FAIRLINE_HOME": str(home.path),
        "FAIRLINE_DATABASE_URL": database_url,
        "FAIRLINE_BROKER_URL": broker_url,
        "FAIRLINE_QUEUE_TYPE": queue_type(options),
        "FAIRLINE_BLOB_URL": options.blob_url or str(home.blobs),
        "FAIRLINE_HOST": options.host,
        "FAIRLINE_PORT": str(options.port),
        "FAIRLINE_API_WORKERS": str(options.api_workers),
        "FAIRLINE_SERVED_POOLS": ",".join(p for p, count in options.workers.items() if count),
        "FAIRLINE_ANONYMOUS_TENANT": anonymous_tenant(options),
        "FAIRLINE_CONSOLE_OPEN": console_open(options),
        "FAIRLINE_FLOWER_URL": flower_url(options),
        **({"FAIRLINE_SCALE_MIN": json.dumps(options.least)} if options.autoscale else {}),
    }


def queue_type(options: StackOptions) -> str:
    """Classic on the embedded broker, where one node gains nothing from a quorum of itself."""
    given = os.environ.get("FAIRLINE_QUEUE_TYPE")
    return given or ("quorum" if options.broker_url else "classic")


def anonymous_tenant(options: StackOptions) -> str:
    """Who a caller without a key is: somebody only where the database is the stack's own."""
    given = os.environ.get("FAIRLINE_ANONYMOUS_TENANT")
    return given if given is not None else "" if options.database_url else "demo"


def console_open(options: StackOptions) -> str:
    """Whether who sits at the machine needs a key: not where the database is the stack's own."""
    return os.environ.get("FAIRLINE_CONSOLE_OPEN", "false" if options.database_url else "true")


def flower_url(options: StackOptions) -> str:
    """Where a browser on this machine finds Flower."""
    return os.environ.get("FAIRLINE_FLOWER_URL", f"http://localhost:{options.flower_port}")


def table(options: StackOptions, home: Home) -> ProgramTable:
    """The processes of a Fairline."""
    return ProgramTable(
        tasks=[
            Task(
                "Migrations", ProcessSpec("migrate", flask("migrate", *first_rows(options, home)))
            ),
        ],
        early=[
            (api(), 1),
            (Program("scheduler", scheduler, STOP_SCHEDULER, scalable=True), options.schedulers),
        ],
        late=[
            *((worker(pool, options, home), options.workers[pool]) for pool in options.workers),
            *((slice_worker(queue, n, options, home), 1) for queue, n in options.slices.items()),
            (flower(options), 1),
            *([(autoscale(), 1)] if options.autoscale else []),
        ],
    )


def first_rows(options: StackOptions, home: Home) -> tuple[str, ...]:
    """What there is to try it with; a database of somebody else's gets no key of ours."""
    tenant = ("--tenant", "demo")
    return tenant if options.database_url else (*tenant, "--operator-key", str(home.operator_key))


def command(name: str, *arguments: str) -> tuple[str, ...]:
    """A command of this Python environment."""
    return (str(COMMANDS / name), *arguments)


def flask(*arguments: str) -> tuple[str, ...]:
    """One of the application's own commands."""
    return command("flask", "--app", "app", *arguments)


def api() -> Program:
    """The front door: one gunicorn, which forks its own processes."""
    spec = ProcessSpec("api", command("gunicorn", "-c", "gunicorn.conf.py", "app:create_app()"))
    return Program("api", lambda _: spec, STOP_API)


def scheduler(number: int) -> ProcessSpec:
    """One scheduler; the others are its hot standbys."""
    return ProcessSpec(f"scheduler-{number}", flask("scheduler"))


def worker(pool: str, options: StackOptions, home: Home) -> Program:
    """Workers of one pool."""
    return worker_of(pool, POOLS[pool], POOLS[pool].slots, options, home)


def slice_worker(queue: str, slots: int, options: StackOptions, home: Home) -> Program:
    """Workers of a slice, each with so many slots: of the pool's kind, for some tenants only."""
    return worker_of(queue, POOLS[parse_queue(queue)[0]], slots, options, home)


def worker_of(queue: str, pool: Pool, slots: int, options: StackOptions, home: Home) -> Program:
    """Workers that serve one queue."""

    # Stacks may share a broker, and two nodes of one name confuse remote control.
    stack = f".{home.stack_id()}" if options.broker_url else ""

    def make(number: int) -> ProcessSpec:
        name = f"worker-{queue}-{number}"
        return ProcessSpec(
            name=name,
            argv=command(
                *("celery", "-A", "app", "worker", "-P", pool.concurrency, "-c", str(slots)),
                *("-Q", queue, "-n", f"{name}{stack}@%h"),
                *("-E", "--without-gossip", "--without-mingle", f"--loglevel={options.log_level}"),
            ),
            stop=(
                StopStep(signal.SIGTERM, options.drain_seconds),
                StopStep(signal.SIGQUIT, 3.0),
            ),
            # No job runs longer than that: its time limit is not above the pool's.
            patience_seconds=pool.most_seconds + options.drain_seconds,
            patience_signal=RETIRE,
        )

    return Program(f"worker-{queue}", make, STOP_WORKER, scalable=True)


def autoscale() -> Program:
    """Who tells the supervisor what the autoscaler wants; stops before the workers do."""
    spec = ProcessSpec("autoscale", (sys.executable, "-m", "app.stack.autoscale"))
    return Program("autoscale", lambda _: spec, STOP_API)


def flower(options: StackOptions) -> Program:
    """Celery's own view of the workers; loopback only, as it can shut them down."""
    spec = ProcessSpec(
        "flower",
        command(
            *("celery", "-A", "app", "flower"),
            *("--address=127.0.0.1", f"--port={options.flower_port}"),
        ),
        stop=(StopStep(signal.SIGTERM, 5.0),),
    )
    return Program("flower", lambda _: spec, STOP_FLOWER)


def service_programs(service: Service, rank: int) -> list[Program]:
    """The processes of a service as programs that stop in the reverse order of their start."""
    specs = service.processes()
    return [
        Program(spec.name, _always(spec), rank + len(specs) - position)
        for position, spec in enumerate(specs)
    ]


def _always(spec: ProcessSpec) -> Callable[[int], ProcessSpec]:
    return lambda _: spec
