"""The process table: the commands of the stack, how many of each, and when they stop."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from app.stack.environment import COMMANDS
from app.stack.home import Home
from app.stack.inherited import without_model_keys
from app.stack.options import StackOptions
from app.stack.postgres import EmbeddedPostgres
from app.stack.services import Service
from app.stack.spec import ProcessSpec, StopStep
from app.stack.supervisor import Program
from models.pools import POOLS, RETIRE, parse_queue

#: Stop ranks. The API first, so that nothing new comes in while workers drain; the services
#: last, as all others still write to them.
STOP_API, STOP_WORKER, STOP_SCHEDULER, STOP_FLOWER, STOP_SERVICE = 0, 1, 2, 2, 3


@dataclass(frozen=True, slots=True)
class ProgramTable:
    """Everything that runs besides the services."""

    #: Runs once, before the others.
    migrate: ProcessSpec
    #: Start as soon as the database is ready; they tolerate a broker that is still starting.
    early: Sequence[tuple[Program, int]]
    #: Start when the broker is ready too: Flower waits long between two attempts to reach it.
    late: Sequence[tuple[Program, int]]


def table(options: StackOptions, home: Home) -> ProgramTable:
    """The processes of a Fairline stack."""
    migrate, owner = ["migrate", "--tenant", "demo"], {}
    if not options.database_url:  # an external database gets no key of ours
        migrate += ["--operator-key", str(home.operator_key)]
        owner = {"FAIRLINE_OWNER_DATABASE_URL": EmbeddedPostgres(home.path).url()}
    return ProgramTable(
        migrate=ProcessSpec(
            "migrate", flask(*migrate), owner, inherits=without_model_keys, forked_from="plain"
        ),
        early=[
            (api(), 1),
            (Program("scheduler", scheduler, STOP_SCHEDULER, scalable=True), options.schedulers),
            *((worker(q, POOLS[q].slots, options, home), n) for q, n in options.workers.items()),
            *((worker(q, slots, options, home), 1) for q, slots in options.slices.items()),
        ],
        late=[
            (flower(options), 1),
            *([(autoscale(), 1)] if options.autoscale else []),
        ],
    )


def command(name: str, *arguments: str) -> tuple[str, ...]:
    """A command of this Python environment."""
    return (str(COMMANDS / name), *arguments)


def module(name: str, *arguments: str) -> tuple[str, ...]:
    """A module of this project as a command: one that imports no more than it needs."""
    return (sys.executable, "-m", name, *arguments)


def flask(*arguments: str) -> tuple[str, ...]:
    """One of the application's own commands."""
    return command("flask", "--app", "app", *arguments)


def api() -> Program:
    """The API: one gunicorn, which forks its own processes."""
    argv = command("gunicorn", "-c", "gunicorn.conf.py", "app:create_app()")
    spec = ProcessSpec("api", argv, inherits=without_model_keys, forked_from="gevent")
    return Program("api", _single(spec), STOP_API)


def scheduler(number: int) -> ProcessSpec:
    """One scheduler; the others are hot standbys."""
    argv = module("app.scheduler")
    name = f"scheduler-{number}"
    return ProcessSpec(name, argv, inherits=without_model_keys, forked_from="plain")


def worker(queue: str, slots: int, options: StackOptions, home: Home) -> Program:
    """Workers of one queue, that of a pool or of a slice, with so many slots each."""
    pool = POOLS[parse_queue(queue)[0]]

    # Stacks may share a broker, and two nodes of one name confuse remote control.
    stack = f".{home.stack_id()}" if options.broker_url else ""

    def make(number: int) -> ProcessSpec:
        name = f"worker-{queue}-{number}"
        return ProcessSpec(
            name=name,
            argv=module(
                *("app.worker", "-P", pool.concurrency, "-c", str(slots)),
                *("-Q", queue, "-n", f"{name}{stack}@%h"),
                *("-E", "--heartbeat-interval=5", "--without-gossip", "--without-mingle"),
                f"--loglevel={options.log_level}",
            ),
            stop=(
                StopStep(signal.SIGTERM, options.drain_seconds),
                StopStep(signal.SIGQUIT, 3.0),
            ),
            # No job runs longer than that: its time limit is not above the pool's.
            drain_seconds=pool.most_seconds + options.drain_seconds,
            drain_signal=RETIRE,
            forked_from="gevent" if pool.concurrency == "gevent" else "plain",
        )

    return Program(f"worker-{queue}", make, STOP_WORKER, scalable=True)


def autoscale() -> Program:
    """Passes the autoscaler's decisions to the supervisor; stops before the workers do."""
    argv = module("app.stack.autoscale")
    spec = ProcessSpec("autoscale", argv, inherits=without_model_keys, forked_from="plain")
    return Program("autoscale", _single(spec), STOP_API)


def flower(options: StackOptions) -> Program:
    """Celery's own view of the workers; loopback only, as it can shut them down."""
    address = ("--address=127.0.0.1", f"--port={options.flower_port}")
    argv = command("celery", "-A", "app", "flower", *address)
    stop = (StopStep(signal.SIGTERM, 5.0),)
    spec = ProcessSpec("flower", argv, stop=stop, inherits=without_model_keys)
    return Program("flower", _single(spec), STOP_FLOWER)


def service_programs(service: Service, rank: int) -> list[Program]:
    """The processes of a service as programs that stop in the reverse order of their start."""
    specs = service.processes()
    return [
        Program(spec.name, _single(spec), rank + len(specs) - position)
        for position, spec in enumerate(specs)
    ]


def _single(spec: ProcessSpec) -> Callable[[int], ProcessSpec]:
    return lambda _: spec
