"""JSON responses. Headers are sent as given: Werkzeug would parse and rewrite ``Location``."""

from __future__ import annotations

import math
from collections.abc import Iterable
from datetime import datetime
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import orjson
from flask import Response
from pydantic import BaseModel

from app.errors import ContentUnreadable, Erased
from app.reads.times import rfc3339
from app.tenants.ownership import own

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIEnvironment

    from app.policy.rate_limit import RateAllowance
    from app.reads.job_views import View

STATUS_HEADER = "Fairline-Status"
#: Header of the response to a repeated request.
REPLAYED = "Idempotent-Replayed"
#: Of a response that came when the client preferred it to (RFC 7240).
APPLIED = {"Preference-Applied": "wait"}
#: What the rate of submissions is called in the headers and in problems.
RATE_POLICY = "default"
#: Seconds that a client should wait before its first and before each further poll.
FIRST_POLL_SECONDS = "2"
POLL_SECONDS = "1"

STATUS_LINES = {status.value: f"{status.value} {status.phrase.upper()}" for status in HTTPStatus}


class Reply(Response):
    """A document as a JSON response; times in it are written as RFC 3339."""

    def __init__(
        self,
        document: object,
        status: int = 200,
        headers: dict[str, str] | None = None,
        content_type: str = "application/json",
    ) -> None:
        body = orjson.dumps(document, default=time_as_text, option=orjson.OPT_PASSTHROUGH_DATETIME)
        super().__init__(body, status, headers or {}, content_type=content_type)

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        start_response(self.status, self.headers.to_wsgi_list())
        return () if environ["REQUEST_METHOD"] == "HEAD" else self.response  # type: ignore[return-value]  # bytes were given


class QuickReply:
    """The response of the hot paths: a body that is JSON already.

    Werkzeug's ``Headers`` take longer to build than the rest of such a response. Flask calls
    this as the WSGI application that it is.
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


def time_as_text(value: object) -> str | None:
    """Serialises what orjson leaves to us."""
    if isinstance(value, datetime):
        return rfc3339(value)
    raise TypeError(f"{type(value).__name__} is not JSON")


def fields_of(schema: type[BaseModel], source: object) -> dict[str, Any]:
    """The fields of an answer's schema, from the attributes of the same names."""
    return {name: getattr(source, name) for name in schema.model_fields}


def submission_headers(
    location: str, status: str, allowance: RateAllowance | None, repeated: bool = False
) -> dict[str, str]:
    """The headers of an accepted submission."""
    headers = {"Location": location, "Retry-After": FIRST_POLL_SECONDS, STATUS_HEADER: status}
    if allowance is not None:
        headers |= limit_headers(allowance)
    if repeated:
        headers[REPLAYED] = "true"
    return headers


def limit_headers(allowance: RateAllowance | None) -> dict[str, str]:
    """``RateLimit`` and ``RateLimit-Policy`` (draft-ietf-httpapi-ratelimit-headers), if limited."""
    if allowance is None:
        return {}
    limit = allowance.limit
    reset = whole_seconds(allowance.reset_seconds)
    return {
        "RateLimit-Policy": f'"{RATE_POLICY}";q={limit.quota};w={limit.window_seconds}',
        "RateLimit": f'"{RATE_POLICY}";r={allowance.remaining};t={reset}',
    }


def whole_seconds(seconds: float) -> int:
    """Seconds for a header: at least one, or a client would retry immediately."""
    return max(1, math.ceil(seconds))


def own_view(view: View | None, tenant_id: int) -> View:
    """The view, if it is the tenant's; 410 if that has erased it."""
    found = own(view, tenant_id)
    if found.erased:
        raise Erased
    if found.unreadable:
        raise ContentUnreadable(found.unreadable)
    return found


def view_headers(view: View) -> dict[str, str]:
    """The headers of a response with a view."""
    return {"ETag": view.etag, STATUS_HEADER: view.status, "Cache-Control": "no-cache"}


def view_reply(view: View, headers: dict[str, str]) -> QuickReply:
    """The view, with further headers."""
    return QuickReply(orjson.dumps(view.document), 200, headers | view_headers(view))


def poll_reply(view: View, environ: WSGIEnvironment, *, waited: bool = False) -> QuickReply:
    """The current view, or 304 if it has not changed; ``waited``: as the client preferred."""
    headers = view_headers(view)
    if waited:
        headers |= APPLIED
    if not view.ended:
        headers["Retry-After"] = POLL_SECONDS
    known = environ.get("HTTP_IF_NONE_MATCH")
    # ETags are hexadecimal between quotes, so one cannot be part of another.
    if known is not None and (view.etag in known or known.strip() == "*"):
        return QuickReply(b"", 304, headers)
    return QuickReply(orjson.dumps(view.document), 200, headers)
