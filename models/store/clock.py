"""The database's clock, as this process knows it without asking.

Ids are made from it: their order is that of the queue, and API processes run on machines whose
clocks differ. It is learned from answers that are read anyway: a time of the server, and when
the statement was sent and answered by our own monotonic clock. Whatever happened to the wall
clock of this machine changes nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime

#: The server's clock in microseconds, in any statement.
CLOCK_SQL = "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint"
#: Times that were given out are not repeated while the clock is corrected by less than this.
MOST_HELD_NS = 1_000_000_000
#: The least step between two times that ids can tell apart.
STEP_NS = 250


def corrected(offset: int, sent: int, server: int, received: int) -> int:
    """What to add to our clock, after the server's was read between ``sent`` and ``received``.

    PURE. An offset that may be right is kept: a slow answer says little, and a quick one much.
    """
    least, most = server - received, server - sent
    return offset if least <= offset <= most else (least + most) // 2


def next_time(latest: int, now: int) -> int:
    """A time above the one that was given out before, unless the clock was set back by far.

    PURE.
    """
    return latest + STEP_NS if 0 <= latest - now < MOST_HELD_NS else now


class DatabaseClock:
    """An estimate of the database's clock; until the first answer, this machine's."""

    def __init__(self, local_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self.local_ns = local_ns
        self._offset = time.time_ns() - local_ns()
        self._latest = 0

    def learn(self, sent: int, server_microseconds: int, received: int) -> None:
        """A statement was sent and its answer received at these times of ``local_ns``."""
        self._offset = corrected(self._offset, sent, server_microseconds * 1000, received)

    def next_ns(self) -> int:
        """Nanoseconds since 1970, more at each call."""
        self._latest = next_time(self._latest, self.local_ns() + self._offset)
        return self._latest

    def now(self) -> datetime:
        """The time."""
        return datetime.fromtimestamp((self.local_ns() + self._offset) / 1e9, UTC)


#: This process's.
DATABASE_CLOCK = DatabaseClock()
