"""Statements that this process gave up on while the server still runs them.

A commit that waits for a synchronous standby knows no timeout: it waits, with its backend, until
the standby is back, and closing the connection does not end it. A process that tried again on a
new connection each time would use up all of the server's. So as long as such a backend of ours
is at work, new connections only read. Writes on them fail at once, and what hangs is neither
cancelled nor repeated: it is committed in the end, or not, as if its answer had been lost.

Where a database URL names several servers, the standby may be away because it is the primary now:
a former primary that nobody could stop still says that it takes writes. So the other servers are
asked first.
"""

from __future__ import annotations

import logging
import threading
from typing import Any

from models.store.roles import AS_LOGIN

logger = logging.getLogger(__name__)

#: Those that are still at work. A backend that is idle only has not noticed that we are gone. The
#: name is the process's own: after a failover the number may be somebody else's. A login sees what
#: its sessions do, its role does not.
STILL_AT_WORK = f"""{AS_LOGIN}
    SELECT pid FROM pg_stat_activity
    WHERE pid = ANY (%s) AND state = 'active' AND usename = session_user
      AND application_name = current_setting('application_name')
"""
ONLY_READ = "SET default_transaction_read_only = on"

#: Host and port.
Server = tuple[str, int]


def server_of(connection: Any) -> Server:
    """The server of a connection, as its URL names it."""
    return connection.info.host, connection.info.port


class AbandonedBackends:
    """The backends of this process whose statements were given up."""

    def __init__(self) -> None:
        #: Servers, and the numbers that the backends have there.
        self._backends: set[tuple[Server, int]] = set()
        self._warned = False
        self._changing = threading.Lock()

    def add(self, connection: Any) -> None:
        """Its statement took longer than we wait, and its connection is about to be closed."""
        with self._changing:
            self._backends.add((server_of(connection), connection.get_backend_pid()))

    def may_be_demoted(self, server: Server) -> bool:
        """Whether a server has not come back to us: another one may be the primary."""
        with self._changing:
            return any(server == other for other, _ in self._backends)

    def judge(self, connection: Any) -> None:
        """Let a new connection only read while one of them is at work."""
        server = server_of(connection)
        with self._changing:
            self._backends.discard((server, connection.get_backend_pid()))
            asked = [pid for other, pid in self._backends if other == server]
        if not asked:
            return
        with connection.cursor() as cursor:
            cursor.execute(STILL_AT_WORK, (asked,))
            working = {pid for (pid,) in cursor.fetchall()}
            with self._changing:
                self._backends -= {(server, pid) for pid in asked if pid not in working}
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
