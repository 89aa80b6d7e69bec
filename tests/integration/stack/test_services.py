"""The embedded services, alone."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import kombu
import psycopg2
import pytest
import sqlalchemy
from amqp import AccessRefused

from app.stack.home import drop_socket_folder
from app.stack.identity import processes_in
from app.stack.postgres import EmbeddedPostgres
from app.stack.rabbitmq import EmbeddedRabbitMQ, find_server
from app.stack.services import Running, running
from app.stack.spec import StackError
from app.stack.supervisor import Program, Supervisor
from models.store.session import _wait_callback


@pytest.fixture
def postgres(tmp_path: Path) -> Iterator[Running[EmbeddedPostgres]]:
    service = EmbeddedPostgres(tmp_path, {"shared_buffers": "16MB"})
    with running(service, tmp_path / "logs") as server:
        service.create_database()
        yield server


@pytest.fixture
def rabbitmq(tmp_path: Path) -> Iterator[Running[EmbeddedRabbitMQ]]:
    if find_server() is None:
        if os.environ.get("CI"):
            pytest.fail("rabbitmq-server is not installed")
        pytest.skip("rabbitmq-server is not installed")
    with running(EmbeddedRabbitMQ(tmp_path), tmp_path / "logs") as server:
        yield server


def query(service: EmbeddedPostgres, statement: str) -> object:
    engine = sqlalchemy.create_engine(service.url())
    try:
        with engine.begin() as connection:
            result = connection.exec_driver_sql(statement)
            return result.scalar() if result.returns_rows else None
    finally:
        engine.dispose()


def test_postgres_keeps_its_promise_of_durability(postgres: Running[EmbeddedPostgres]) -> None:
    for setting in ("fsync", "synchronous_commit", "full_page_writes"):
        assert query(postgres.service, f"SHOW {setting}") == "on"


def test_committed_row_survives_a_kill_under_load(postgres: Running[EmbeddedPostgres]) -> None:
    service = postgres.service
    query(service, "CREATE TABLE kept (id int)")
    query(service, "INSERT INTO kept VALUES (1)")

    def compute() -> None:
        connection = psycopg2.connect(host=str(service.sockets), user="postgres", dbname="fairline")
        with pytest.raises(psycopg2.OperationalError):
            connection.cursor().execute("SELECT count(*) FROM generate_series(1, 2000000000)")

    busy = threading.Thread(target=compute)
    busy.start()
    while query(service, "SELECT count(*) FROM pg_stat_activity WHERE state = 'active'") != 2:
        time.sleep(0.02)
    postgres.kill()
    started = time.monotonic()
    postgres.start()
    assert time.monotonic() - started < 30, "it waits for a killed statement"
    busy.join()
    assert query(service, "SELECT id FROM kept") == 1


def test_stopped_postgres_leaves_no_process(tmp_path: Path) -> None:
    service = EmbeddedPostgres(tmp_path, {"shared_buffers": "16MB"})
    with running(service, tmp_path / "logs"):
        assert processes_in(service.data)
    assert processes_in(service.data) == []


def test_interrupted_initdb_is_made_up_for(tmp_path: Path) -> None:
    service = EmbeddedPostgres(tmp_path)
    (service.folder / "data.new" / "half").mkdir(parents=True)
    service.prepare()
    assert (service.data / "PG_VERSION").exists()


def test_failed_start_tells_the_end_of_the_log(tmp_path: Path) -> None:
    service = EmbeddedPostgres(tmp_path, {"shared_buffers": "nonsense"})
    with pytest.raises(StackError, match="shared_buffers"), running(service, tmp_path / "logs"):
        pass


def test_deep_home_does_not_matter(tmp_path: Path) -> None:
    service = EmbeddedPostgres(tmp_path / ("deep" * 30), {"shared_buffers": "16MB"})
    with running(service, tmp_path / "logs"):
        assert service.is_ready()
    drop_socket_folder(service.sockets)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has to give up its rights")
def test_closed_folder_above_lets_the_server_pass_and_nobody_else(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    service = EmbeddedPostgres(closed / "home", {"shared_buffers": "16MB"})
    with running(service, tmp_path / "logs"):
        assert closed in service.opened
    assert closed.stat().st_mode & 0o007 == 0


def test_message_survives_a_kill_of_rabbitmq(rabbitmq: Running[EmbeddedRabbitMQ]) -> None:
    queue = kombu.Queue("kept", kombu.Exchange("kept"), durable=True)
    with kombu.Connection(
        rabbitmq.service.url(), transport_options={"confirm_publish": True}
    ) as connection:
        producer = connection.Producer()
        producer.publish({}, exchange=queue.exchange, declare=[queue], delivery_mode=2)
    rabbitmq.kill()
    assert not rabbitmq.service.is_ready()
    rabbitmq.start()
    with kombu.Connection(rabbitmq.service.url()) as connection:
        assert queue(connection).queue_declare(passive=True).message_count == 1


def test_looking_whether_rabbitmq_answers_leaves_its_log_alone(
    rabbitmq: Running[EmbeddedRabbitMQ], tmp_path: Path
) -> None:
    for _ in range(3):
        assert rabbitmq.service.is_ready()
    port = rabbitmq.service.ports["amqp"]
    with pytest.raises(AccessRefused):
        kombu.Connection(f"amqp://guest:wrong@127.0.0.1:{port}//").connect()
    # What is refused is still told, and later than what the checks would have left.
    log = tmp_path / "logs" / "rabbitmq.log"
    deadline = time.monotonic() + 10
    while "[error]" not in log.read_text() and time.monotonic() < deadline:
        time.sleep(0.1)
    text = log.read_text()
    assert "[error]" in text and "client unexpectedly closed" not in text


@pytest.mark.long
def test_rabbitmq_that_hangs_over_unreadable_queues_starts_without_them(
    rabbitmq: Running[EmbeddedRabbitMQ], tmp_path: Path
) -> None:
    service, confirmed = rabbitmq.service, {"confirm_publish": True}
    with kombu.Connection(service.url(), transport_options=confirmed) as connection:
        connection.SimpleQueue("jobs").put("work")
    rabbitmq.kill()
    # Deliveries and acknowledgements of a message that was never published: what a full disk may
    # leave. The node logs a crash report, stays alive, and never opens its port.
    [journal] = (service.folder / "mnesia").rglob("journal.jif")
    with journal.open("ab") as file:
        file.write((b"\x80" + bytes(7)) * 3 + (b"\xc0" + bytes(7)) * 3)
    reports: list[str] = []
    supervisor = Supervisor(service.home, os.environ, reports.append)
    mapper, node = service.processes()
    for spec in (mapper, replace(node, unready_seconds=15.0)):
        supervisor.add(Program(spec.name, lambda _, spec=spec: spec, stop_rank=0))
    try:
        supervisor.tick()
        supervisor.slots[-1].unready_since -= 20.0  # As if it had hung before, which saves time.
        assert supervisor.wait(service.is_ready, 120.0), reports
        with kombu.Connection(service.url()) as connection:
            queue = connection.SimpleQueue("jobs")
            queue.put("more work")
            assert queue.get(timeout=10).payload == "more work"
    finally:
        supervisor.stop_all()
    assert "rabbitmq was not ready for 15 s: killed" in reports
    assert (service.folder / "mnesia.unreadable").is_dir()


def test_stopped_rabbitmq_leaves_no_process(rabbitmq: Running[EmbeddedRabbitMQ]) -> None:
    assert processes_in(rabbitmq.service.folder)
    rabbitmq.stop()
    deadline = time.monotonic() + 5
    while processes_in(rabbitmq.service.folder) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert processes_in(rabbitmq.service.folder) == []


def test_dropping_a_database_waits_for_a_slow_checkpoint(
    postgres: Running[EmbeddedPostgres],
) -> None:
    # The limit of statements is the whole process's; a loaded disk makes a checkpoint slower.
    service = postgres.service
    service.create_database("spare")
    checkpointer = query(
        service, "SELECT pid FROM pg_stat_activity WHERE backend_type = 'checkpointer'"
    )
    assert isinstance(checkpointer, int)
    before = psycopg2.extensions.get_wait_callback()
    psycopg2.extensions.set_wait_callback(_wait_callback(1.5, 0.2))
    try:
        os.kill(checkpointer, signal.SIGSTOP)
        threading.Timer(0.6, os.kill, (checkpointer, signal.SIGCONT)).start()
        begun = time.monotonic()
        service.drop_database("spare")
        assert time.monotonic() - begun > 0.3
    finally:
        psycopg2.extensions.set_wait_callback(before)
        os.kill(checkpointer, signal.SIGCONT)
    assert query(service, "SELECT count(*) FROM pg_database WHERE datname = 'spare'") == 0
