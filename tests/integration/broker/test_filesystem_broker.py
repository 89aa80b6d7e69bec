"""The broker of last resort: messages as files, written and read by several processes."""

from __future__ import annotations

import multiprocessing
import queue
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kombu import Connection, Exchange, Queue

from app.broker import filesystem

MESSAGES = 1500
fork = multiprocessing.get_context("fork")


def connect(folder: Path) -> Connection:
    options = {
        "data_folder_in": str(folder / "queue"),
        "data_folder_out": str(folder / "queue"),
        "control_folder": str(folder / "control"),
        "polling_interval": 0.001,
    }
    return Connection(transport=filesystem.Transport, transport_options=options)


@pytest.fixture
def connection(tmp_path: Path) -> Iterator[Connection]:
    filesystem.Transport.global_state.clear()  # what this process has bound in another folder
    with connect(tmp_path) as opened:
        yield opened


def files(folder: Path) -> list[Path]:
    """Messages that lie in any queue."""
    found = (folder / "queue").rglob("*")
    return [path for path in found if path.is_file() and not path.name.startswith(".")]


def read_all(folder: Path, results: Any, all_sent: Any) -> None:
    """Take messages until none comes any more after all were sent."""
    with connect(folder) as connection, connection.SimpleQueue("medium") as medium:
        taken, ends = [], False
        try:
            while not ends:
                last = all_sent.is_set()
                try:
                    message = medium.get(timeout=1.0)
                except queue.Empty:
                    ends = last
                else:
                    taken.append(message.payload["number"])
                    message.ack()
            results.put(taken)
        except Exception as error:  # noqa: BLE001 - the test is to hear of it
            results.put(error)


def test_messages_are_taken_whole_and_once(connection: Connection, tmp_path: Path) -> None:
    results, all_sent = fork.Queue(), fork.Event()
    readers = [fork.Process(target=read_all, args=(tmp_path, results, all_sent)) for _ in "ab"]
    for reader in readers:
        reader.start()
    with connection.SimpleQueue("medium") as medium:
        for number in range(MESSAGES):
            medium.put({"number": number, "padding": "x" * 2000})
    all_sent.set()
    taken = [results.get(timeout=30) for _ in readers]
    for reader in readers:
        reader.join()
    assert all(isinstance(numbers, list) for numbers in taken), taken
    assert Counter(taken[0] + taken[1]) == Counter(range(MESSAGES))
    assert files(tmp_path) == []


@pytest.mark.parametrize("name", ["medium", "medium.free", "medium.reserved.acme"])
def test_messages_of_jobs_wait_for_a_reader_however_long(
    connection: Connection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(filesystem, "SILENT_SECONDS", 0.0)
    with connection.SimpleQueue(name) as queue:
        queue.put({"number": 1})
        assert len(files(tmp_path)) == 1
        assert queue.get(timeout=15).payload == {"number": 1}


def test_events_that_nobody_reads_are_not_kept(
    connection: Connection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = Exchange("celeryev", type="topic")
    dead = Queue("celeryev.killed", events, routing_key="#")
    dead(connection.default_channel).declare()
    producer = connection.Producer()
    producer.publish({"type": "task-sent"}, exchange=events, routing_key="task.sent")
    assert len(files(tmp_path)) == 1, "it has only just been there"
    monkeypatch.setattr(filesystem, "SILENT_SECONDS", 0.0)
    for _ in range(10):
        producer.publish({"type": "task-sent"}, exchange=events, routing_key="task.sent")
    assert files(tmp_path) == []


def bind(folder: Path, number: int) -> None:
    with connect(folder) as connection:
        exchange = Exchange("many", type="fanout")
        Queue(f"queue-{number}", exchange)(connection.default_channel).declare()


def test_processes_that_bind_at_the_same_time_do_not_undo_each_other(
    connection: Connection, tmp_path: Path
) -> None:
    processes = [fork.Process(target=bind, args=(tmp_path, number)) for number in range(8)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    table = connection.default_channel.get_table("many")
    assert {entry.queue for entry in table} == {f"queue-{number}" for number in range(8)}
