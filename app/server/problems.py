"""Problem documents for requests that gunicorn rejects before the application sees them.

gunicorn answers unparsable requests with HTML, through one function, which is replaced here.
"""

from __future__ import annotations

import socket
from http import HTTPStatus

import orjson
from gunicorn import util

from app.api.http.problems import code_of, members

#: A parser's message repeats what it could not parse, up to this many characters.
MOST_DETAIL = 300


def replace_error_pages() -> None:
    """Replace gunicorn's error pages in this process."""
    util.write_error = write_problem


def write_problem(wire: socket.socket, status_int: int, reason: str, message: str) -> None:
    """Replaces gunicorn's ``write_error``; the connection is closed afterwards."""
    status = HTTPStatus(status_int)
    body = orjson.dumps(members(status, code_of(status), message[:MOST_DETAIL] or reason))
    head = (
        f"HTTP/1.1 {status_int} {reason}\r\n"
        "Connection: close\r\n"
        "Content-Type: application/problem+json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    util.write_nonblock(wire, head.encode("latin-1") + body)
