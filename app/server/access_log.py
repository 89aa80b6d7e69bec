"""Access log: a line of JSON for every request, on standard output; only if it is switched on.

``FAIRLINE_ACCESS_LOG`` puts it in front of the application when a process begins to serve; without
it nothing of it is called. Milliseconds are those until the response is made, of a stream until it
has ended. The query is not logged: it may be about a person.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TextIO

import orjson

from app.log_ids import CALLER, address_of, request_id_of
from app.reads.times import rfc3339

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment


class AccessLog:
    """A WSGI application that logs the requests of another."""

    def __init__(self, app: WSGIApplication, to: TextIO | None = None) -> None:
        self._app = app
        self._to = to

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        began = time.perf_counter()
        status = 0

        def note_status(line: str, headers: list[tuple[str, str]], *rest: Any) -> Any:
            nonlocal status
            status = int(line[:3])
            return start_response(line, headers, *rest)

        def finish(sent: int) -> None:
            self._write(environ, status, time.perf_counter() - began, sent)

        pieces = self._app(environ, note_status)
        if isinstance(pieces, list | tuple):  # complete, and sent at once
            finish(sum(map(len, pieces)))
            return pieces
        return CountedPieces(pieces, finish)

    def _write(
        self, environ: WSGIEnvironment, status: int, seconds: float, sent_bytes: int
    ) -> None:
        caller = environ.get(CALLER)
        tenant = getattr(caller, "tenant", None)
        line = {
            "time": rfc3339(datetime.now(UTC)),
            "request_id": request_id_of(environ),
            "method": environ["REQUEST_METHOD"],
            "path": environ["PATH_INFO"],
            "status": status,
            "milliseconds": round(seconds * 1000, 3),
            "bytes": sent_bytes,
            "tenant": tenant.name if tenant is not None else None,
            "key": getattr(caller, "key", None) or None,
            "address": address_of(environ),
        }
        to = self._to or sys.stdout
        # One write: lines of several processes do not mix.
        to.write(orjson.dumps(line).decode() + "\n")
        to.flush()


class CountedPieces:
    """The pieces of a response, counted; ``finish`` is called with their bytes at the end."""

    def __init__(self, pieces: Iterable[bytes], finish: Callable[[int], None]) -> None:
        self._pieces = pieces
        self._finish: Callable[[int], None] | None = finish
        self._sent = 0

    def __iter__(self) -> Iterator[bytes]:
        for piece in self._pieces:
            self._sent += len(piece)
            yield piece

    def close(self) -> None:
        """Called by the server, also if the client has gone."""
        close = getattr(self._pieces, "close", None)
        try:
            if close is not None:
                close()
        finally:
            if self._finish is not None:
                self._finish(self._sent)
                self._finish = None
