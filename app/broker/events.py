"""Celery's event dispatcher with a limit: above a rate, task events are summed up in heartbeats.

Flower needs more than a millisecond of processor time for the events of a task, and the worker and
the broker as much again. See :mod:`app.policy.task_events` for what is sent, and
:mod:`app.flower` for what Flower makes of the sums. A gevent worker gathers task events for a fifth
of a second, at most 24 in a message, as Celery's other pools gather those of a turn of their event
loop; a worker that is killed loses them.
"""

from __future__ import annotations

import threading
import time
from typing import Any

from celery.app.events import Events
from celery.events.dispatcher import EventDispatcher

from app.config import settings
from app.policy.task_events import TaskEvents
from tasks.process import is_green

#: Events of a worker that carry the sums, and the field that has them.
CARRIERS = frozenset({"worker-heartbeat", "worker-offline"})
SUMS = "task_sums"
#: Events that travel together in a gevent worker, and for how long they gather.
GATHERED = frozenset({"task"})
GATHER_SECONDS = 0.2


class SparingDispatcher(EventDispatcher):  # type: ignore[misc]  # Celery has no types
    """Sends the events of a worker, or counts them."""

    def __init__(self, *args: Any, **options: Any) -> None:
        self._tasks = TaskEvents(settings().flower_tasks_per_second, time.time())
        #: Events may come from several threads, depending on Celery's pool.
        self._counting = threading.Lock()
        super().__init__(*args, **options)
        #: Runtimes that Celery cannot know, of tasks that succeed in this moment.
        self._runtimes: dict[str, float] = {}
        #: Whether a timer runs that sends what has gathered.
        self._gathers = False
        if is_green():
            self.buffer_group, self.on_send_buffered = GATHERED, self._send_soon

    def send(self, type: str, *args: Any, **fields: Any) -> Any:
        """As Celery's; ``type`` is the name of the event."""
        if self.enabled and type in CARRIERS:
            if type == "worker-offline":
                self.buffer_group = frozenset()  # runs may still end, and no timer would
            self.flush(errors=False)
            with self._counting:
                sums = self._tasks.take_sums()
            if sums:
                fields[SUMS] = sums
        elif self._sends_tasks and type.startswith("task-"):
            if type == "task-succeeded" and (known := self._runtimes.pop(fields["uuid"], None)):
                fields["runtime"] = known
            with self._counting:
                passed = self._tasks.pass_on(type, fields, time.time())
            if passed is None:
                return None
            fields = passed
        return super().send(type, *args, **fields)

    def note_runtime(self, task_id: str, seconds: float) -> None:
        """How long the run of a task took that began before it, for its next event."""
        if self._sends_tasks:
            self._runtimes[task_id] = seconds

    @property
    def _sends_tasks(self) -> bool:
        return self.enabled and (not self.groups or "task" in self.groups)

    def extend_buffer(self, other: Any) -> None:
        """Called for a new connection, with the dispatcher of the last one."""
        super().extend_buffer(other)
        self._tasks.inherit(other._tasks)
        for group, events in other._group_buffer.items():
            self._group_buffer[group][:0] = events

    def _send_soon(self) -> None:
        """Called for each event that gathers."""
        if not self._gathers:
            self._gathers = True
            timer = threading.Timer(GATHER_SECONDS, self._send_gathered)
            timer.daemon = True
            timer.start()

    def _send_gathered(self) -> None:
        self._gathers = False  # first: what comes meanwhile has a timer of its own
        self.flush(errors=False)


class SparingEvents(Events):  # type: ignore[misc]  # Celery has no types
    """Named by ``app/celery.py``."""

    dispatcher_cls = "app.broker.events:SparingDispatcher"
