"""The replies of the hot paths: headers go out as they were given.

Werkzeug's own would parse and rewrite ``Location`` for every reply; ours are paths already.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from http import HTTPStatus
from typing import TYPE_CHECKING

import orjson
from flask import Response

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIEnvironment

    from app.policy.rate_limit import RateAllowance
    from app.reads.job_views import View

STATUS_HEADER = "Fairline-Status"
#: Seconds a client should wait before it asks for the first and for the next time.
FIRST_POLL_SECONDS = "2"
POLL_SECONDS = "1"

STATUS_LINES = {status.value: f"{status.value} {status.phrase.upper()}" for status in HTTPStatus}


class Reply(Response):
    """A JSON document, complete in memory."""

    def __init__(
        self,
        body: bytes,
        status: int,
        headers: dict[str, str],
        content_type: str = "application/json",
    ) -> None:
        super().__init__(body, status, headers, content_type=content_type)

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        start_response(self.status, self.headers.to_wsgi_list())
        return () if environ["REQUEST_METHOD"] == "HEAD" else self.response  # type: ignore[return-value]  # bytes were given


class QuickReply:
    """The same for the requests that come by the thousand.

    Werkzeug's collection of headers takes longer to make than the rest of such a reply. Where
    Flask is on the way, it takes this for the WSGI application that it is.
    """

    __slots__ = ("_body", "_headers", "_status")

    def __init__(self, body: bytes, status: int, headers: dict[str, str]) -> None:
        self._body = body
        self._status = status
        self._headers = headers

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        headers = list(self._headers.items())
        if self._status != HTTPStatus.NOT_MODIFIED:
            headers.append(("Content-Type", "application/json"))
            headers.append(("Content-Length", str(len(self._body))))
        start_response(STATUS_LINES[self._status], headers)
        return () if environ["REQUEST_METHOD"] == "HEAD" else (self._body,)


def limit_headers(allowance: RateAllowance | None) -> dict[str, str]:
    """``RateLimit`` and ``RateLimit-Policy`` (draft-ietf-httpapi-ratelimit-headers), if limited."""
    if allowance is None:
        return {}
    limit = allowance.limit
    reset = whole_seconds(allowance.reset_seconds)
    return {
        "RateLimit-Policy": f'"default";q={limit.quota};w={limit.window_seconds}',
        "RateLimit": f'"default";r={allowance.remaining};t={reset}',
    }


def whole_seconds(seconds: float) -> int:
    """As a header tells them: never less than one, or a client would come back at once."""
    return max(1, math.ceil(seconds))


def poll_reply(view: View, environ: WSGIEnvironment) -> QuickReply:
    """What a poller asked for, or that nothing changed."""
    headers = {
        "ETag": view.etag,
        STATUS_HEADER: view.status,
        "Cache-Control": "no-cache",
    }
    if not view.ended:
        headers["Retry-After"] = POLL_SECONDS
    known = environ.get("HTTP_IF_NONE_MATCH")
    # Etags are hexadecimal between quotes, so one cannot be a part of another.
    if known is not None and (view.etag in known or known.strip() == "*"):
        return QuickReply(b"", 304, headers)
    return QuickReply(orjson.dumps(view.document), 200, headers)
