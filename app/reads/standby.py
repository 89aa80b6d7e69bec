"""Reads from a standby, while it is near enough: what they return may be a moment old.

A thread measures the standby's lag (:mod:`app.policy.standby_lag`). Each read measures again, on
its own connection and within a short time, so that the first one after a standby is gone goes to
the primary, and those after it go there at once. So do those after a read that failed.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import deque
from contextlib import ExitStack

from gevent import Timeout
from sqlalchemy import Connection, Engine

from app.policy.standby_lag import LogSample, lag_seconds
from models.store.errors import StateStoreError, StateStoreUnavailable
from models.store.session import connect

logger = logging.getLogger(__name__)

#: Between two measurements.
EVERY_SECONDS = 0.5
#: A standby that takes longer to say how far it is counts as away.
ANSWER_SECONDS = 0.5
#: How far the log has come, of a primary, or of a standby as far as reads see it; and which log and
#: database that is. A standby knows its timeline, after a failover, when it has written a page.
READ_POSITION = """
    SELECT pg_wal_lsn_diff(
        CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_lsn() END,
        '0/0'
    )::bigint AS position,
    concat_ws(' ', (SELECT system_identifier FROM pg_control_system()), CASE
        WHEN pg_is_in_recovery() THEN (
            SELECT greatest(timeline_id, min_recovery_end_timeline)
            FROM pg_control_checkpoint(), pg_control_recovery()
        ) ELSE ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::int
    END, current_database()) AS history
"""
ELSEWHERE = "it has nothing that the primary wrote of late, or is of another server or database"


class StandbyReads:
    """The standby of one process."""

    def __init__(self, standby: Engine, primary: Engine, most_lag_seconds: float) -> None:
        self._standby = standby
        self._primary = primary
        self.most_lag_seconds = most_lag_seconds
        kept = math.ceil(2 * most_lag_seconds / EVERY_SECONDS) + 2
        self._samples: deque[LogSample] = deque(maxlen=kept)
        #: Everything that was committed at this moment is on the standby, once it was measured.
        self._fresh_at = -math.inf
        self._began = math.inf
        #: Whether the last measurement was near enough, and what was logged of that.
        self.usable = False
        self._told: bool | None = None
        self._thread = threading.Thread(target=self._watch, name="standby", daemon=True)
        self._starting = threading.Lock()

    @property
    def lag_seconds(self) -> float | None:
        """How far it is behind, at most; grows while it does not answer.

        None until it was first measured; infinite if it could not be for longer than it may lag.
        """
        self._start()
        now = time.monotonic()
        lag = now - self._fresh_at
        return None if lag == math.inf and now - self._began <= self.most_lag_seconds else lag

    def _start(self) -> None:
        """Measure from now on; a process that nobody asks does not."""
        with self._starting:
            if self._thread.ident is None:
                self._began = time.monotonic()
                self._thread.start()

    def take(self, stack: ExitStack) -> tuple[Connection, float] | None:
        """A connection for the length of ``stack``, and its lag; None: ask the primary."""
        self._start()
        if not self.usable:
            return None
        try:
            connection, lag = self._open(stack)
        except StateStoreError as error:
            self._note(usable=False, reason=str(error))
            return None
        return (connection, lag) if self.usable else None

    def note_failure(self, error: Exception) -> None:
        """A read on a connection of :meth:`take` failed: no more until it is measured again."""
        self._note(usable=False, reason=str(error))

    def _open(self, stack: ExitStack) -> tuple[Connection, float]:
        """A connection for the length of ``stack``, and its lag."""
        with ExitStack() as opened:
            with Timeout(ANSWER_SECONDS, StateStoreUnavailable()):
                connection = opened.enter_context(connect(self._standby))
                found = connection.exec_driver_sql(READ_POSITION).one()
            now = time.monotonic()
            lag = lag_seconds(list(self._samples), found.position, now, found.history)
            if lag < math.inf:
                self._fresh_at = now - lag
            # Not back and forth while it is about as far behind as it may be.
            most = self.most_lag_seconds if self.usable else self.most_lag_seconds / 2
            reason = f"it is {lag:.1f} s behind" if lag < math.inf else ELSEWHERE
            self._note(usable=lag <= most, reason=reason)
            stack.push(opened.pop_all())
            return connection, lag

    def _note(self, *, usable: bool, reason: str) -> None:
        if usable != self._told:
            where = "the standby" if usable else "the primary instead of the standby"
            logger.warning("lists are read from %s: %s", where, reason)
        self.usable = self._told = usable

    def _watch(self) -> None:
        while True:
            self.measure()
            time.sleep(EVERY_SECONDS)

    def measure(self) -> None:
        """Ask both servers how far they are."""
        try:
            at = time.monotonic()
            with connect(self._primary) as connection:
                found = connection.exec_driver_sql(READ_POSITION).one()
            self._samples.append(LogSample(at, found.position, found.history))
        except Exception as error:  # noqa: BLE001 - whatever it is, it is tried again
            logger.debug("the primary cannot be asked for its position: %s", error)
        try:
            with ExitStack() as stack:
                self._open(stack)
        except Exception as error:  # noqa: BLE001 - as above
            self._note(usable=False, reason=str(error))
