"""Idle scheduler: the roles that look for queued jobs are put off while there are none."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from sqlalchemy import Engine

from app.policy.idling import EXPECTED_SECONDS, LONG_SECONDS, SHORT_SECONDS, pause_seconds
from app.policy.window import REFILL_SECONDS
from app.scheduler.role import TimedRole
from models.job_counts import DRAWN, Drawn
from models.jobs.promote import FIRST_SCHEDULED
from models.leadership import RoleLease
from models.pools import POOLS
from models.presence import SERVING
from models.store.errors import StatementTooSlow, StateStoreError
from models.store.prepared import PreparedStatement
from models.store.session import fetch
from models.wakeups import IN_FLIGHT, WakeupListener

logger = logging.getLogger(__name__)

#: A request to stop is noticed within this time.
STOP_SECONDS = 0.5

#: What changes if there is work: the numbers drawn for changes of jobs, slots of workers and credit
#: of express lanes by pool, running replays; and the seconds until a job or a recurring schedule is
#: due, negative if one has to wait although it is.
READ_STATE = f"""
    SELECT {DRAWN},
           (SELECT array_agg(queue || ' ' || slots ORDER BY queue) FROM (
               SELECT unnest(pools) AS queue, sum(slots) AS slots FROM processes
               WHERE {SERVING} GROUP BY 1) AS serving) AS slots,
           (SELECT array_agg(pool || ' ' || credit ORDER BY pool) FROM express_lanes) AS credits,
           (SELECT count(*) FROM replays WHERE state = 'running') AS replays,
           extract(epoch FROM least(
               (SELECT min(first.execute_at) FROM {FIRST_SCHEDULED}),
               (SELECT next_at FROM schedules WHERE NOT paused ORDER BY next_at LIMIT 1)
           ) - now())::float8 AS due_seconds
"""
#: Locks of tables are not waited for: the lease is to be renewed.
PREPARED = PreparedStatement("read_state", READ_STATE, settings="SET LOCAL lock_timeout = '100ms';")
#: The roles look after so many pauses in a row in which nothing changed.
MOST_PAUSES = 5


class WorkState(NamedTuple):
    """What would be different if there were new work: READ_STATE but the time, and the lease."""

    epoch: int | None
    server: str
    delta: int
    arrival: int
    slots: list[str] | None
    credits: list[str] | None
    replays: int

    @property
    def drawn(self) -> Drawn:
        """Whoever draws a number later, or has not ended, may create work that nobody saw."""
        return Drawn(self.server, self.delta, self.arrival)


class WorkLooks:
    """The roles that look for work: when they do so next, and the pause until then."""

    def __init__(
        self,
        engine: Engine,
        leader: RoleLease,
        roles: Sequence[TimedRole],
        look_within: Callable[[], float],
        seen: Callable[[], Drawn],
        reach_broker: Callable[[float], bool],
    ) -> None:
        """``look_within``: how long the next look can wait by what the last one found; 0 if jobs
        were queued, infinite if there were none at all. ``seen``: the roles have seen all changes
        of jobs up to these numbers. ``reach_broker``: called as often as they look; false while
        the broker is away."""
        self._engine = engine
        self._leader = leader
        self._roles = roles
        self._look_within = look_within
        self._seen = seen
        self._reach_broker = reach_broker
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
        #: The state in which the roles found no work; None: they have to look to find out.
        self._without_work: WorkState | None = None
        self._pauses = 0

    def start(self) -> None:
        self._listener.start()

    def close(self) -> None:
        self._listener.close()

    def begin_turn(self, now: float, others: Sequence[TimedRole]) -> None:
        """After a wakeup they look at once, and ``others`` as soon as there may be something.

        After a pause in which nothing changed they do not: another one begins.
        """
        if self._woken.is_set():
            self._woken.clear()
            self._without_work = None
            if self._heard_queued:
                self._heard_queued = False
                self._busy_at = now
            self.end_idling(now, others)
            for timed in self._roles:
                if timed.due == self._put_off_until:
                    timed.due = now
            self._put_off_until = now
        elif self._without_work is not None and now >= self._put_off_until:
            self._pause_again(now)

    def found_work(self, now: float) -> bool:
        """Whether one of them touched a job in the turn of this time."""
        return any(timed.found_at == now for timed in self._roles)

    def end_idling(self, now: float, others: Sequence[TimedRole]) -> None:
        """There is work: ``others`` that have something to do then are on time again."""
        self.idle = False
        for timed in others:
            if timed.idle_seconds:
                timed.due = max(timed.not_before, min(timed.due, now + timed.every_seconds))

    def _pause_again(self, now: float) -> None:
        """Another pause, if the state is the one in which there was no work."""
        before, self._without_work = self._without_work, None
        if self._pauses >= MOST_PAUSES or not self._listener.listening:
            return
        try:
            state, due_seconds = self._read_state()
            if state != before or not self._reach_broker(now):
                return
        except StateStoreError as error:
            logger.debug("the roles look themselves: %s", error)
            return
        except Exception:  # a bug in what reaches the broker must not stop the scheduler
            logger.exception("the broker cannot be reached")
            return
        seconds = pause_seconds(
            hears=True,
            quiet_seconds=now - self._busy_at,
            look_within=math.inf,
            due_in_seconds=due_seconds,
        )
        if seconds > SHORT_SECONDS:
            self._pauses += 1
            self._without_work = before
            self._pause(now + seconds)

    def _read_state(self) -> tuple[WorkState, float | None]:
        """The state, also of the lease: what others did as leaders the roles have not seen."""
        [row] = fetch(self._engine, PREPARED, {"pools": list(POOLS)})
        return WorkState._make((self._leader.epoch, *row[:-1])), row.due_seconds

    def put_off(self, now: float) -> bool:
        """Put them off as long as there can be no work; whether their last look found jobs."""
        if now < self._put_off_until:
            return False
        within = self._look_within()
        found = within < math.inf
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
        self._without_work = None
        if seconds > SHORT_SECONDS:  # else it is short, whatever is due
            try:
                state, due_seconds = self._read_state()
            except StatementTooSlow as error:  # somebody holds a lock: look as often as before
                logger.debug("what is due is not known: %s", error)
                self.idle = False
                return found
            seconds = pause(due_in_seconds=due_seconds)
            if self.idle and state.drawn == self._seen() and not state.replays:
                self._without_work, self._pauses = state, 0
        if seconds <= SHORT_SECONDS:
            self.idle = False
            self._without_work = None
        else:
            self._pause(now + seconds)
        return found

    def _pause(self, until: float) -> None:
        self._put_off_until = until
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
