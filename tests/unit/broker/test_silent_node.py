"""A worker whose first node accepts connections and never answers: it goes on to the next."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import suppress
from types import SimpleNamespace

import pytest
from celery import Celery

from app.broker.consumer import JobConsumer

CONNECT_SECONDS = 2.0
SOON_SECONDS = 4.0


def test_worker_is_soon_past_a_node_that_never_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = threading.Event()

    def shut_down() -> None:
        if ended.is_set():
            raise SystemExit

    monkeypatch.setattr("app.broker.consumer.maybe_shutdown", shut_down)
    address = ("127.0.0.1", 0)
    with socket.create_server(address) as silent, socket.create_server(address) as other:
        nodes = [f"amqp://127.0.0.1:{one.getsockname()[1]}//" for one in (silent, other)]
        celery = Celery("test", broker=nodes)
        celery.conf.broker_transport_options = {"connect_timeout": CONNECT_SECONDS}

        starting = SimpleNamespace(first_connection_attempt=True)

        def connect() -> None:
            with suppress(SystemExit):
                JobConsumer.ensure_connected(starting, celery.connection_for_read())

        worker = threading.Thread(target=connect, daemon=True)
        worker.start()
        for one in (silent, other):
            one.settimeout(30.0)
        first, _ = silent.accept()
        begun = time.monotonic()
        second, _ = other.accept()
        took = time.monotonic() - begun
        ended.set()
        for wire in (first, second):
            wire.close()
    worker.join(30.0)
    assert not worker.is_alive()
    assert took < SOON_SECONDS, "one connect timeout, and no pause within a round"
