"""Idle scheduler: the roles that look for work are put off while there is none."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

from sqlalchemy import Engine

from app.policy.idling import LONG_SECONDS, SHORT_SECONDS, pause_seconds
from app.scheduler.role import TimedRole
from models.jobs.promote import FIRST_SCHEDULED
from models.pools import POOLS
from models.store.prepared import PreparedStatement
from models.store.session import fetch
from models.wakeups import WakeupListener

#: A request to stop is noticed within this time.
STOP_SECONDS = 0.1

#: Seconds until a job or a recurring schedule is due; negative if one has to wait although it is.
READ_NEXT_DUE = f"""
    SELECT extract(epoch FROM least(
        (SELECT min(first.execute_at) FROM {FIRST_SCHEDULED}),
        (SELECT next_at FROM schedules WHERE NOT paused ORDER BY next_at LIMIT 1)
    ) - now())::float8 AS seconds
"""
PREPARED = PreparedStatement("read_next_due", READ_NEXT_DUE)


class WorkLooks:
    """The roles that look for work: when they do so next, and the pause until then."""

    def __init__(
        self, engine: Engine, roles: Sequence[TimedRole], has_work: Callable[[], bool]
    ) -> None:
        """``has_work``: whether their last look found work, done or not."""
        self._engine = engine
        self._roles = roles
        self._has_work = has_work
        self._woken = threading.Event()
        self._listener = WakeupListener(engine, self._woken.set)
        #: When there was work, or a wakeup; and until when the roles are put off.
        self._busy_at = 0.0
        self._put_off_until = 0.0
        #: Whether there is no work, as far as is known.
        self.idle = False

    def start(self) -> None:
        self._listener.start()

    def close(self) -> None:
        self._listener.close()

    def begin_turn(self, now: float, others: Sequence[TimedRole]) -> None:
        """After a wakeup they look at once, and ``others`` as soon as there may be something."""
        if self._woken.is_set():
            self._woken.clear()
            self._busy_at = now
            self.idle = False
            for timed in others:
                if timed.idle_seconds:
                    timed.due = min(timed.due, now + timed.every_seconds)
            for timed in self._roles:
                if timed.due == self._put_off_until:
                    timed.due = now
            self._put_off_until = now

    def put_off(self, now: float) -> None:
        """Put them off as long as there can be no work."""
        if now < self._put_off_until:
            return
        if self._has_work():
            self._busy_at = now
        self.idle = False
        quiet = now - self._busy_at
        hears = self._listener.listening and not self._woken.is_set()
        # Without reading what is due: the pause will be short.
        if pause_seconds(hears=hears, quiet_seconds=quiet, due_in_seconds=None) > SHORT_SECONDS:
            due = fetch(self._engine, PREPARED, {"pools": list(POOLS)})[0].seconds
            seconds = pause_seconds(hears=hears, quiet_seconds=quiet, due_in_seconds=due)
            if seconds > SHORT_SECONDS:
                self.idle = True
                self._put_off_until = now + seconds
                for timed in self._roles:
                    timed.due = max(timed.due, self._put_off_until)

    def rest(self, seconds: float, stop: threading.Event) -> None:
        """Pause; less after a wakeup or a request to stop."""
        until = time.monotonic() + seconds
        while not stop.is_set() and (left := until - time.monotonic()) > 0:
            if self._woken.wait(min(left, STOP_SECONDS)):
                return


def next_turn_seconds(roles: Sequence[TimedRole], leads: bool, now: float) -> float:
    """Seconds until the first of the roles is due that this process may call."""
    due = min((timed.due for timed in roles if leads or timed.always), default=now)
    return min(max(due - now, SHORT_SECONDS), LONG_SECONDS)
