"""Task events of a gevent worker travel together, in their order, and none is lost."""

from __future__ import annotations

from typing import Any

import kombu
import pytest
from celery import Celery

from app.broker import events
from app.broker.events import SparingDispatcher
from tests.support.waiting import wait_for


class Recording(SparingDispatcher):
    """Keeps what it would send."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, list[str]]] = []
        connection = kombu.Connection("memory://")
        super().__init__(connection, hostname="w1", app=Celery("test", set_as_current=False))

    def _publish(self, event: Any, producer: Any, routing_key: str, **_: Any) -> None:
        told = event if isinstance(event, list) else [event]
        self.sent.append((routing_key, [f"{one['type']} {one.get('uuid', '')}" for one in told]))


@pytest.fixture
def green(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "is_green", lambda: True)
    monkeypatch.setattr(events, "GATHER_SECONDS", 60.0)


def begin(dispatcher: SparingDispatcher, task: str) -> None:
    dispatcher.send("task-received", uuid=task, name="echo")
    dispatcher.send("task-started", uuid=task)


def test_events_of_a_moment_are_one_message(green: None) -> None:
    dispatcher = Recording()
    for task in ("a", "b"):
        begin(dispatcher, task)
    assert dispatcher.sent == []
    dispatcher._send_gathered()
    told = [f"{kind} {task}" for task in "ab" for kind in ("task-received", "task-started")]
    assert dispatcher.sent == [("task.multi", told)]


def test_they_are_sent_after_a_moment(green: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "GATHER_SECONDS", 0.01)
    dispatcher = Recording()
    for sent, kind in enumerate(("task-started", "task-succeeded"), 1):
        dispatcher.send(kind, uuid="a")
        wait_for(lambda sent=sent: len(dispatcher.sent) == sent)
        assert dispatcher.sent[-1] == ("task.multi", [f"{kind} a"])


@pytest.mark.parametrize("kind", ["worker-heartbeat", "worker-offline"])
def test_nothing_gathers_beyond_what_the_worker_says_of_itself(green: None, kind: str) -> None:
    dispatcher = Recording()
    begin(dispatcher, "a")
    dispatcher.send(kind)
    told = ["task-received a", "task-started a"]
    assert dispatcher.sent == [("task.multi", told), (kind.replace("-", "."), [f"{kind} "])]


def test_what_ends_after_the_worker_said_goodbye_is_sent_at_once(green: None) -> None:
    dispatcher = Recording()
    begin(dispatcher, "a")
    dispatcher.send("worker-offline")
    dispatcher.send("task-succeeded", uuid="a")
    assert dispatcher.sent[-1] == ("task.succeeded", ["task-succeeded a"])


def test_what_had_gathered_is_sent_by_a_new_connection(green: None) -> None:
    before, after = Recording(), Recording()
    begin(before, "a")
    before.close()
    after.send("task-received", uuid="b", name="echo")
    after.extend_buffer(before)
    after.flush()
    assert after.sent == [("task.multi", ["task-received a", "task-started a", "task-received b"])]
    assert before.sent == []


def test_other_processes_send_each_event() -> None:
    """Unless Celery gathers them itself."""
    dispatcher = Recording()
    begin(dispatcher, "a")
    told = [("task.received", ["task-received a"]), ("task.started", ["task-started a"])]
    assert dispatcher.sent == told


def test_the_runtime_of_a_run_that_began_before_its_task_replaces_celerys(green: None) -> None:
    dispatcher = Recording()
    dispatcher.note_runtime("a", 1.5)
    for task in ("a", "b", "a"):
        dispatcher.send("task-succeeded", uuid=task, runtime=0.1)
    told = [(one["uuid"], one["runtime"]) for one in dispatcher._group_buffer["task"]]
    assert told == [("a", 1.5), ("b", 0.1), ("a", 0.1)]
    dispatcher.disable()
    dispatcher.note_runtime("c", 1.5)
    assert not dispatcher._runtimes, "no event would take it away"
