"""The presence of prefork children that are alive but cannot report it, kept by their parent.

Native code that holds the interpreter lock stops the heartbeat and the watchdog of its process
alike. That is no loss: the run goes on, and the parent enforces its time limit. So each child notes
its reports in memory that it shares with the parent, and the parent reports in place of a child
that is late, unless that is dead or frozen. Dying between the two costs nothing: the next report of
either is as good.
"""

from __future__ import annotations

import logging
import os
import struct
import time
from mmap import mmap
from typing import Any

from sqlalchemy import make_url

from models.presence import KEEP_PRESENT, PRESENCE_SECONDS
from models.store.errors import StateStoreUnavailable
from tasks.process import native_sleep, start_native
from tasks.watchdog.emergency_write import connect_arguments, write_now

logger = logging.getLogger(__name__)

#: Pause between two looks at the children.
LOOK_SECONDS = 1.0
#: A child is late after so long: its own watchdog has reported by then, if it can.
LATE_SECONDS = 2 * PRESENCE_SECONDS
#: When a child last reported, its pid and its name.
RECORD = struct.Struct("dq240s")


class ChildPresence:
    """The children of one parent; made before the first is forked."""

    def __init__(self, count: int, database_url: str) -> None:
        self._count = count
        self._memory = mmap(-1, RECORD.size * count)
        self._database_url = database_url

    def note(self, name: str) -> None:
        """In a child: it has just reported."""
        from billiard import current_process  # type: ignore[import-untyped]  # no types

        index: int = current_process().index
        if index < self._count:
            record = (time.monotonic(), os.getpid(), name.encode())
            RECORD.pack_into(self._memory, index * RECORD.size, *record)

    def late(self, now: float) -> list[str]:
        """In the parent: names of children that are late, though neither dead nor frozen."""
        records: list[tuple[float, int, bytes]] = list(RECORD.iter_unpack(self._memory[:]))
        return [
            name.rstrip(b"\0").decode(errors="replace")
            for noted, pid, name in records
            if pid and now - noted >= LATE_SECONDS and is_living_child(pid)
        ]

    def start(self) -> None:
        """Look after them, in a thread of the parent."""
        start_native(self._watch, connect_arguments(make_url(self._database_url)))

    def _watch(self, arguments: dict[str, Any]) -> None:
        while True:
            native_sleep(LOOK_SECONDS)
            try:
                if names := self.late(time.monotonic()):
                    write_now(arguments, [(KEEP_PRESENT, {"names": names})], PRESENCE_SECONDS)
            except StateStoreUnavailable as error:
                logger.debug("the presence of children could not be kept: %s", error)
            except Exception:  # the thread must be there when it is needed
                logger.exception("children are not looked after")


def is_living_child(pid: int) -> bool:
    """Whether it is a child of this process that could run: neither dead nor frozen."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            state, parent = file.read().rpartition(b")")[2].split()[:2]
    except (OSError, ValueError):
        return False
    return int(parent) == os.getpid() and state not in (b"T", b"t", b"Z", b"X", b"x")
