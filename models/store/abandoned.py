"""Statements that were given up by us and not by the server.

A commit that waits for a synchronous standby knows no timeout: it waits, with its backend, until
the standby is back, and closing the connection does not end it. A process that tried again on a
new connection each time would use up all of the server's. So as long as such a backend of ours
is at work, new connections only read. Writes on them fail at once, and what hangs is neither
cancelled nor repeated: it is committed in the end, or not, as if its answer had been lost.
"""

from __future__ import annotations

import logging
import threading
from typing import Any

logger = logging.getLogger(__name__)

#: Those that are still at work. A backend that is idle only has not noticed that we are gone. The
#: name is the process's own: after a failover the number may be somebody else's.
STILL_AT_WORK = """
    SELECT pid FROM pg_stat_activity
    WHERE pid = ANY (%s) AND state = 'active' AND usename = current_user
      AND application_name = current_setting('application_name')
"""
ONLY_READ = "SET default_transaction_read_only = on"


class AbandonedBackends:
    """The backends of this process whose statements were given up, by their process numbers."""

    def __init__(self) -> None:
        self._pids: set[int] = set()
        self._warned = False
        self._changing = threading.Lock()

    def add(self, connection: Any) -> None:
        """Its statement took longer than we wait, and its connection is about to be closed."""
        with self._changing:
            self._pids.add(connection.get_backend_pid())

    def judge(self, connection: Any) -> None:
        """Let a new connection only read while one of them is at work."""
        with self._changing:
            self._pids.discard(connection.get_backend_pid())
            asked = list(self._pids)
        if not asked:
            return
        with connection.cursor() as cursor:
            cursor.execute(STILL_AT_WORK, (asked,))
            working = {pid for (pid,) in cursor.fetchall()}
            with self._changing:
                self._pids.difference_update(set(asked) - working)
            if working:
                cursor.execute(ONLY_READ)
        if working and not self._warned:
            logger.warning(
                "%d statements have not come back: is a synchronous standby away? "
                "New connections only read until they have.",
                len(working),
            )
        self._warned = bool(working)


#: This process's.
ABANDONED = AbandonedBackends()
