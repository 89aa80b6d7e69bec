"""HTTP/1.1 on one keep-alive connection, with little more than the bytes.

A fraction of what locust's own client costs, which matters when the generator shares the machine
with the server. Under locust the sockets are gevent's. No redirects, no chunked answers, no
pipelining; the answer must have a length. A lost connection or an answer that took too long is
status 0; the next request connects again.
"""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable, Container
from contextlib import suppress
from socket import IPPROTO_TCP, TCP_NODELAY, create_connection, socket
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from loadtest.http_bytes import Request, Response, read_response, request_bytes

TIMEOUT_SECONDS = 30.0
#: A connection that rested longer is looked at before it is used: the server may have closed it.
RESTED_SECONDS = 1.0
READ_BYTES = 65_536

#: Locust's ``events.request.fire``, or anything that takes its names.
Fire = Callable[..., Any]


class Target:
    """A server, by its URL, and the key that opens it."""

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
        """The request as it goes over the wire."""
        sent = Request(
            request.method,
            self._prefix + request.path,
            {**self._headers, **request.headers},
            request.body,
        )
        return request_bytes(sent, self.port)

    def connect(self, timeout_seconds: float = TIMEOUT_SECONDS) -> socket:
        """A new connection."""
        opened = create_connection((self.host, self.port), timeout_seconds)
        opened.setsockopt(IPPROTO_TCP, TCP_NODELAY, 1)
        if self._tls is None:
            return opened
        return self._tls.wrap_socket(opened, server_hostname=self.host)


class Answer(NamedTuple):
    """What came back, and when."""

    #: 0 if nothing did.
    status: int
    #: From the start that was given to the last byte.
    seconds: float
    response: Response
    #: Why nothing came back.
    error: str = ""


class Wire:
    """One connection to a target. Not shared: one request at a time."""

    __slots__ = ("_fire", "_socket", "_target", "_timeout", "_used_at")

    def __init__(
        self, target: Target, fire: Fire | None = None, timeout_seconds: float = TIMEOUT_SECONDS
    ) -> None:
        """``fire`` is told of every answer, so that locust's statistics see it."""
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
        """Send and wait. ``since``, by `time.perf_counter`, is when the request was to start."""
        began = time.perf_counter() if since is None else since
        error = ""
        try:
            response = self._exchange(payload)
        except (OSError, ValueError) as lost:
            self.close()
            error = str(lost) or type(lost).__name__
            response = NOTHING
        except BaseException:
            # A user that is stopped in the middle: the answer must not meet the next question.
            self.close()
            raise
        self._used_at = time.perf_counter()
        answer = Answer(response.status, self._used_at - began, response, error)
        if self._fire is not None:
            self._tell(self._fire, name, payload, answer, expected)
        return answer

    def close(self) -> None:
        """Hang up, if connected."""
        opened, self._socket = self._socket, None
        if opened is not None:
            opened.close()

    def _exchange(self, payload: bytes) -> Response:
        opened = self._socket
        if opened is not None and time.perf_counter() - self._used_at > RESTED_SECONDS:
            opened = self._looked_at(opened)
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

    def _looked_at(self, opened: socket) -> socket | None:
        """The connection if it still stands. Whoever has something to say now says goodbye."""
        opened.settimeout(0)
        with suppress(BlockingIOError, ssl.SSLWantReadError):
            with suppress(ConnectionError):
                opened.recv(1)
            self.close()
            return None
        opened.settimeout(self._timeout)
        return opened

    def _tell(
        self, fire: Fire, name: str, payload: bytes, answer: Answer, expected: Container[int]
    ) -> None:
        wrong: Exception | None = None
        if answer.status == 0:
            wrong = ConnectionError(answer.error)
        elif answer.status not in expected:
            wrong = Unexpected(answer.status)
        fire(
            request_type=payload[: payload.index(b" ")].decode(),
            name=name,
            response_time=1000 * answer.seconds,
            response_length=len(answer.response.body),
            exception=wrong,
            context={},
        )


class Unexpected(Exception):
    """A status that was not among the expected ones."""

    def __init__(self, status: int) -> None:
        super().__init__(f"status {status}")


NOTHING = Response(0, b"", b"")
