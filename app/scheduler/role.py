"""Roles: what the leading scheduler does again and again, and how often."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from sqlalchemy import Engine, Row

from models.leadership import Leader
from models.store.errors import StatementTooSlow, StateStoreError
from models.store.session import connect

logger = logging.getLogger(__name__)

#: Pause of a role whose statement took too long; the others go on.
SLOW_SECONDS = 2.0
#: Pause of a role that failed for a reason of its own.
FAILED_SECONDS = 5.0


class Role(Protocol):
    """Something the scheduler does again and again."""

    def run_once(self, now: float) -> int:
        """Do it; how many rows were touched."""


class LeaderQueries:
    """Base class: runs statements one by one, with the leader's epoch as parameter ``epoch``."""

    def __init__(self, engine: Engine, leader: Leader) -> None:
        self._engine = engine
        self._leader = leader

    def _read(self, statement: str, **parameters: object) -> Sequence[Row[Any]]:
        """The rows that the statement returns."""
        with connect(self._engine) as connection:
            return connection.exec_driver_sql(
                statement, {**parameters, "epoch": self._leader.epoch}
            ).all()

    def _write(self, statement: str, **parameters: object) -> int:
        """How many rows the statement wrote."""
        with connect(self._engine) as connection:
            return connection.exec_driver_sql(
                statement, {**parameters, "epoch": self._leader.epoch}
            ).rowcount


@dataclass(slots=True)
class TimedRole:
    """A role with its interval and the time of its next call."""

    role: Role
    every_seconds: float
    #: Called by standbys too.
    always: bool = False
    due: float = 0.0


def run_due(roles: Iterable[TimedRole], leader: Leader, now: float) -> int:
    """Call every role that is due, if this process leads; how many rows were touched.

    A role that fails pauses and the others go on, unless the state store is unavailable to all.
    """
    touched = 0
    for timed in roles:
        if now < timed.due or not (timed.always or leader.epoch):
            continue
        timed.due = now + timed.every_seconds
        try:
            touched += timed.role.run_once(now)
        except StatementTooSlow as error:
            logger.warning("%s waits for a lock: %s", type(timed.role).__name__, error)
            timed.due = time.monotonic() + SLOW_SECONDS
        except StateStoreError:
            raise
        except Exception:  # a bug in one role must not stop the others
            logger.exception("%s failed", type(timed.role).__name__)
            timed.due = now + FAILED_SECONDS
    return touched
