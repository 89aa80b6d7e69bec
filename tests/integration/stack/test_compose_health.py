"""The health check of schedulers and workers, in docker-compose.yml and in the chart."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.parse import quote

import pytest
from sqlalchemy import Engine

from app.stack.postgres import PORT
from models.alive import LOST_SECONDS, connection_of
from models.presence import PRESENCE_LOST_SECONDS, Presence, announce, process_name
from models.settings import DatabaseSettings
from models.store.session import execute, open_engine
from tests import ROOT
from tests.support.compose import read_compose
from tests.support.standby import ask, replicated


def passes(database_url: str, *arguments: str) -> bool:
    environment = {**os.environ, "FAIRLINE_DATABASE_URL": database_url}
    words = (sys.executable, *arguments)
    return not subprocess.run(
        words, cwd=ROOT, env=environment, check=False, capture_output=True
    ).returncode


def test_only_a_process_that_reports_from_this_container_is_healthy(
    engine: Engine, database_url: str
) -> None:
    services = read_compose({})["services"]

    def is_healthy(service: str) -> bool:
        _, _, *arguments = services[service]["healthcheck"]["test"]
        return passes(database_url, *arguments)

    assert not is_healthy("worker") and not is_healthy("scheduler")
    announce(engine, Presence("worker-medium@elsewhere:abcdef:1", "worker", ["medium"]))
    assert not is_healthy("worker")
    starting = ("-m", "models.alive", "--starting", "worker", "medium")
    assert not passes(database_url, *starting), "the database answers"
    announce(engine, Presence(process_name("worker-medium"), "worker", ["medium"]))
    assert is_healthy("worker")
    assert not is_healthy("worker-long") and not is_healthy("scheduler")
    execute(engine, "UPDATE processes SET heartbeat_at = now() - interval '1 min'", {})
    assert not is_healthy("worker")


def test_a_process_is_restarted_only_if_it_is_silent_while_others_report(
    engine: Engine, database_url: str
) -> None:
    def is_hung() -> bool:
        return not passes(database_url, "-m", "models.alive", "--hung", "worker", "medium")

    announce(engine, Presence(process_name("worker-medium"), "worker", ["medium"]))
    announce(engine, Presence("scheduler@elsewhere:abcdef:1", "scheduler"))
    assert not is_hung()
    age = "UPDATE processes SET heartbeat_at = now() - %(age)s::interval WHERE kind = %(kind)s"
    execute(engine, age, {"age": "-5 min", "kind": "scheduler"})  # a probe may take its time here
    execute(engine, age, {"age": "30 s", "kind": "worker"})
    assert not is_hung(), "half a minute may be a lock, or a failover"
    execute(engine, age, {"age": "70 s", "kind": "worker"})
    assert is_hung()
    execute(engine, age, {"age": "70 s", "kind": "scheduler"})
    assert not is_hung(), "nobody can write"


@contextmanager
def silent_server() -> Iterator[int]:
    """A server that takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        stop = threading.Event()
        taken = []

        def take() -> None:
            server.settimeout(0.1)
            while not stop.is_set():
                try:
                    taken.append(server.accept()[0])
                except TimeoutError:
                    continue

        taker = threading.Thread(target=take)
        taker.start()
        try:
            yield server.getsockname()[1]
        finally:
            stop.set()
            taker.join()
            for connection in taken:
                connection.close()


def test_a_database_that_does_not_answer_restarts_nothing() -> None:
    hung = ("-m", "models.alive", "--hung", "worker", "medium")
    with silent_server() as port:
        started = time.monotonic()
        assert passes(f"postgresql+psycopg2://fairline@127.0.0.1:{port}/fairline", *hung)
        assert time.monotonic() - started < 14, "the probe has 15 s"
    assert passes(f"postgresql+psycopg2://fairline@127.0.0.1:{port}/fairline", *hung), "refused"
    starting = tuple(word.replace("--hung", "--starting") for word in hung)
    assert passes(f"postgresql+psycopg2://fairline@127.0.0.1:{port}/fairline", *starting)
    alive = hung[:2] + hung[3:]
    assert not passes(f"postgresql+psycopg2://fairline@127.0.0.1:{port}/fairline", *alive)


def test_a_process_is_lost_after_the_same_time_for_everybody() -> None:
    assert LOST_SECONDS == PRESENCE_LOST_SECONDS


@pytest.mark.parametrize(
    ("url", "host", "port"),
    [
        ("u:p@a:1,b:2,c:3/d", "a,b,c", "1,2,3"),
        ("u:p@/d?host=a:1&host=b:2&host=c:3", "a,b,c", "1,2,3"),
        ("u:p@/d?host=a%3A1,b%3A2,c%3A3", "a,b,c", "1,2,3"),
        ("u:p@/d?host=a,b,c&port=5432", "a,b,c", "5432,5432,5432"),
        ("u:p@a:1/d?target_session_attrs=primary", "a", "1"),
    ],
)
def test_every_form_of_url_is_read_as_all_processes_read_it(url: str, host: str, port: str) -> None:
    found = connection_of(f"postgresql+psycopg2://{url}")
    assert (found["host"], str(found["port"])) == (host, port)
    assert (found["user"], found["password"], found["dbname"]) == ("u", "p", "d")
    assert found["target_session_attrs"] == ("primary" if "primary" in url else "read-write")
    assert found["connect_timeout"] == (2 if "b" in host else 6)


def test_the_primary_is_asked_wherever_it_is_named(tmp_path: Path) -> None:
    with replicated(tmp_path) as pair, ExitStack() as stack:
        pair.catch_up()
        ask(pair.standby, "SELECT pg_wal_replay_pause()")  # it knows less than the primary
        engine = open_engine(DatabaseSettings(database_url=pair.primary.service.url()))
        announce(engine, Presence(process_name("worker-medium"), "worker", ["medium"]))
        execute(engine, "UPDATE processes SET heartbeat_at = now() + interval '5 min'", {})
        engine.dispose()
        first, second = (quote(str(one.service.sockets)) for one in (pair.standby, pair.primary))
        start = pair.url().partition("host=")[0]
        alive = ("-m", "models.alive", "worker", "medium")
        assert passes(f"{start}host={first},{second}", *alive)
        dead = [stack.enter_context(silent_server()) for _ in range(2)]
        ports = ",".join(map(str, (*dead, PORT)))
        hosts = f"{'127.0.0.1,' * len(dead)}{second}"
        assert passes(f"{start}host={hosts}&port={ports}", *alive), "two are dead"
