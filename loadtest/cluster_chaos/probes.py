"""Asks PostgreSQL, RabbitMQ and the API several times a second whether they take something.

The engines are asked on each machine from within, so that their own gap is seen and not that of a
client that has to find out who leads.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import amqp
import psycopg2

from app.stack.postgres import SUPERUSER
from app.stack.spec import StackError
from loadtest.chaos.client import Api
from loadtest.chaos.load import Exchange, ExchangeLog
from loadtest.chaos.plan import UNKEYED, Order, Request
from loadtest.cluster.cluster import Cluster
from loadtest.cluster.layout import AMQP_PORT, NUMBERS, POSTGRES_PORT, USER
from loadtest.cluster.network import entered

#: A commit that the standby confirms, of nothing: it needs no table.
COMMIT = """
    SELECT CASE WHEN pg_is_in_recovery() THEN NULL
                ELSE pg_logical_emit_message(true, 'probe', '') END
"""
ENGINE_PAUSE = 0.3
#: Each of the clients sends a job so often, and waits so long for its answer.
CLIENTS, CLIENT_PAUSE, CLIENT_SECONDS = 8, 1.6, 2.5
CONNECT_SECONDS = 2
CONFIRM_SECONDS = 2.0
#: Of an engine that is away, or gives way to another; a nack is no error of AMQP's to the client.
FAILURES = (
    *(OSError, StackError, RuntimeError),
    *(psycopg2.Error, amqp.AMQPError, amqp.exceptions.MessageNacked),
)
#: Opened again by amqp if the broker has closed it.
CHANNEL = 1


class Moments:
    """When something succeeded, by several threads."""

    def __init__(self) -> None:
        self._times: list[float] = []

    def add(self) -> None:
        self._times.append(time.time())

    def ordered(self) -> list[float]:
        return sorted(self._times)


class Probes:
    """All of them, in threads."""

    def __init__(self, cluster: Cluster, log: ExchangeLog) -> None:
        self._cluster = cluster
        self._log = log
        self._over = threading.Event()
        self._numbers = iter(range(10**9))
        self.postgres = Moments()
        #: By queue: each begins with its leader on another machine.
        self.rabbitmq = {number: Moments() for number in NUMBERS}
        self.accepted = Moments()

    @contextmanager
    def running(self) -> Iterator[None]:
        work: list[Callable[[], None]] = []
        for number in NUMBERS:
            connect = partial(self._database, number)
            work.append(partial(self._ask_engine, connect, self._commit))
            for queue in (number, number % len(NUMBERS) + 1):
                connect, publish = (
                    partial(self._broker, number, queue),
                    partial(self._publish, queue),
                )
                work.append(partial(self._ask_engine, connect, publish))
        work += [partial(self._submit, client) for client in range(CLIENTS)]
        threads = [threading.Thread(target=one, daemon=True) for one in work]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._over.set()
            for thread in threads:
                thread.join(CLIENT_SECONDS + CONFIRM_SECONDS)

    def _ask_engine(self, connect: Callable[[], Any], ask: Callable[[Any], None]) -> None:
        """Ask again and again; over a new connection after each failure."""
        connection: Any = None
        while not self._over.wait(ENGINE_PAUSE):
            with suppress(*FAILURES):
                try:
                    connection = connection or connect()
                    ask(connection)
                except BaseException:
                    close(connection)
                    connection = None
                    raise
        close(connection)

    def _commit(self, connection: Any) -> None:
        with connection.cursor() as cursor:
            cursor.execute(COMMIT)
            if cursor.fetchone() != (None,):
                self.postgres.add()

    def _publish(self, queue: int, connection: Any) -> None:
        connection.channel(CHANNEL).basic_publish_confirm(
            amqp.Message("", delivery_mode=2),
            routing_key=f"probe-{queue}",
            timeout=CONFIRM_SECONDS,
            confirm_timeout=CONFIRM_SECONDS,
        )
        self.rabbitmq[queue].add()

    def _database(self, number: int) -> Any:
        machine = self._cluster.machines[number]
        with entered(machine.supervisor_pid):
            made = psycopg2.connect(
                dbname="postgres",
                user=SUPERUSER,
                password=self._cluster.layout.password,
                host=machine.address,
                port=POSTGRES_PORT,
                connect_timeout=CONNECT_SECONDS,
            )
        made.autocommit = True
        return made

    def _broker(self, number: int, queue: int) -> Any:
        machine = self._cluster.machines[number]
        made = amqp.Connection(
            f"{machine.address}:{AMQP_PORT}",
            userid=USER,
            password=self._cluster.layout.password,
            confirm_publish=True,
            connect_timeout=CONNECT_SECONDS,
            read_timeout=CONFIRM_SECONDS,
            write_timeout=CONFIRM_SECONDS,
        )
        arguments = {"x-queue-type": "quorum", "x-max-length": 100}
        if number == queue:
            arguments["x-queue-leader-locator"] = "client-local"
        try:
            with entered(machine.supervisor_pid):
                made.connect()
            with suppress(amqp.ChannelError):  # made by another one
                made.channel(CHANNEL).queue_declare(
                    f"probe-{queue}", durable=True, auto_delete=False, arguments=arguments
                )
        except BaseException:
            close(made)
            raise
        return made

    def _submit(self, client: int) -> None:
        """Submit a job again and again, and log it as any client's."""
        self._over.wait(client * CLIENT_PAUSE / CLIENTS)
        with Api(self._cluster.layout.port, seconds=CLIENT_SECONDS) as api:
            while not self._over.is_set():
                order = Order("echo", {"tag": f"{UNKEYED}-probe-{next(self._numbers)}"})
                request = Request("job", "POST", "/jobs", order.body(), None, (order,))
                sent = time.time()
                answer = api.call(request.method, request.path, request.body)
                result = (time.time(), answer.status, answer.document)
                self._log.append(Exchange(-1, 1, request, sent, *result))
                if answer.status == 202:
                    self.accepted.add()
                self._over.wait(max(0.0, sent + CLIENT_PAUSE - time.time()))


def close(connection: Any) -> None:
    """Close a connection that failed, without asking the server."""
    with suppress(Exception):
        if isinstance(connection, amqp.Connection):
            if connection.connected:  # .transport would connect
                with suppress(OSError):
                    connection.transport.sock.shutdown(socket.SHUT_RDWR)
            connection.collect()
        elif connection is not None:
            connection.close()
