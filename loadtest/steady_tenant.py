"""A tenant that submits short jobs by a clock, from a thread of its own.

Few a second, each on the same connection. One that comes late because the one before was
answered late is sent at once, and its intended time is kept: nothing is left out.
"""

from __future__ import annotations

import http.client
import json
import threading
import time
from contextlib import suppress
from typing import Self

TIMEOUT_SECONDS = 10.0


class SteadyTenant:
    """Sends while the ``with`` block lasts."""

    def __init__(self, port: int, per_second: float) -> None:
        self._port = port
        self._pause = 1.0 / per_second
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="steady", daemon=True)
        #: When each accepted job was to be sent, in seconds since the epoch.
        self.intended_at: dict[str, float] = {}
        #: Submissions that got no 202.
        self.unanswered = 0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(TIMEOUT_SECONDS)

    def _run(self) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=TIMEOUT_SECONDS)
        due = time.time()
        while not self._stop.wait(max(0.0, due - time.time())):
            try:
                job_id = self._submit(connection)
            except (OSError, http.client.HTTPException):
                connection.close()  # opened again by the next request
                job_id = None
            if job_id is None:
                self.unanswered += 1
            else:
                self.intended_at[job_id] = due
            due += self._pause
        connection.close()

    def _submit(self, connection: http.client.HTTPConnection) -> str | None:
        body = json.dumps({"type": "echo", "payload": {"at": time.time()}})
        connection.request("POST", "/jobs", body, {"Content-Type": "application/json"})
        response = connection.getresponse()
        answer = response.read()
        if response.status != 202:
            return None
        with suppress(ValueError, KeyError):
            return str(json.loads(answer)["id"])
        return None
