"""One client of ``GET /events`` that comes back whenever it loses the stream.

It resumes where ``Last-Event-ID`` says, so it must hear of every end, whatever happened to
the process it was connected to.
"""

from __future__ import annotations

import http.client
import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

#: The server says something every 15 s; who is silent for longer has gone.
SILENCE_SECONDS = 20.0
RETRY_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class Heard:
    """The end of a job, as it was told."""

    id: str
    status: str
    at: float


class Listener:
    """Listens in a thread of its own."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._position: str | None = None
        self._stop = threading.Event()
        self._socket: socket.socket | None = None
        #: Set when the server has told where the stream begins.
        self.placed = threading.Event()
        self.heard: list[Heard] = []
        #: How often the stream was opened.
        self.connections = 0
        #: Answers that were no stream.
        self.refusals: dict[int, int] = {}

    @contextmanager
    def listening(self) -> Iterator[Listener]:
        """Listen while the block runs."""
        thread = threading.Thread(target=self._run, daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self._stop.set()
            if self._socket is not None:
                with suppress(OSError):
                    self._socket.shutdown(socket.SHUT_RDWR)
            thread.join(SILENCE_SECONDS)

    def last_words(self) -> dict[str, str]:
        """The end that was heard last, by job."""
        return {one.id: one.status for one in self.heard}

    def wait_for(self, ends: dict[str, str], seconds: float) -> bool:
        """Wait until all of these ends have been heard."""
        deadline = time.monotonic() + seconds
        while not ends.items() <= self.last_words().items():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.1)
        return True

    def _run(self) -> None:
        while not self._stop.is_set():
            with suppress(OSError, http.client.HTTPException):
                self._listen()
            self._stop.wait(RETRY_SECONDS)

    def _listen(self) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=SILENCE_SECONDS)
        connection.connect()
        self._socket = connection.sock
        try:
            headers = {"Last-Event-ID": self._position} if self._position else {}
            connection.request("GET", "/events", headers=headers)
            response = connection.getresponse()
            if response.status != 200:
                self.refusals[response.status] = self.refusals.get(response.status, 0) + 1
                return
            self.connections += 1
            self._read(response)
        finally:
            connection.close()

    def _read(self, response: http.client.HTTPResponse) -> None:
        position, data = None, None
        while line := response.readline():
            match line.decode().rstrip("\n").partition(": "):
                case ("id", _, text):
                    position = text
                case ("data", _, text):
                    data = json.loads(text)
                case ("", _, _):
                    # Only a whole event moves the client on.
                    if data is not None:
                        self._hear(data)
                    if position is not None:
                        self._position = position
                        self.placed.set()
                    position, data = None, None

    def _hear(self, data: dict[str, Any]) -> None:
        if "status" in data:
            self.heard.append(Heard(data["id"], data["status"], time.time()))
