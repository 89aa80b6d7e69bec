"""A keep-alive HTTP connection with little overhead, and the record of what was sent."""

from __future__ import annotations

import os
import pickle
import ssl
import time
from array import array
from collections.abc import Callable, Container, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from socket import IPPROTO_TCP, TCP_NODELAY, create_connection, socket
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from loadtest.closed_loop import Request, Response, read_response, request_bytes

#: What a request of the swarm was for, or that a round of all three ended.
SUBMIT, POLL, ROUND = range(3)


@dataclass(frozen=True, slots=True)
class Arrival:
    """One submission and its answer."""

    #: When it was to start, in seconds since the epoch.
    intended_at: float
    #: From then to the answer, or to when it was given up.
    latency_seconds: float
    #: 0 if no answer came.
    status: int
    #: The id of what was submitted, if it was accepted.
    id: str


@dataclass(slots=True)
class Requests:
    """Very many requests, by column."""

    #: When each was sent, in seconds since the epoch.
    at: array[float] = field(default_factory=lambda: array("d"))
    latency_seconds: array[float] = field(default_factory=lambda: array("d"))
    #: 0 if no answer came.
    status: array[int] = field(default_factory=lambda: array("H"))
    #: `SUBMIT`, `POLL` or `ROUND`.
    kind: array[int] = field(default_factory=lambda: array("B"))

    def __len__(self) -> int:
        return len(self.at)

    def columns(self) -> tuple[array[float], array[float], array[int], array[int]]:
        """The columns, in the order of a row."""
        return self.at, self.latency_seconds, self.status, self.kind

    def add(self, at: float, latency_seconds: float, status: int, kind: int) -> None:
        self.at.append(at)
        self.latency_seconds.append(latency_seconds)
        self.status.append(status)
        self.kind.append(kind)


@dataclass(frozen=True, slots=True)
class Record:
    """Everything that a generator did; its kind of users decides which of the two is filled."""

    #: By intended start.
    arrivals: list[Arrival] = field(default_factory=list)
    #: Process by process, each in the order of the answers.
    requests: Requests = field(default_factory=Requests)

    def statuses(self) -> Iterator[int]:
        yield from (arrival.status for arrival in self.arrivals)
        yield from self.requests.status

    def write(self, folder: Path) -> None:
        """Into a file of this process."""
        (folder / f"{os.getpid()}.record").write_bytes(pickle.dumps(self))


def read_record(folder: Path) -> Record:
    """What all processes wrote."""
    record = Record()
    for file in sorted(folder.glob("*.record")):
        part: Record = pickle.loads(file.read_bytes())
        record.arrivals.extend(part.arrivals)
        columns: Any = zip(record.requests.columns(), part.requests.columns(), strict=True)
        for column, more in columns:
            column.extend(more)
    record.arrivals.sort(key=lambda arrival: arrival.intended_at)
    return record


TIMEOUT_SECONDS = 30.0
#: A connection that was idle for longer is checked before use: the server may have closed it.
RESTED_SECONDS = 1.0
READ_BYTES = 65_536

#: Locust's ``events.request.fire``, or anything that takes its names.
Fire = Callable[..., Any]


class Target:
    """A server's URL and API key."""

    def __init__(self, url: str, key: str = "") -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{url!r} is no URL of a server, such as http://127.0.0.1:8000")
        self.url = url
        self.host = parts.hostname
        self.port = parts.port or (443 if parts.scheme == "https" else 80)
        self._prefix = parts.path.rstrip("/")
        self._headers = {"Host": parts.netloc.rpartition("@")[2]}
        if key:
            self._headers["Authorization"] = f"Bearer {key}"
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None

    def payload(self, request: Request) -> bytes:
        path, headers = self._prefix + request.path, {**self._headers, **request.headers}
        return request_bytes(Request(request.method, path, headers, request.body), self.port)

    def connect(self, timeout_seconds: float = TIMEOUT_SECONDS) -> socket:
        opened = create_connection((self.host, self.port), timeout_seconds)
        opened.setsockopt(IPPROTO_TCP, TCP_NODELAY, 1)
        if self._tls is None:
            return opened
        return self._tls.wrap_socket(opened, server_hostname=self.host)


class Answer(NamedTuple):
    #: 0 if nothing did.
    status: int
    #: From the start that was given to the last byte.
    seconds: float
    response: Response
    #: Why nothing came back.
    error: str = ""


class Wire:
    """One connection to a target, for one request at a time; under locust it is gevent's.

    No redirects, no chunked answers, no pipelining; the answer must have a length. A lost
    connection or an answer that took too long is status 0; the next request connects again.
    """

    __slots__ = ("_fire", "_socket", "_target", "_timeout", "_used_at")

    def __init__(
        self, target: Target, fire: Fire | None = None, timeout_seconds: float = TIMEOUT_SECONDS
    ) -> None:
        """``fire`` gets every answer, for locust's statistics."""
        self._target = target
        self._fire = fire
        self._timeout = timeout_seconds
        self._socket: socket | None = None
        self._used_at = 0.0

    def ask(
        self,
        name: str,
        payload: bytes,
        expected: Container[int] = (200,),
        since: float | None = None,
    ) -> Answer:
        """Send and wait; ``since`` is when the request was to start, by `time.perf_counter`."""
        began = time.perf_counter() if since is None else since
        error = ""
        try:
            response = self._exchange(payload)
        except (OSError, ValueError) as lost:
            self.close()
            error = str(lost) or type(lost).__name__
            response = NOTHING
        except BaseException:
            # A user that is stopped in the middle: the next request must not read this answer.
            self.close()
            raise
        self._used_at = time.perf_counter()
        answer = Answer(response.status, self._used_at - began, response, error)
        if self._fire is not None:
            wrong: Exception | None = None
            if answer.status == 0:
                wrong = ConnectionError(error)
            elif answer.status not in expected:
                wrong = RuntimeError(f"status {answer.status}")
            self._fire(
                request_type=payload[: payload.index(b" ")].decode(),
                name=name,
                response_time=1000 * answer.seconds,
                response_length=len(response.body),
                exception=wrong,
                context={},
            )
        return answer

    def close(self) -> None:
        opened, self._socket = self._socket, None
        if opened is not None:
            opened.close()

    def _exchange(self, payload: bytes) -> Response:
        opened = self._socket
        if opened is not None and time.perf_counter() - self._used_at > RESTED_SECONDS:
            opened = self._if_open(opened)
        if opened is None:
            opened = self._socket = self._target.connect(self._timeout)
        # gevent's `sendall` asks for the size of the buffer each time, one system call more.
        sent = opened.send(payload)
        if sent < len(payload):
            opened.sendall(payload[sent:])
        buffer = opened.recv(READ_BYTES)
        while (response := read_response(buffer)) is None:
            more = opened.recv(READ_BYTES)
            if not more:
                raise ConnectionResetError("the server hung up before it had answered")
            buffer += more
        if b"onnection: close" in response.head:
            self.close()
        return response

    def _if_open(self, opened: socket) -> socket | None:
        """The connection, unless the server closed it: then there is something to read."""
        opened.settimeout(0)
        with suppress(BlockingIOError, ssl.SSLWantReadError):
            with suppress(ConnectionError):
                opened.recv(1)
            self.close()
            return None
        opened.settimeout(self._timeout)
        return opened


NOTHING = Response(0, b"", b"")
