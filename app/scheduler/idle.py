"""Idle scheduler: the roles that look for queued jobs are put off while there are none."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial

from sqlalchemy import Engine

from app.policy.idling import EXPECTED_SECONDS, LONG_SECONDS, SHORT_SECONDS, pause_seconds
from app.policy.window import REFILL_SECONDS
from app.scheduler.role import TimedRole
from models.jobs.promote import FIRST_SCHEDULED
from models.pools import POOLS
from models.store.prepared import PreparedStatement
from models.store.session import fetch
from models.wakeups import IN_FLIGHT, WakeupListener

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
        self, engine: Engine, roles: Sequence[TimedRole], look_within: Callable[[], float]
    ) -> None:
        """``look_within``: how long the next look can wait by what the last one found; 0 if jobs
        were queued, infinite if there were none at all."""
        self._engine = engine
        self._roles = roles
        self._look_within = look_within
        self._woken = threading.Event()
        self._listener = WakeupListener(engine, self._hear)
        #: What wakeups said that no turn has taken note of: jobs were queued, or sent to workers.
        self._heard_queued = self._heard_in_flight = False
        #: When jobs were queued, or a wakeup said so; when one told of jobs in flight; and until
        #: when the roles are put off.
        self._busy_at = 0.0
        self._in_flight_at = -math.inf
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
            if self._heard_queued:
                self._heard_queued = False
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
        within = self._look_within()
        if within <= 0:
            self._busy_at = now
        # First: a wakeup that is heard from now on ends the pause.
        self.idle = within == math.inf
        if self._heard_in_flight:
            self._heard_in_flight = False
            self._in_flight_at = now
        if now - self._in_flight_at < EXPECTED_SECONDS:  # others may have come without a wakeup
            self.idle = False
            within = min(within, REFILL_SECONDS)
        pause = partial(
            pause_seconds,
            hears=self._listener.listening and not self._woken.is_set(),
            quiet_seconds=now - self._busy_at,
            look_within=within,
        )
        seconds = pause(due_in_seconds=None)
        if seconds > SHORT_SECONDS:  # else it is short, whatever is due
            due = fetch(self._engine, PREPARED, {"pools": list(POOLS)})[0].seconds
            seconds = pause(due_in_seconds=due)
        if seconds <= SHORT_SECONDS:
            self.idle = False
            return
        self._put_off_until = now + seconds
        for timed in self._roles:
            timed.due = max(timed.due, self._put_off_until)

    def _hear(self, messages: Sequence[str]) -> None:
        """Called by the listener; without a message when it begins to listen."""
        if set(messages) == {IN_FLIGHT}:
            self._heard_in_flight = True
            if not self.idle:
                return  # it looks soon
        else:
            self._heard_queued = True
        self._woken.set()

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
