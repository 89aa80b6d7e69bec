"""Workers whose broker was away: how soon they are back, and what must not keep them."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections import deque
from contextlib import ExitStack, suppress
from pathlib import Path
from types import SimpleNamespace

import kombu
import pytest
from amqp.exceptions import AccessRefused, InternalError, NotAllowed
from celery.bootsteps import CLOSE, RUN
from kombu.utils import functional

from app.broker.consumer import JobConsumer
from app.celery import celery
from app.stack.ports import free_port
from app.stack.rabbitmq import EmbeddedRabbitMQ
from app.stack.services import Running
from tests.support.broker_stack import broker_stack
from tests.support.commands import BIN
from tests.support.database_fixture import DatabaseFixture
from tests.support.waiting import wait_for

POOLS = ("medium", "long")


def test_all_nodes_are_tried_every_second_and_reported_now_and_then(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """However long they have been away."""
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 240:
            raise KeyboardInterrupt

    monkeypatch.setattr(functional, "sleep", sleep)
    consumer = JobConsumer.__new__(JobConsumer)
    consumer.app = celery
    urls = [f"amqp://guest:secret@127.0.0.1:{free_port()}//" for _ in range(3)]
    with pytest.raises(KeyboardInterrupt):
        consumer.ensure_connected(kombu.Connection(urls))
    assert max(slept) <= 1.0 and sum(slept) > 60
    told = [record.message for record in caplog.records]
    assert len(told) < 30 and len(set(told)) == 3
    assert "secret" not in str(told)


class Refusing(kombu.Connection):
    """A connection to two nodes, of which one refuses its user and the other takes it."""

    refused: tuple[Exception, ...] = (AccessRefused("403"), NotAllowed("530"), InternalError("541"))

    def _connection_factory(self) -> object:
        if self.hostname == "wiped":
            left, type(self).refused = self.refused[0], self.refused[1:]
            raise left
        self._connection = SimpleNamespace(sock=None, connected=True)
        return self._connection


def test_a_node_that_refuses_the_user_is_passed_over(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As one does that was wiped, until it has joined the others."""
    monkeypatch.setattr("app.broker.consumer.time.sleep", lambda _: None)
    consumer = JobConsumer.__new__(JobConsumer)
    consumer.app = celery
    for _ in Refusing.refused:
        connection = Refusing(  # type: ignore[no-untyped-call]  # kombu's
            ["amqp://guest:secret@wiped//", "amqp://guest:secret@good//"]
        )
        consumer.ensure_connected(connection)
        assert connection.hostname == "good"
    assert len(caplog.records) == 3 and "secret" not in caplog.text


def test_a_connection_that_a_write_found_lost_is_noticed(
    rabbitmq: Running[EmbeddedRabbitMQ],
) -> None:
    """As by an acknowledgement after a freeze: kombu opens another one, without a consumer."""
    consumer = JobConsumer.__new__(JobConsumer)
    consumer.hub, consumer._pending_operations = None, deque()
    consumer.blueprint = SimpleNamespace(state=RUN)
    with kombu.Connection(rabbitmq.service.url()) as connection:
        consumer.task_consumer = connection.Consumer()
        channel = consumer.task_consumer.channel
        consumer.perform_pending_operations()
        lost = connection.connection
        lost.sock.shutdown(socket.SHUT_RDWR)
        with pytest.raises((BrokenPipeError, ConnectionResetError)):
            channel.basic_ack(1)
        with pytest.raises(ConnectionResetError):
            consumer.perform_pending_operations()
        with suppress(socket.timeout):
            connection.drain_events(timeout=0.2)
        assert connection.connected
        with pytest.raises(ConnectionResetError):
            consumer.perform_pending_operations()
        consumer.blueprint.state = CLOSE
        consumer.perform_pending_operations()
        lost.collect()


@pytest.mark.parametrize("pool", ["gevent", "prefork"])
def test_a_worker_without_its_broker_stops_as_it_does_with_it(
    database: DatabaseFixture, tmp_path: Path, pool: str
) -> None:
    """It writes what is pending and leaves; jobs that it was given would be reaped otherwise."""
    url, log = database.engine.url.render_as_string(hide_password=False), tmp_path / "log"
    settings = {
        "FAIRLINE_BROKER_URL": f"amqp://guest:guest@127.0.0.1:{free_port()}//",
        "FAIRLINE_DATABASE_URL": url,
        "FAIRLINE_BLOB_URL": str(tmp_path),
    }
    with log.open("wb") as written:
        worker = subprocess.Popen(
            (sys.executable, "-m", "app.worker", "-P", pool, "-c", "1", "-Q", "medium"),
            env={**os.environ, **settings},
            stdout=written,
            stderr=written,
        )
    try:
        present = "SELECT 1 FROM processes WHERE kind = 'worker'"
        wait_for(lambda: bool(database.query(present)), 60)
        wait_for(lambda: "cannot connect" in log.read_text(), 60)
        worker.terminate()
        worker.wait(60)
    finally:
        worker.kill()
        worker.wait()
    assert "Traceback" not in log.read_text()
    assert worker.returncode == 0 and not database.query(present)


def test_a_control_queue_that_is_locked_keeps_no_worker_from_its_jobs(
    database: DatabaseFixture, rabbitmq: Running[EmbeddedRabbitMQ], tmp_path: Path
) -> None:
    """As one whose node was lost may be until that node is back."""
    names = [f"worker-{pool}-{os.getpid()}@{socket.gethostname()}" for pool in POOLS]
    with ExitStack() as stack:
        other = stack.enter_context(kombu.Connection(rabbitmq.service.url()))
        for name in names:
            kombu.Queue(f"{name}.celery.pidbox", exclusive=True, durable=False, auto_delete=True)(
                other.default_channel
            ).queue_declare()
        stack.enter_context(broker_stack(database, rabbitmq.service, tmp_path, *POOLS))
        answer = subprocess.run(
            (str(BIN / "celery"), "-A", "app", "inspect", "ping", "-t", "5"),
            env={**os.environ, "FAIRLINE_BROKER_URL": rabbitmq.service.url()},
            capture_output=True,
            text=True,
            check=False,
        )
        assert all(f"{name}: OK" in answer.stdout for name in names), answer
