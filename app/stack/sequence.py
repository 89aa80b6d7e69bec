"""Bringing a stack up, watching over it, taking it down.

The order is the substance: leftovers are cleared before ports are judged, ports before
anything starts; migrations run while RabbitMQ boots; nothing is called ready before
``/readyz`` says so.
"""

from __future__ import annotations

import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass

from app.stack.home import Home
from app.stack.leftovers import clear_leftovers
from app.stack.options import StackOptions
from app.stack.ports import is_taken
from app.stack.postgres import EmbeddedPostgres
from app.stack.programs import STOP_SERVICE, ProgramTable, service_programs
from app.stack.rabbitmq import EmbeddedRabbitMQ, find_server
from app.stack.screen import Screen
from app.stack.services import tail
from app.stack.supervisor import Slot, Supervisor

#: Deaths in a row after which a start is given up: it will not heal by itself.
HOPELESS = 4


class CannotStart(RuntimeError):
    """The stack did not come up; the message says why and what to do."""


@dataclass(frozen=True, slots=True)
class StackServices:
    """The services to bring along; ``None`` where somebody else runs them or none is needed."""

    postgres: EmbeddedPostgres | None
    rabbitmq: EmbeddedRabbitMQ | None
    database_url: str
    broker_url: str


def choose_services(options: StackOptions, home: Home) -> StackServices:
    """Embedded ones unless addresses are given; RabbitMQ if the machine has it."""
    postgres = None if options.database_url else EmbeddedPostgres(home.path)
    database_url = options.database_url or (postgres.url() if postgres else "")
    if options.broker_url:
        return StackServices(postgres, None, database_url, options.broker_url)
    installed = find_server() is not None
    if options.broker == "rabbitmq" and not installed:
        raise CannotStart(
            "BROKER=rabbitmq, but rabbitmq-server is not installed (Debian: sudo apt-get install "
            "rabbitmq-server; as root `make up BROKER=rabbitmq` installs it); BROKER=auto uses "
            "a folder instead"
        )
    if options.broker == "filesystem" or not installed:
        folder = home.path / "broker"
        folder.mkdir(parents=True, exist_ok=True)
        return StackServices(postgres, None, database_url, f"filesystem://{folder}")
    rabbitmq = EmbeddedRabbitMQ(home.path)
    rabbitmq.prepare()
    return StackServices(postgres, rabbitmq, database_url, rabbitmq.url())


def clear_ground(options: StackOptions, home: Home, screen: Screen) -> None:
    """End what an earlier stack left in this home, then make sure that the ports are free."""
    if count := clear_leftovers(home):
        screen.line(f"  [yellow]![/] ended {count} processes that an earlier stack left behind")
    for name, port in (("PORT", options.port), ("FLOWER_PORT", options.flower_port)):
        if is_taken(port, options.host if name == "PORT" else "127.0.0.1"):
            raise CannotStart(
                f"port {port} is taken; choose another one: make up {name}={port + 1}"
            )


def bring_up(
    supervisor: Supervisor,
    services: StackServices,
    table: ProgramTable,
    options: StackOptions,
    screen: Screen,
) -> None:
    """Start everything and return when the stack is ready."""
    _start_services(supervisor, services, screen)
    for task in table.tasks:
        with screen.step(task.title):
            if not supervisor.run_task(task.spec, task.seconds):
                log = supervisor.home.log(task.spec.name)
                raise CannotStart(f"{task.title} failed; the end of {log}:\n{tail(log)}")
    for program, count in table.early:
        supervisor.add(program, count)
    if services.rabbitmq:
        with screen.step("RabbitMQ", services.broker_url.rpartition("@")[2].strip("/")):
            _wait(supervisor, "rabbitmq", services.rabbitmq.is_ready, 60.0)
    for program, count in table.late:
        supervisor.add(program, count)
    with screen.step("API, scheduler, workers, Flower"):
        _wait(supervisor, "api", lambda: _answers_ok(ready_url(options)), options.ready_seconds)


def _start_services(supervisor: Supervisor, services: StackServices, screen: Screen) -> None:
    if services.rabbitmq:
        for program in service_programs(services.rabbitmq, STOP_SERVICE):
            supervisor.add(program)
    if services.postgres:
        with screen.step("PostgreSQL"):
            services.postgres.prepare()
            for program in service_programs(services.postgres, STOP_SERVICE + 10):
                supervisor.add(program)
            _wait(supervisor, "postgres", services.postgres.is_ready, 60.0)
            services.postgres.create_database()
        for folder in services.postgres.opened:
            if folder.is_relative_to(supervisor.home.path):
                continue
            screen.line(f"    [dim]{folder} now lets PostgreSQL's unprivileged user pass[/]")


def _wait(supervisor: Supervisor, culprit: str, ready: Callable[[], bool], seconds: float) -> None:
    def settled() -> bool:
        return ready() or _hopeless(supervisor) is not None

    in_time = supervisor.wait(settled, seconds)
    broken = _hopeless(supervisor)
    if broken or not in_time:
        name = broken.spec.name if broken else _suspect(supervisor, culprit)
        log = supervisor.home.log(name)
        reason = "keeps dying" if broken else f"is not ready after {seconds:.0f} s"
        raise CannotStart(f"{name} {reason}; the end of {log}:\n{tail(log)}")


def _hopeless(supervisor: Supervisor) -> Slot | None:
    return next((slot for slot in supervisor.slots if slot.deaths_in_a_row >= HOPELESS), None)


def _suspect(supervisor: Supervisor, default: str) -> str:
    """The process that died most often, else the one that was waited for."""
    slots = sorted(supervisor.slots, key=lambda slot: slot.restarts)
    return slots[-1].spec.name if slots and slots[-1].restarts else default


def ready_url(options: StackOptions) -> str:
    """Where the stack tells whether a submitted job would run."""
    return f"http://{reachable(options.host)}:{options.port}/readyz"


def reachable(host: str) -> str:
    """The address to call for a server that listens on `host`."""
    return "127.0.0.1" if host in ("0.0.0.0", "::", "") else host


def _answers_ok(url: str) -> bool:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=2.0) as response:
            return bool(response.status == 200)
    except (urllib.error.URLError, OSError):
        return False
