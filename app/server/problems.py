"""What gunicorn refuses before the application sees it, as problem documents too.

A request line, header or framing that cannot be parsed never reaches Flask; gunicorn
answers it with a page of HTML through one function, which is replaced here.
"""

from __future__ import annotations

import socket
from http import HTTPStatus

from gunicorn import util  # type: ignore[import-untyped]  # no stubs

from app.api.http.problems import code_of, document

#: A parser's message repeats what it could not parse; this much of it is enough.
MOST_DETAIL = 300


def speak_problems() -> None:
    """Replace gunicorn's error pages in this process."""
    util.write_error = write_problem


def write_problem(wire: socket.socket, status_int: int, reason: str, message: str) -> None:
    """Answer in the place of gunicorn's ``write_error`` and let the connection be closed."""
    status = HTTPStatus(status_int)
    body = document(status, code_of(status), message[:MOST_DETAIL] or reason)
    head = (
        f"HTTP/1.1 {status_int} {reason}\r\n"
        "Connection: close\r\n"
        "Content-Type: application/problem+json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    util.write_nonblock(wire, head.encode("latin-1") + body)
