"""What a stack that was asked to stop still waits for: processes, their jobs, and how long."""

from __future__ import annotations

import socket
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from sqlalchemy.exc import SQLAlchemyError

from app.stack.control import ask
from app.stack.home import Home
from app.stack.identity import ProcessIdentity, wait_for_exit
from app.stack.screen import Screen
from app.stack.spec import StackError
from models.presence import parse_process
from models.settings import DatabaseSettings
from models.store.errors import StateStoreError
from models.store.roles import DatabaseRole
from models.store.session import fetch, open_engine

LOOK_SECONDS = 1.0
#: Said again after this long, also if nothing changed but the time.
REPEAT_SECONDS = 10.0
RUNNING = """
    SELECT coalesce(process.parent, process.name) AS worker, job.type, count(*) AS jobs
    FROM jobs AS job JOIN processes AS process ON process.name = job.worker
    WHERE job.status = 'running' GROUP BY 1, 2 ORDER BY 1, 2
"""


class StopWatch:
    """Follows the stop of a stack from another process. Made while the stack still runs."""

    def __init__(self, home: Home, screen: Screen) -> None:
        self._home, self._screen = home, screen
        settings = self._ask("env").get("env", {})
        url = settings.get("FAIRLINE_DATABASE_URL")
        self._engine = (
            open_engine(DatabaseSettings(database_url=url), role=DatabaseRole.API) if url else None
        )

    def wait(self, supervisor: ProcessIdentity, seconds: float) -> bool:
        """Wait for the supervisor's end, saying what for; false if that takes too long."""
        deadline, said_at = time.monotonic() + seconds, 0.0
        said: list[str] = []
        while wait_for_exit([supervisor], LOOK_SECONDS):
            now = time.monotonic()
            if now > deadline:
                return False
            rows = self._ask("status").get("processes", [])
            stopping = [row for row in rows if row["state"] == "stopping"]
            found = waited_for(stopping, self._jobs({row["pid"] for row in stopping}))
            if [*found] != said or now - said_at > REPEAT_SECONDS:
                said, said_at = [*found], now
                for what, left in found.items():
                    self._screen.plain(f"  waiting for {what}; at most {left:.0f} s more")
        return True

    def _ask(self, command: str) -> dict[str, Any]:
        with suppress(StackError):  # whatever keeps it from answering, it can be stopped
            return ask(self._home, {"command": command})
        return {}

    def _jobs(self, pids: set[int]) -> Mapping[int, Sequence[str]]:
        """What those workers run, by pid; nothing if the database is gone."""
        jobs: dict[int, list[str]] = defaultdict(list)
        with suppress(SQLAlchemyError, StateStoreError):
            for row in fetch(self._engine, RUNNING) if self._engine else ():
                node, pid = parse_process(row.worker)
                if node.endswith(f"@{socket.gethostname()}") and pid and int(pid) in pids:
                    jobs[int(pid)].append(f"{row.jobs} {row.type}")
        return jobs


def waited_for(
    stopping: Sequence[Mapping[str, Any]], jobs: Mapping[int, Sequence[str]]
) -> dict[str, float]:
    """A phrase for each process that is stopping, and the seconds until it is killed."""
    return {
        f"{row['name']}, which runs {', '.join(found)}"
        if (found := jobs.get(row["pid"]))
        else str(row["name"]): row["stop_seconds"]
        for row in stopping
    }
