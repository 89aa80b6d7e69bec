"""A span and a duration for every request, by the semantic conventions for HTTP servers.

Not by Flask's instrumentation: that makes a hot route eight times as expensive. A span ends when
the response is made, not when it is sent. Health checks, ``/metrics`` and streams are not traced.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

from flask import Flask, request, request_started
from opentelemetry.trace import SpanContext, SpanKind

from app.log_ids import TRACE
from app.telemetry import attributes as names
from app.telemetry.tracing import Attributes, Tracing
from models.jobs.ids import ID_CHARACTERS

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIEnvironment

    from app.telemetry.sdk import Sdk

Answering = Callable[["WSGIEnvironment", "StartResponse"], Iterable[bytes]]

#: Polled paths; streams, which never end, are recognised by the end of their path.
UNTRACED = frozenset({"/healthz", "/readyz", "/metrics"})
STREAMS = "/events"
#: Methods that are reported by name.
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
#: Routes that do not pass through Flask: by path, and by the path before an id.
HOT = frozenset({"/applications", "/jobs"})
HOT_READS = {"/applications/": "/applications/<application_id>", "/jobs/": "/jobs/<job_id>"}
#: Where Flask's route is stored.
ROUTE = "fairline.route"


class Requests:
    """Spans and durations of the requests of a process."""

    def __init__(self, sdk: Sdk, app: Flask) -> None:
        self._tracing = sdk.tracing
        self._record = sdk.durations.record
        request_started.connect(note_route, app)

    def answer(
        self, environ: WSGIEnvironment, start_response: StartResponse, answering: Answering
    ) -> Iterable[bytes]:
        path = environ["PATH_INFO"]
        if path in UNTRACED or path.endswith(STREAMS):
            return answering(environ, start_response)
        began = time.perf_counter()
        method = environ["REQUEST_METHOD"]
        method = method if method in METHODS else "_OTHER"
        scheme = environ["wsgi.url_scheme"]
        finish = self._begin(method, path, scheme, environ) if self._tracing else None
        code = 500

        def note_status(status: str, headers: list[tuple[str, str]], *rest: Any) -> Any:
            nonlocal code
            code = int(status[:3])
            return start_response(status, headers, *rest)

        try:
            return answering(environ, note_status)
        finally:
            route = route_of(environ, path)
            self._record(time.perf_counter() - began, method, scheme, route, code)
            if finish is not None:
                finish(route, code)

    def _begin(
        self, method: str, path: str, scheme: str, environ: WSGIEnvironment
    ) -> Callable[[str | None, int], None] | None:
        """Give the request its context; what finishes its span, if it is sampled."""
        tracing = self._tracing
        assert tracing is not None  # only called with it
        headers = sent_context(environ) if "HTTP_TRACEPARENT" in environ else None
        # Without a closure: most requests are not sampled, and would make one for nothing.
        describe = partial(request_attributes, method, path, scheme, environ)
        context, parent, attributes = tracing.begin(method, SpanKind.SERVER, describe, headers)
        environ[TRACE] = context
        if attributes is None:
            return None
        return partial(finish_span, tracing, method, context, parent, attributes, time.time_ns())


def request_attributes(method: str, path: str, scheme: str, environ: WSGIEnvironment) -> Attributes:
    """What a request's span says from the beginning."""
    return {
        "http.request.method": method,
        "url.path": path,
        "url.scheme": scheme,
        "server.address": environ["SERVER_NAME"],
        "client.address": environ.get("REMOTE_ADDR", ""),
        "user_agent.original": environ.get("HTTP_USER_AGENT", ""),
    }


def finish_span(
    tracing: Tracing,
    method: str,
    context: SpanContext,
    parent: SpanContext | None,
    attributes: Attributes,
    began: int,
    route: str | None,
    code: int,
) -> None:
    """Hand over a request's span, with what is known when the response has been made."""
    attributes["http.response.status_code"] = code
    name = method
    if route:
        name = f"{method} {route}"
        attributes["http.route"] = route
    if failed := code >= 500:
        attributes[names.ERROR_TYPE] = str(code)
    tracing.finish(name, context, parent, SpanKind.SERVER, attributes, began, failed=failed)


def sent_context(environ: WSGIEnvironment) -> dict[str, str]:
    """The caller's trace."""
    found = {name: environ.get(f"HTTP_{name.upper()}") for name in ("traceparent", "tracestate")}
    return {name: value for name, value in found.items() if value}


def route_of(environ: WSGIEnvironment, path: str) -> str | None:
    """The route of the request; None for a path that has none."""
    found: str | None = environ.get(ROUTE)
    if found is None:
        found = path if path in HOT else HOT_READS.get(path[:-ID_CHARACTERS])
    return found


def note_route(sender: Flask, **_: Any) -> None:
    """Store Flask's route where it is found once Flask has finished the request."""
    if request.url_rule is not None:
        request.environ[ROUTE] = request.url_rule.rule
