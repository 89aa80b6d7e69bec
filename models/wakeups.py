"""Wakeups: who creates work tells a scheduler that has none, by PostgreSQL's NOTIFY.

A wakeup is a hint: one that is lost costs the wait until the scheduler's next look. NOTIFY takes a
lock of the whole server, so a process sends few of them (`SEND_SECONDS`); the scheduler that got
one looks at short intervals for longer than that, and sees what is created meanwhile by itself.
"""

from __future__ import annotations

import logging
import select
import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import psycopg2
from sqlalchemy import Engine

from models.store.errors import StateStoreError
from models.store.group_commit import GroupCommit
from models.store.session import connect, execute

logger = logging.getLogger(__name__)

CHANNEL = "fairline_work"
SEND = f"SELECT pg_notify('{CHANNEL}', '')"
#: Of jobs that are in flight already: the scheduler may wait a moment before it looks.
IN_FLIGHT = "in flight"
SEND_IN_FLIGHT = f"SELECT pg_notify('{CHANNEL}', '{IN_FLIGHT}')"
#: A process sends one at most so often.
SEND_SECONDS = 0.5
#: Without a message for so long, a listener that wants to be sure finds out whether it hears any.
SILENCE_SECONDS = 5.0
#: Pause before a lost connection is replaced.
RETRY_SECONDS = 1.0


def wake_scheduler(engine: Engine, statement: str = SEND) -> None:
    """Tell the scheduler that there is work; without the state store it would find none."""
    with suppress(StateStoreError):
        execute(engine, statement, {})


class WakeupSender:
    """Sends the wakeups of a process that creates much work, beside it."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        #: By what it says: when the next may be sent.
        self._due = {SEND: 0.0, SEND_IN_FLIGHT: 0.0}
        self._sending: GroupCommit[str, None] = GroupCommit(self._wake, name="wakeups")

    def send(self, statement: str = SEND) -> None:
        """Send one, unless the last that said as much was a moment ago."""
        now = time.monotonic()
        if now >= self._due[statement]:
            self._due[SEND_IN_FLIGHT] = now + SEND_SECONDS
            self._due[statement] = now + SEND_SECONDS
            self._sending.post(statement)

    def close(self, timeout: float) -> None:
        self._sending.close(timeout)

    def _wake(self, group: Sequence[str]) -> list[None]:
        wake_scheduler(self._engine, SEND if SEND in group else SEND_IN_FLIGHT)
        return [None] * len(group)


class WakeupListener(threading.Thread):
    """Calls ``heard`` for wakeups, in a thread with a connection of its own."""

    def __init__(
        self,
        engine: Engine,
        heard: Callable[[Sequence[str]], object],
        channel: str = CHANNEL,
        silence: Callable[[], object] | None = None,
    ) -> None:
        """``heard`` gets the messages; none when it begins to listen, for what was sent before.

        ``silence`` is called when nothing was heard for SILENCE_SECONDS. What either raises ends
        the connection, and it listens anew.
        """
        super().__init__(name="wakeups", daemon=True)
        self._engine = engine
        self._heard = heard
        self._channel = channel
        self._silence = silence
        self._closing, self._closed = socket.socketpair()
        #: Whether a wakeup would be heard, as far as is known.
        self.listening = False

    def close(self, timeout: float = 1.0) -> None:
        """End; waits for that, but not for long."""
        self._closing.close()
        if self.is_alive():
            self.join(timeout)

    def run(self) -> None:
        with self._closed:
            while not self._is_closed(0.0):
                try:
                    self._listen()
                except (StateStoreError, psycopg2.Error, OSError) as error:
                    logger.debug("wakeups are not heard: %s", error)
                    self._is_closed(RETRY_SECONDS)
                except Exception:
                    logger.exception("wakeups are not heard")
                    self._is_closed(RETRY_SECONDS)
                finally:
                    self.listening = False

    def _listen(self) -> None:
        with connect(self._engine) as connection:
            connection.detach()  # not one of the pool's, whose size others rely on
            raw: Any = connection.connection.dbapi_connection
            connection.exec_driver_sql(f"LISTEN {self._channel}")
            self.listening = True
            self._heard(())
            poller = select.poll()
            poller.register(raw.fileno(), select.POLLIN)
            poller.register(self._closed, select.POLLIN)
            timeout = None if self._silence is None else 1000 * SILENCE_SECONDS
            while True:
                ready = dict(poller.poll(timeout))
                if self._closed.fileno() in ready:
                    return
                if not ready and self._silence is not None:
                    self._silence()
                raw.poll()
                if raw.notifies:
                    messages = [notify.payload for notify in raw.notifies]
                    raw.notifies.clear()
                    self._heard(messages)

    def _is_closed(self, seconds: float) -> bool:
        """Whether it was closed, waiting for up to so long."""
        return bool(select.select([self._closed], [], [], seconds)[0])
