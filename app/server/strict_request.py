"""gunicorn's parser of request heads, stricter: a Host, a bounded size, and a deadline."""

from __future__ import annotations

import time
from typing import Any, ClassVar

import gevent
from gunicorn.http.errors import InvalidHeader, LimitRequestHeaders, ParseException
from gunicorn.http.message import Request

#: Longest head: gunicorn's own limit is a hundred headers of 8 KB, and with each packet it parses
#: all that has arrived.
MOST_HEAD_BYTES = 65_536


class HeadTimeout(ParseException):  # type: ignore[misc]  # no stubs
    """The head of a request did not arrive in time."""

    def __str__(self) -> str:
        return "The request head did not arrive in time."


class StrictRequest(Request):  # type: ignore[misc]  # no stubs
    """A request as gunicorn parses it, with further rules."""

    #: How long a head may take, from its first bytes to its end.
    head_seconds: ClassVar[float] = 10.0
    _until = 0.0

    def parse(self, unreader: Any) -> bytes:
        """Parse the head; HTTP/1.1 requires a Host (RFC 9112, section 3.2)."""
        rest: bytes = super().parse(unreader)
        if self.version >= (1, 1) and not any(name == "HOST" for name, _ in self.headers):
            raise InvalidHeader("Host is missing")
        return rest

    def read_into(self, unreader: Any, buf: bytearray, stop: bool = False) -> None:
        """Read more of the head. The first read waits for the request to begin."""
        if stop:
            super().read_into(unreader, buf, stop)
            self._until = time.monotonic() + self.head_seconds
            return
        if len(buf) > MOST_HEAD_BYTES:
            raise LimitRequestHeaders("max buffer headers")
        with gevent.Timeout(max(0.0, self._until - time.monotonic()), HeadTimeout):
            super().read_into(unreader, buf)
