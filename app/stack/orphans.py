"""Processes whose parent crashed: taken over, so that none can be overlooked.

For a process that does nothing but supervise: it takes every child for its own.
"""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Collection
from contextlib import suppress

from app.stack.identity import all_pids, identity_of, signal_process, stat_of, wait_until_gone

PR_SET_CHILD_SUBREAPER = 36


class Orphanage:
    """Makes this process the parent of all orphans below it, in place of init."""

    def __init__(self) -> None:
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)

    def reap(self, known: Collection[int]) -> None:
        """Bury dead orphans; the `known` children are somebody else's to bury."""
        flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
        with suppress(ChildProcessError):
            while (dead := os.waitid(os.P_ALL, 0, flags)) and dead.si_pid not in known:
                os.waitpid(dead.si_pid, os.WNOHANG)

    def kill(self) -> None:
        """End every child that is left."""
        stats = [(pid, stat_of(pid)) for pid in all_pids()]
        children = [identity_of(pid) for pid, stat in stats if stat and stat.parent == os.getpid()]
        orphans = [child for child in children if child]
        for orphan in orphans:
            signal_process(orphan, signal.SIGKILL)
        wait_until_gone(orphans, seconds=2.0)
        self.reap(known=())
