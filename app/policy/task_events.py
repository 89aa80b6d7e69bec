"""Which task events a worker sends to Flower one by one, and the sums of all others.

Up to a rate every task is shown with all of its events. Of those beyond, events are counted by task
and type instead, and the sums are sent along with the next heartbeat. A task that was not shown and
does not succeed is shown after all, with what its earlier events had said, up to the same rate.
Guaranteed: every event is either sent or counted, and no event is both.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from app.policy.quota import Bucket

#: Tasks that may be shown at once after a quiet time: what the rate allows in so many seconds.
BURST_SECONDS = 5.0
#: Tasks that were received and have not ended; messages that go back to the broker never do.
MOST_OPEN = 10_000
#: Durations that are sent with one heartbeat; a worker ends fewer tasks in that time.
MOST_RUNTIMES = 10_000

RECEIVED, STARTED, SUCCEEDED = "task-received", "task-started", "task-succeeded"

Fields = dict[str, Any]


@dataclass(slots=True)
class TaskSums:
    """The events of one task name that were not sent."""

    events: Counter[str] = field(default_factory=Counter)
    #: By how much the number of tasks that are received and not started has changed.
    prefetched: int = 0
    runtimes: list[float] = field(default_factory=list)


class TaskEvents:
    """The task events of one worker."""

    def __init__(self, per_second: float, now: float) -> None:
        """``per_second``: tasks that are shown, and failures that are shown."""
        capacity = max(1.0, per_second * BURST_SECONDS) if per_second else 0.0
        self._shown = Bucket(now, per_second, capacity, capacity)
        self._failed = Bucket(now, per_second, capacity, capacity)
        #: What is known of open tasks that are not shown, by id.
        self._open: dict[str, Fields] = {}
        self._sums: dict[str, TaskSums] = {}

    def pass_on(self, kind: str, fields: Fields, now: float) -> Fields | None:
        """The fields of the event as it is to be sent; None: it was counted instead."""
        task_id = str(fields.get("uuid"))
        if kind == RECEIVED:
            return self._receive(task_id, fields, now)
        known = self._open.get(task_id)
        if kind == STARTED and known is not None:
            known["started"] = now
            self._count(kind, known, prefetched=-1)
            return None
        self._open.pop(task_id, None)
        if known is None and "name" not in fields:
            return fields  # of a task that is shown
        known = known or {}
        told = {**known, **fields}
        if kind != SUCCEEDED and take(self._failed, now):
            return told
        waited = "received" in known and "started" not in known
        sums = self._count(kind, told, prefetched=-1 if waited else 0)
        if (seconds := fields.get("runtime")) and len(sums.runtimes) < MOST_RUNTIMES:
            sums.runtimes.append(round(seconds, 4))
        return None

    def take_sums(self) -> dict[str, Fields]:
        """The sums since the last call, by task name, as a heartbeat has them."""
        taken, self._sums = self._sums, {}
        return {
            name: {
                "events": dict(sums.events),
                "prefetched": sums.prefetched,
                "runtimes": sums.runtimes,
            }
            for name, sums in taken.items()
        }

    def inherit(self, before: TaskEvents) -> None:
        """Go on where another one ended: the worker has a new connection."""
        self.__dict__.update(before.__dict__)

    def _receive(self, task_id: str, fields: Fields, now: float) -> Fields | None:
        self._open.pop(task_id, None)
        if take(self._shown, now):
            return fields
        if len(self._open) >= MOST_OPEN:
            del self._open[next(iter(self._open))]
        self._open[task_id] = {**fields, "received": now}
        self._count(RECEIVED, fields, prefetched=1)
        return None

    def _count(self, kind: str, about: Mapping[str, Any], prefetched: int) -> TaskSums:
        sums = self._sums.setdefault(str(about.get("name")), TaskSums())
        sums.events[kind] += 1
        sums.prefetched += prefetched
        return sums


def take(bucket: Bucket, now: float) -> bool:
    """Take one from the bucket, if there is one."""
    bucket.fill(now)
    if bucket.level < 1.0:
        return False
    bucket.level -= 1.0
    return True
