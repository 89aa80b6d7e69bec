"""Startup of a stack, in order; migrations run while RabbitMQ boots."""

from __future__ import annotations

import time
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass

from app.stack.environment import queue_type
from app.stack.home import Home, make_private
from app.stack.leftovers import clear_leftovers
from app.stack.options import StackOptions
from app.stack.ports import is_taken
from app.stack.postgres import LOGIN, EmbeddedPostgres, is_starting
from app.stack.programs import STOP_SERVICE, ProgramTable, service_programs
from app.stack.rabbitmq import EmbeddedRabbitMQ, find_server
from app.stack.screen import Screen
from app.stack.services import tail
from app.stack.spec import StackError
from app.stack.supervisor import Supervisor

#: A start fails after this many deaths of a process in a row.
HOPELESS = 4
#: While it does not say that it is starting up.
POSTGRES_SECONDS = 60.0
#: What may take as long as it needs is reported after each time as long as this.
STILL_SECONDS = 60.0
#: Two starts in vain, and one with an empty data folder: see `app.stack.rabbitmq`.
RABBITMQ_SECONDS = 200.0


@dataclass(frozen=True, slots=True)
class StackServices:
    """The services to start; ``None`` where an external one, or none, is used."""

    postgres: EmbeddedPostgres | None
    rabbitmq: EmbeddedRabbitMQ | None
    database_url: str
    broker_url: str

    @property
    def for_flower(self) -> dict[str, str]:
        """Where Flower reads the queues; an external broker's own API is named by the user."""
        return {"FLOWER_BROKER_API": self.rabbitmq.api_url()} if self.rabbitmq else {}


def choose_services(options: StackOptions, home: Home) -> StackServices:
    """Embedded services unless addresses are given; RabbitMQ if it is installed."""
    postgres = None if options.database_url else EmbeddedPostgres(home.path)
    database_url = postgres.url(login=LOGIN) if postgres else options.database_url
    if options.broker_url:
        return StackServices(postgres, None, database_url, options.broker_url)
    installed = find_server() is not None
    if options.broker == "rabbitmq" and not installed:
        raise StackError(
            "BROKER=rabbitmq, but rabbitmq-server is not installed (Debian: sudo apt-get install "
            "rabbitmq-server; as root `make up BROKER=rabbitmq` installs it); BROKER=auto uses "
            "a folder instead"
        )
    if options.broker == "filesystem" or not installed:
        folder = home.path / "broker"
        make_private(folder)
        return StackServices(postgres, None, database_url, f"filesystem://{folder}")
    rabbitmq = EmbeddedRabbitMQ(home.path)
    rabbitmq.prepare()
    rabbitmq.keep_data_of(queue_type(options))
    return StackServices(postgres, rabbitmq, database_url, rabbitmq.url())


def clear_ground(options: StackOptions, home: Home, screen: Screen) -> None:
    """End what an earlier stack left in this home, then check that the ports are free."""
    if count := clear_leftovers(home):
        screen.line(f"  [yellow]![/] ended {count} processes left behind by an earlier stack")
    for name, host, port in (
        ("PORT", options.host, options.port),
        ("FLOWER_PORT", "127.0.0.1", options.flower_port),
    ):
        try:
            taken = is_taken(port, host)
        except OSError as error:
            raise StackError(f"cannot listen on port {port} of {host}: {error.strerror}") from error
        if taken:
            raise StackError(
                f"port {port} is already in use; choose another: make up {name}={port + 1}"
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
    with screen.step("Migrations"):
        # Broken off, a long one would begin again from the same place.
        if not supervisor.run_task(
            table.migrate,
            STILL_SECONDS,
            lambda seconds: screen.line(f"    the migrations still run, since {seconds:.0f} s"),
        ):
            raise StackError(f"Migrations failed; {_end_of_log(supervisor, table.migrate.name)}")
    for program, count in table.early:
        supervisor.add(program, count)
    if services.rabbitmq:
        with screen.step("RabbitMQ", services.broker_url.rpartition("@")[2].strip("/")):
            _wait(supervisor, "rabbitmq", services.rabbitmq.is_ready, RABBITMQ_SECONDS)
    for program, count in table.late:
        supervisor.add(program, count)
    with screen.step("API, scheduler, workers, Flower"):
        _wait(supervisor, "api", lambda: _is_ready(options), options.ready_seconds)


def _start_services(supervisor: Supervisor, services: StackServices, screen: Screen) -> None:
    if services.rabbitmq:
        for program in service_programs(services.rabbitmq, STOP_SERVICE):
            supervisor.add(program)
    if services.postgres:
        with screen.step("PostgreSQL"):
            services.postgres.prepare()
            for program in service_programs(services.postgres, STOP_SERVICE + 10):
                supervisor.add(program)
            _wait_for_postgres(supervisor, services.postgres, screen)
            services.postgres.create_database()
        for folder in services.postgres.opened:
            if not folder.is_relative_to(supervisor.home.path):
                screen.line(f"    [dim]{folder} can now be entered by PostgreSQL's user[/]")


def _wait_for_postgres(supervisor: Supervisor, postgres: EmbeddedPostgres, screen: Screen) -> None:
    """After a crash it may read gigabytes; given up, it would begin again from the same place."""
    started = time.monotonic()
    heard = False

    def ready() -> bool:
        nonlocal heard
        refusal = postgres.refusal()
        heard = heard or is_starting(refusal)
        return refusal is None

    def goes_on() -> bool:
        nonlocal heard
        # One that dies again and again says so too, each time before it dies.
        deaths = max(slot.restarts for slot in supervisor.slots if slot.spec.name == postgres.name)
        lives, heard = heard and deaths < HOPELESS, False
        if lives:
            seconds = time.monotonic() - started
            screen.line(
                f"    PostgreSQL is still starting, since {seconds:.0f} s, as after a crash"
            )
        return lives

    _wait(supervisor, postgres.name, ready, POSTGRES_SECONDS, goes_on)


def _wait(
    supervisor: Supervisor,
    awaited: str,
    ready: Callable[[], bool],
    seconds: float,
    goes_on: Callable[[], bool] = lambda: False,
) -> None:
    """Wait until it is ready, for that long, and again as long as ``goes_on`` says so then."""

    def hopeless() -> list[str]:
        return [s.spec.name for s in supervisor.slots if s.deaths_in_a_row >= HOPELESS]

    def ended() -> bool:
        return supervisor.wait(lambda: ready() or bool(hopeless()), seconds)

    while not (in_time := ended()) and goes_on():
        pass
    if broken := hopeless():
        raise StackError(f"{broken[0]} keeps dying; {_end_of_log(supervisor, broken[0])}")
    if not in_time:
        # Probably because of the process that died most often, if one did.
        restarts = {slot.spec.name: slot.restarts for slot in supervisor.slots if slot.restarts}
        name = max(restarts, key=restarts.__getitem__, default=awaited)
        log = _end_of_log(supervisor, name)
        raise StackError(f"{name} is not ready after {seconds:.0f} s; {log}")


def _end_of_log(supervisor: Supervisor, name: str) -> str:
    log = supervisor.home.log(name)
    return f"the end of {log}:\n{tail(log)}"


def base_url(options: StackOptions) -> str:
    host = "127.0.0.1" if options.host in ("0.0.0.0", "::", "") else options.host
    return f"http://[{host}]:{options.port}" if ":" in host else f"http://{host}:{options.port}"


def _is_ready(options: StackOptions) -> bool:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"{base_url(options)}/readyz", timeout=2.0) as response:
            return bool(response.status == 200)
    except OSError:
        return False
