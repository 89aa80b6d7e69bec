"""gunicorn's log and error pages, in the formats of the application."""

from __future__ import annotations

import socket
from http import HTTPStatus
from typing import Any

import orjson
from gunicorn import util
from gunicorn.glogging import Logger

from app.logs import configure_logging

#: A parser's message repeats what it could not parse, up to this many characters.
MOST_DETAIL = 300


class ServerLog(Logger):  # type: ignore[misc]  # an untyped base
    """Passes gunicorn's log lines to the root logger, which the application uses too."""

    def setup(self, cfg: Any) -> None:
        super().setup(cfg)
        self.error_log.handlers.clear()
        self.error_log.propagate = True
        configure_logging()


def replace_error_pages() -> None:
    """Have this process answer unparsable requests, which never reach Flask, with problems."""
    util.write_error = write_problem


def write_problem(wire: socket.socket, status_int: int, reason: str, message: str) -> None:
    """Replaces gunicorn's ``write_error``; the connection is closed afterwards."""
    # Not at the top: the master imports this module before gevent patches, and kombu with it.
    from app.api.http.problems import HEADERS, code_of, members

    status = HTTPStatus(status_int)
    body = orjson.dumps(members(status, code_of(status), message[:MOST_DETAIL] or reason))
    headers = HEADERS[503] if status in (429, 503) else {}
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    head = (
        f"HTTP/1.1 {status_int} {reason}\r\n"
        f"Connection: close\r\n{lines}"
        "Content-Type: application/problem+json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    util.write_nonblock(wire, head.encode("latin-1") + body)
