"""Faults of the services and of the machine under a stack, each for as long as a block lasts."""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress

import psutil
import psycopg2
from kombu import Connection
from kombu.exceptions import OperationalError

from app.stack.postgres import AdminConnection, EmbeddedPostgres
from app.stack.rabbitmq import EmbeddedRabbitMQ, find_server
from loadtest.chaos.disk import DISK_BYTES, resize
from loadtest.chaos.stack import Stack
from loadtest.figures import family
from loadtest.fleet import until
from models.pools import POOLS

#: Of the jobs that matter at the moment, a few.
LOCK_ROWS = """
    SELECT id FROM jobs WHERE status IN ('queued', 'dispatched', 'running')
    ORDER BY random() LIMIT 5 FOR UPDATE
"""
#: What a plain CREATE INDEX takes.
LOCK_TABLE = "LOCK TABLE jobs IN SHARE MODE"
TERMINATE = """
    SELECT pg_terminate_backend(pid) FROM pg_stat_activity
    WHERE datname = current_database() AND pid <> pg_backend_pid()
"""
TERMINATE_EVERY_SECONDS = 0.3
#: A slow server works for a moment, then does nothing for another.
WORK_SECONDS, PAUSE_SECONDS = 0.1, 0.7
#: The end of a fault may have to wait for a server that another hit has killed.
RECOVER_SECONDS = 90.0


class FaultFailed(RuntimeError):
    """The fault could not begin, as what it needs is away."""


@contextmanager
def session(stack: Stack) -> Iterator[psycopg2.extensions.connection]:
    """A connection to the stack's database without any limit."""
    url = EmbeddedPostgres(stack.home.path).url().replace("+psycopg2", "", 1)
    try:
        connection = psycopg2.connect(url, connection_factory=AdminConnection)
    except psycopg2.Error as error:
        raise FaultFailed(str(error)) from error
    try:
        yield connection
    finally:
        with suppress(psycopg2.Error):
            connection.close()


@contextmanager
def locks(stack: Stack, statement: str) -> Iterator[int]:
    """A transaction that holds locks."""
    with session(stack) as connection:
        try:
            with connection.cursor() as cursor:
                cursor.execute("SET lock_timeout = '5s'")
                cursor.execute(statement)
        except psycopg2.Error as error:
            raise FaultFailed(str(error)) from error
        yield server(stack, "postgres")


@contextmanager
def terminated_backends(stack: Stack) -> Iterator[int]:
    """Every connection is ended, again and again."""
    with repeating(lambda: administer(stack, TERMINATE), TERMINATE_EVERY_SECONDS):
        yield server(stack, "postgres")


@contextmanager
def read_only(stack: Stack) -> Iterator[int]:
    """Every new transaction is read-only, as on a primary that was demoted."""
    if not administer(stack, *set_read_only("on")):
        raise FaultFailed("the database is away")
    try:
        yield server(stack, "postgres")
    finally:
        until(lambda: administer(stack, *set_read_only("off")), RECOVER_SECONDS, "a way back")


def set_read_only(value: str) -> tuple[str, ...]:
    """The statements; the session that sends them stays writable."""
    return (
        "SET default_transaction_read_only = off",
        f"ALTER SYSTEM SET default_transaction_read_only = {value}",
        "SELECT pg_reload_conf()",
    )


def administer(stack: Stack, *statements: str) -> bool:
    """Execute statements one by one; false if the database is away."""
    try:
        with session(stack) as connection:
            connection.autocommit = True
            with connection.cursor() as cursor:
                for statement in statements:
                    cursor.execute(statement)
    except (psycopg2.Error, FaultFailed):
        return False
    return True


@contextmanager
def slow(stack: Stack, service: str) -> Iterator[int]:
    """A server that mostly does nothing, as on a disk that is overloaded."""
    pid = server(stack, service)

    def pause() -> None:
        processes = list(family([pid]))
        for process in processes:
            with suppress(psutil.Error):
                process.suspend()
        time.sleep(PAUSE_SECONDS)
        for process in processes:
            with suppress(psutil.Error):
                process.resume()

    with repeating(pause, WORK_SECONDS):
        yield pid


@contextmanager
def memory_alarm(stack: Stack) -> Iterator[int]:
    """RabbitMQ takes no message from anybody."""
    pid = server(stack, "rabbitmq")
    rabbitmqctl(stack, "set_vm_memory_high_watermark", "0.00001")
    try:
        yield pid
    finally:
        # A node that was killed meanwhile starts with its usual limit.
        with suppress(FaultFailed):
            rabbitmqctl(stack, "set_vm_memory_high_watermark", "absolute", "1GB")


def rabbitmqctl(stack: Stack, *arguments: str) -> None:
    node, found = EmbeddedRabbitMQ(stack.home.path), find_server()
    if found is None:
        raise FaultFailed("rabbitmqctl is not installed")
    done = subprocess.run(
        (str(found.with_name("rabbitmqctl")), *arguments),
        env={**stack.environment, **node.environment()},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    if done.returncode:
        raise FaultFailed(done.stderr[-500:])


@contextmanager
def queues(stack: Stack, act: str) -> Iterator[int]:
    """Every queue of the stack is purged or deleted once."""
    pid = server(stack, "rabbitmq")
    try:
        with Connection(EmbeddedRabbitMQ(stack.home.path).url(), connect_timeout=5) as connection:
            channel = connection.channel()
            for pool in POOLS:
                getattr(channel, act)(pool)
    except (OSError, OperationalError, *connection.channel_errors) as error:
        raise FaultFailed(str(error)) from error
    yield pid


@contextmanager
def full_disk(stack: Stack) -> Iterator[int]:
    """No room is left on the stack's disk, which must be one of its own."""
    disk = stack.home.path
    if not disk.is_mount():
        raise FaultFailed("it needs a file system of its own, and root to mount it")
    pid = server(stack, "postgres")
    until(lambda: resize(disk, psutil.disk_usage(str(disk)).used), RECOVER_SECONDS, "a full disk")
    try:
        yield pid
    finally:
        resize(disk, DISK_BYTES)


def server(stack: Stack, name: str) -> int:
    try:
        return stack.pid(name)
    except KeyError as error:
        raise FaultFailed(f"{name} is away") from error


@contextmanager
def repeating(act: Callable[[], object], pause: float) -> Iterator[None]:
    """Does ``act`` again and again while the block lasts."""
    over = threading.Event()

    def repeat() -> None:
        while not over.is_set():
            act()
            over.wait(pause)

    thread = threading.Thread(target=repeat)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


#: By name; each gives the pid of the server that it hits.
FAULTS: dict[str, Callable[[Stack], AbstractContextManager[int]]] = {
    "row-locks": lambda stack: locks(stack, LOCK_ROWS),
    "table-lock": lambda stack: locks(stack, LOCK_TABLE),
    "terminated-backends": terminated_backends,
    "read-only": read_only,
    "slow-postgres": lambda stack: slow(stack, "postgres"),
    "slow-rabbitmq": lambda stack: slow(stack, "rabbitmq"),
    "memory-alarm": memory_alarm,
    "purged-queues": lambda stack: queues(stack, "queue_purge"),
    "deleted-queues": lambda stack: queues(stack, "queue_delete"),
    "full-disk": full_disk,
}
