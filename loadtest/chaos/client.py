"""An HTTP client that reconnects after a broken connection, and a reader of the event stream."""

from __future__ import annotations

import http.client
import json
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Self

from loadtest.fleet import until


@dataclass(frozen=True, slots=True)
class Answer:
    """An HTTP response; status 0 means that there was none."""

    status: int
    document: Any = None
    headers: dict[str, str] | None = None


class Api:
    """One keep-alive connection to the API. Not for concurrent use."""

    def __init__(self, port: int, seconds: float = 10.0) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=seconds)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def call(
        self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None
    ) -> Answer:
        """One request; a connection that cannot be made or breaks is an answer of status 0."""
        data = None if body is None else json.dumps(body).encode()
        sent = {"Content-Type": "application/json"} if data else {}
        try:
            self._connection.request(method, path, data, {**sent, **(headers or {})})
            response = self._connection.getresponse()
            read = response.read()
        except (OSError, http.client.HTTPException):
            self._connection.close()
            return Answer(0)
        if response.status in (502, 504):  # of a proxy whose server did not answer
            return Answer(0)
        found = {name.lower(): value for name, value in response.getheaders()}
        is_json = "json" in found.get("content-type", "")
        return Answer(response.status, json.loads(read) if read and is_json else None, found)

    def leaderboard(self, role: str) -> Iterator[dict[str, Any]]:
        """Every entry of a role, page by page."""
        page: str | None = f"/leaderboard?role={role}&limit=500"
        while page:
            answer = self.call("GET", page)
            if answer.status != 200:
                raise ConnectionError(f"{page} answers {answer.status}: {answer.document}")
            yield from answer.document["entries"]
            link = (answer.headers or {}).get("link", "")
            page = link[link.index("<") + 1 : link.index(">")] if 'rel="next"' in link else None


#: The server sends something every 15 s; a connection that is silent for longer is dead.
SILENCE_SECONDS = 20.0
RETRY_SECONDS = 0.5


class Listener(threading.Thread):
    """Reads ``/events`` in a thread, and resumes after the last whole event when it breaks."""

    def __init__(self, port: int) -> None:
        super().__init__(daemon=True)
        self._port = port
        self._position: str | None = None
        self._stopping = threading.Event()
        self._socket: socket.socket | None = None
        #: Set when the server has sent the position at which the stream begins.
        self.placed = threading.Event()
        #: Ends of jobs as they were received: id and status.
        self.ends: list[tuple[str, str]] = []
        #: How often the stream was opened.
        self.connections = 0

    @contextmanager
    def listening(self) -> Iterator[Listener]:
        self.start()
        try:
            yield self
        finally:
            self._stopping.set()
            if self._socket is not None:
                with suppress(OSError):
                    self._socket.shutdown(socket.SHUT_RDWR)
            self.join(SILENCE_SECONDS)

    def wait_for(self, ends: dict[str, str], seconds: float) -> bool:
        """Wait until the last end received of each job is this one."""
        return until(lambda: ends.items() <= dict(self.ends).items(), seconds)

    def run(self) -> None:
        while not self._stopping.is_set():
            with suppress(OSError, http.client.HTTPException):
                self._listen()
            self._stopping.wait(RETRY_SECONDS)

    def _listen(self) -> None:
        opened = http.client.HTTPConnection("127.0.0.1", self._port, timeout=SILENCE_SECONDS)
        with closing(opened) as connection:
            connection.connect()
            self._socket = connection.sock
            headers = {"Last-Event-ID": self._position} if self._position else {}
            connection.request("GET", "/events", headers=headers)
            response = connection.getresponse()
            if response.status == 200:
                self.connections += 1
                self._read(response)

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
                    if data is not None and "status" in data:
                        self.ends.append((data["id"], data["status"]))
                    if position is not None:
                        self._position = position
                        self.placed.set()
                    position, data = None, None
