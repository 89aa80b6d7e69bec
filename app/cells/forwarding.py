"""Sending a request to one of several cells, or refusing it: helpers of ``router.py``.

The cell of a submission, bodies that can be sent again, the cookie that names a cell, refusals.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from app.api.auth.visitors import SAFE_METHODS
from app.api.http.complete_body import CompleteBody
from app.api.http.idempotency import ENVIRON_KEY, key_text
from app.api.http.problems import problem_of
from app.cells.fan_out import ServedApps, query_of, with_query
from app.errors import CellUnavailable
from app.log_ids import current_request
from app.policy.placement import Placement

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

#: Where a tenant submits jobs.
SUBMISSIONS = ("/applications", "/jobs", "/jobs/batch")
#: By which a browser names a cell.
CELL_COOKIE = "fairline_cell"
#: By which forms and streams of a page name the cell that it shows.
SHOWN = "shown"


class KeptInput:
    """A body that is read once and can be sent again, unless it is too large to be accepted."""

    def __init__(self, stream: Any, most: int) -> None:
        """``most``: a body of more bytes is refused, and none of it is kept."""
        self._stream = stream
        self._read: list[bytes] = []
        self._room = most

    def read(self, size: int = -1) -> bytes:
        """As of any stream."""
        data: bytes = self._stream.read(size)
        self._room -= len(data)
        if self._room >= 0:
            self._read.append(data)
        else:
            self._read.clear()
        return data

    def forget(self) -> None:
        """It will not be sent again."""
        self._room = -1
        self._read.clear()

    def again(self) -> CompleteBody:
        """What was read so far."""
        return CompleteBody(b"".join(self._read))


def token_of(environ: WSGIEnvironment) -> tuple[bytes, bool]:
    """What decides about the cell of a submission, and whether it is an idempotency key."""
    header = environ.get(ENVIRON_KEY)
    key = None if header is None else key_text(header)
    return (os.urandom(8), False) if key is None else (key.encode(), True)


def cell_for(apps: ServedApps, placement: Placement, token: bytes, *, keyed: bool) -> str:
    """The cell that a submission goes to.

    That of a key is always the same: elsewhere, the same request could be admitted once more.
    """
    chosen = placement.choose(token)
    if keyed or not is_missing(apps, chosen):
        return chosen
    there = [cell for cell in placement.admitting if not is_missing(apps, cell)]
    weights = {cell: placement.weights[cell] for cell in there}
    return Placement(placement.version, weights).choose(token) if there else chosen


def is_missing(apps: ServedApps, cell: str) -> bool:
    """Whether a cell is away, or not served at all."""
    return apps.is_away(cell) or apps.app_of(cell) is None


def again(body: CompleteBody | KeptInput) -> CompleteBody:
    """The same body once more."""
    if isinstance(body, KeptInput):
        return body.again()
    body.seek(0)
    return body


def first_part(path: str) -> str:
    """``jobs`` of ``/jobs/batch``."""
    return path.removeprefix("/").partition("/")[0]


def shown_cell(environ: WSGIEnvironment) -> str | None:
    """The cell of the page that a form or a stream is of, which is taken out of the request.

    The cookie may be of another tab by now.
    """
    if not environ["PATH_INFO"].startswith("/console"):
        return None
    shown = query_of(environ).get(SHOWN)
    if shown is not None:
        environ.update(with_query(environ, **{SHOWN: None}))
    return shown or None


def with_cookie(
    environ: WSGIEnvironment, start_response: StartResponse, cell: str
) -> StartResponse:
    """Let a browser name the cell from now on, unless another site sent it here, or a form."""
    if environ.get("HTTP_SEC_FETCH_SITE", "none") not in ("same-origin", "none"):
        return start_response
    if environ.get("REQUEST_METHOD", "GET") not in SAFE_METHODS:
        return start_response
    secure = "; Secure" if environ.get("wsgi.url_scheme") == "https" else ""

    def start(status: str, headers: list[tuple[str, str]], *rest: Any) -> Any:
        cookie = f"{CELL_COOKIE}={cell}; Path=/; HttpOnly; SameSite=Lax{secure}"
        return start_response(status, [*headers, ("Set-Cookie", cookie)], *rest)

    return start


def refuse(
    error: Exception, environ: WSGIEnvironment, start_response: StartResponse
) -> Iterable[bytes]:
    """Answer with an error."""
    current_request.set(environ)
    answer: WSGIApplication = problem_of(error)
    return answer(environ, start_response)


def away(cell: str) -> CellUnavailable:
    """The error of a request that needs this cell."""
    return CellUnavailable(f"{cell or 'The home cell'} is not responding. Please try again.")
