"""The presence of prefork children that are alive but cannot report it, kept by their parent.

See :mod:`tasks.watchdog.presence_keeper`. Here there is no need for another process: the parent
runs no jobs, and it enforces the time limit of a run. So each child notes its reports in memory
that it shares with the parent, and the parent reports in place of a child that is late, unless that
is dead or frozen.
"""

from __future__ import annotations

import os
import struct
import time
from mmap import mmap
from typing import Any

from sqlalchemy import make_url

from models.presence import KEEP_PRESENT
from tasks.process import native_sleep, start_native
from tasks.watchdog.emergency_write import connect_arguments
from tasks.watchdog.presence_keeper import LATE_SECONDS, is_running, report_for

#: Pause between two looks at the children.
LOOK_SECONDS = 1.0
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
            if pid and now - noted >= LATE_SECONDS and is_running(pid, parent=os.getpid())
        ]

    def start(self) -> None:
        """Look after them, in a thread of the parent."""
        start_native(self._watch, connect_arguments(make_url(self._database_url)))

    def _watch(self, arguments: dict[str, Any]) -> None:
        while True:
            native_sleep(LOOK_SECONDS)
            if names := self.late(time.monotonic()):
                report_for(names, KEEP_PRESENT, arguments)
