"""Writes HTTP responses: head and body with one send where the body is complete.

The rules are gunicorn's: valid headers, which responses have no body, chunks where there is no
length. The date is formatted once per second.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from gunicorn import SERVER, util
from gunicorn.http.errors import InvalidResponseHeader, InvalidResponseHeaderName
from gunicorn.http.message import TOKEN_RE
from gunicorn.http.wsgi import HEADER_VALUE_RE, STATUS_RE

if TYPE_CHECKING:
    from gevent.socket import socket

#: What a header of the application means to the server.
PLAIN, LENGTH, HOP = range(3)
#: Most header names that are cached: the application has a few dozen.
MOST_NAMES = 1_000

#: Larger bodies are not copied to go out with their head.
JOINED_BYTES = 65_536

_meanings: dict[str, int] = {}
#: The second for which the common headers were formatted; for keep-alive and for close.
_second = 0
_common_headers = ("", "")


class HttpResponse:
    """One response; ``start`` is WSGI's ``start_response``."""

    __slots__ = ("_client", "_headers", "_last", "_method", "_status", "_written", "begun")

    def __init__(self, client: socket, method: str, last: bool) -> None:
        self._client = client
        self._method = method
        #: The connection is closed afterwards.
        self._last = last
        self._status = ""
        self._headers: list[tuple[str, str]] = []
        self._written: list[bytes] = []
        #: Part of it has been sent: no error can be answered any more.
        self.begun = False

    def start(
        self, status: str, headers: list[tuple[str, str]], exc_info: Any = None
    ) -> Callable[[bytes], object]:
        """``start_response``."""
        if self._status and exc_info is None:
            raise AssertionError("Response headers already set!")
        self._status = status
        self._headers = headers
        return self._written.append

    def send(self, pieces: Iterable[bytes]) -> bool:
        """Send all of it; False if the connection must be closed."""
        if isinstance(pieces, list | tuple) and not self._written:
            body = pieces[0] if len(pieces) == 1 else b"".join(pieces)
            rest: Iterable[bytes] = ()
        else:
            rest = iter(pieces)
            body = b"".join(self._written) or next((piece for piece in rest if piece), b"")
        status = self._status
        if not STATUS_RE.fullmatch(status):
            raise ValueError(f"Invalid status {status!r}")
        code = int(status[:3])
        lines, length = header_lines(self._headers, with_length=code != 204)
        bare = code in (204, 304) or self._method == "HEAD"
        chunked = length is None and not bare
        if chunked:
            lines += "Transfer-Encoding: chunked\r\n"
        head = f"HTTP/1.1 {status}\r\n{common_headers(self._last)}{lines}\r\n".encode("latin-1")
        if bare:
            self._write(head)
        elif chunked:
            self._write(head + chunk(body) if body else head)
            for piece in rest:
                if piece:
                    self._write(chunk(piece))
            self._write(b"0\r\n\r\n")
        else:
            assert length is not None
            # Never more than was announced. Less is not checked, as in gunicorn.
            announced = body[:length]
            if len(announced) <= JOINED_BYTES:
                self._write(head + announced)
            else:
                self._write(head)
                self._write(announced)
            length -= len(body)
            for piece in rest:
                if length > 0:
                    self._write(piece[:length])
                length -= len(piece)
        return not self._last

    def _write(self, data: bytes) -> None:
        self.begun = True
        sent = self._client.send(data)
        if sent < len(data):
            self._client.sendall(memoryview(data)[sent:])


def chunk(data: bytes) -> bytes:
    """Data as one chunk."""
    return b"%X\r\n%b\r\n" % (len(data), data)


def common_headers(last: bool) -> str:
    """The headers common to all responses."""
    global _second, _common_headers
    now = int(time.time())
    if now != _second:
        common = f"Server: {SERVER}\r\nDate: {util.http_date(now)}\r\nConnection: "
        _second, _common_headers = now, (f"{common}keep-alive\r\n", f"{common}close\r\n")
    return _common_headers[last]


def header_lines(
    headers: Iterable[tuple[str, str]], *, with_length: bool
) -> tuple[str, int | None]:
    """The application's headers as lines, and the Content-Length among them."""
    lines: list[str] = []
    length = None
    for name, value in headers:
        meaning = _meanings.get(name)
        if meaning is None:
            meaning = meaning_of(name)
        if meaning is LENGTH:
            if not with_length:
                continue
            length = int(value)
        elif meaning is HOP:
            continue
        # Also raises for what is not a string.
        if not HEADER_VALUE_RE.fullmatch(value):
            raise InvalidResponseHeader(repr(name))
        lines.append(f"{name}: {value}\r\n")
    return "".join(lines), length


def meaning_of(name: str) -> int:
    """What a header means to the server; an invalid name is an error."""
    if not TOKEN_RE.fullmatch(name):
        raise InvalidResponseHeaderName(repr(name))
    lower = name.lower()
    meaning = LENGTH if lower == "content-length" else HOP if util.is_hoppish(name) else PLAIN
    if len(_meanings) < MOST_NAMES:
        _meanings[name] = meaning
    return meaning
