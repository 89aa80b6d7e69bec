"""Roles: what the leading scheduler does again and again, how often, and what calls them."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from sqlalchemy import Engine, Row

from models.leadership import Leader, RoleLease
from models.store.errors import StatementTooSlow, StateStoreError
from models.store.prepared import PreparedStatement
from models.store.session import execute, fetch

logger = logging.getLogger(__name__)

#: Pause of a role whose statement took too long; the others go on.
SLOW_SECONDS = 2.0
#: Nothing is reaped for so long after a slow statement, or after the state store was unavailable.
REAP_PAUSE_SECONDS = 3.0
#: Pause of a role that failed for a reason of its own.
FAILED_SECONDS = 5.0
#: A pause that doubles does so at most so often.
MOST_DOUBLINGS = 6
#: The longest pause of a role whose turns take long.
MOST_PAUSE_SECONDS = 30.0
#: Pauses of housekeeping: after a turn that found something to do, after one that did not, and
#: while the state store is unavailable.
BUSY_SECONDS = 0.1
IDLE_SECONDS = 1.0
AWAY_SECONDS = 10.0


class Role(Protocol):
    """Something the scheduler does again and again."""

    def run_once(self, now: float) -> int:
        """Do it; how many rows were touched."""


class RoleQueries:
    """Base class: runs statements one by one, with its lease's epoch as parameter ``epoch``."""

    def __init__(self, engine: Engine, leader: RoleLease) -> None:
        self._engine = engine
        self._leader = leader

    def _read(self, statement: str | PreparedStatement, **parameters: object) -> Sequence[Row[Any]]:
        """The rows that the statement returns."""
        return fetch(self._engine, statement, {**parameters, "epoch": self._leader.epoch})

    def _write(self, statement: str | PreparedStatement, **parameters: object) -> int:
        """How many rows the statement wrote."""
        return execute(self._engine, statement, {**parameters, "epoch": self._leader.epoch})


@dataclass(slots=True)
class TimedRole:
    """A role with its interval and the time of its next call."""

    role: Role
    every_seconds: float
    #: Called by standbys too.
    always: bool = False
    #: After a turn it pauses so many times as long as that took: its work grows with the tenants.
    pause_factor: float = 0.0
    #: Its pause after a turn that touched nothing while there are no jobs, if that is longer.
    idle_seconds: float = 0.0
    #: Its pause doubles with each slow statement in a row: it may never be quick enough.
    backs_off: bool = False
    slow: int = 0
    due: float = 0.0
    #: Workers have until then to renew their leases.
    not_before: float = 0.0
    #: When it last touched a row.
    found_at: float = -1.0
    #: It was put off, and has had no turn since.
    was_put_off: bool = False
    #: When its last turn began.
    turn_at: float = 0.0

    def put_off(self, *, again: bool = False) -> None:
        """For the reaper, when a statement was not taken: whatever held it up may have kept workers
        from renewing their leases, and they get a moment. Only once between two of its turns: a
        role that fails again and again must not stop it. ``again``: anyhow, as long as the state
        store is away."""
        if again or not self.was_put_off:
            self.was_put_off = True
            self.not_before = time.monotonic() + REAP_PAUSE_SECONDS
            self.due = max(self.due, self.not_before)


def pause_seconds(took: float, times: float) -> float:
    """How long to pause after a turn took so long."""
    return min(MOST_PAUSE_SECONDS, times * took)


def run_due(
    roles: Iterable[TimedRole],
    leader: RoleLease,
    now: float,
    away_seconds: float | None = None,
    reaping: TimedRole | None = None,
    *,
    idle: bool = True,
) -> int:
    """Call every role that is due, if this process leads; how many rows were touched.

    A role that fails pauses and the others go on. So does one whose statement the state store did
    not take, for ``away_seconds``; without them that is the caller's to handle. A slow statement
    of any role puts off ``reaping``. ``idle``: as far as is known, there are no jobs.
    """
    touched = 0
    for timed in roles:
        if now < timed.due or not (timed.always or leader.epoch):
            continue
        timed.due = now + timed.every_seconds
        timed.was_put_off, timed.turn_at = False, time.monotonic()
        try:
            began = time.monotonic()
            touched += (rows := timed.role.run_once(now))
            timed.found_at = now if rows else timed.found_at
            pause = pause_seconds(time.monotonic() - began, timed.pause_factor)
            pause = max(pause, timed.idle_seconds if idle and not rows else 0.0)
            timed.due = max(timed.due, now + pause)
            timed.slow = 0
        except StatementTooSlow as error:
            logger.warning("%s: a statement was too slow: %s", type(timed.role).__name__, error)
            times = 2**timed.slow if timed.backs_off else 1
            timed.due = time.monotonic() + times * (away_seconds or SLOW_SECONDS)
            timed.slow = min(timed.slow + 1, MOST_DOUBLINGS)
            if reaping is not None:
                reaping.put_off()
        except StateStoreError as error:
            if away_seconds is None:
                raise
            logger.debug("%s waits for the state store: %s", type(timed.role).__name__, error)
            timed.due = time.monotonic() + away_seconds
        except Exception:  # a bug in one role must not stop the others
            logger.exception("%s failed", type(timed.role).__name__)
            timed.due = now + FAILED_SECONDS
    return touched


class Housekeeping(threading.Thread):
    """A thread for roles that may take their time.

    A blob store in a distant bucket may take half a minute to fail, and dispatch must not wait for
    it. Uses one connection at a time; what it writes is fenced by the epoch like everything else.
    """

    def __init__(self, leader: Leader, roles: Sequence[TimedRole]) -> None:
        super().__init__(name="housekeeping", daemon=True)
        self._leader = leader
        self._roles = roles
        self._stopped = threading.Event()

    def stop(self, timeout: float = 1.0) -> None:
        """End after the current turn; one that waits for a blob store is not waited for."""
        self._stopped.set()
        if self.is_alive():
            self.join(timeout)

    def run(self) -> None:
        while not self._stopped.is_set():
            touched = run_due(self._roles, self._leader, time.monotonic(), AWAY_SECONDS)
            self._stopped.wait(BUSY_SECONDS if touched else IDLE_SECONDS)
