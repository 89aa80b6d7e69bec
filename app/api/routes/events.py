"""``/jobs/{id}/events`` and ``/events``: server-sent events, resumed after ``Last-Event-ID``.

A job's stream ends with the job; a client that reconnects after its end, as browsers do, gets 204.
A stream ends soon after the key that opened it was revoked.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from flask import Blueprint, Response, request

from app.api.http.query import known_id
from app.api.openapi.declared import (
    LAST_EVENT_ID,
    LAST_EVENT_ID_IN_QUERY,
    STREAM,
    Parameter,
    Returns,
    for_tenants,
)
from app.api.services import current_services, current_tenant
from app.errors import TenantStreamsExceeded, TooManyStreams, invalid_field
from app.tenants.scopes import Scope

events = Blueprint("events", __name__)

HEADERS = {
    "Cache-Control": "no-store",
    # A proxy that buffers whole responses would never pass this one on.
    "X-Accel-Buffering": "no",
}
MOST_TYPE_CHARACTERS = 200
TYPE = Parameter(
    "type",
    "Only ends of jobs of this type.",
    {"type": "string", "minLength": 1, "maxLength": MOST_TYPE_CHARACTERS},
)
EVENT_STREAM = "text/event-stream"


@events.get("/jobs/<job_id>/events")
@for_tenants(
    Scope.READ,
    "Follow a job",
    Returns(200, STREAM, (), "Events until it has ended.", EVENT_STREAM),
    also=(Returns(204, description="It has ended, and you have received its last event."),),
    query=(LAST_EVENT_ID_IN_QUERY,),
    headers=(LAST_EVENT_ID,),
    errors=(TooManyStreams, TenantStreamsExceeded),
)
def get_job_events(job_id: str) -> Response:
    """The job's current state, then every change, until it has ended."""
    services, tenant_id = current_services(), current_tenant().id
    messages = services.events.open_job(tenant_id, known_id(job_id), last_event_id(), *client())
    return event_stream(messages) if messages is not None else Response(status=204)


@events.get("/events")
@for_tenants(
    Scope.READ,
    "Follow all your jobs",
    Returns(200, STREAM, (), "Events, without end.", EVENT_STREAM),
    query=(LAST_EVENT_ID_IN_QUERY, TYPE),
    headers=(LAST_EVENT_ID,),
    errors=(TooManyStreams, TenantStreamsExceeded),
)
def get_tenant_events() -> Response:
    """Ends of your jobs, circuits, quarantines and replays, from now or from a position.

    Those of the last hour may come twice when your tenant is moved to another cell, with the same
    `id` and `at`.
    """
    services, tenant_id = current_services(), current_tenant().id
    job_type = request.args.get("type")
    if job_type is not None and not 0 < len(job_type) <= MOST_TYPE_CHARACTERS:
        raise invalid_field("type", "must have 1 to 200 characters")
    messages = services.events.open_feed(tenant_id, last_event_id(), job_type, *client())
    return event_stream(messages)


def event_stream(messages: Iterator[bytes]) -> Response:
    """A streaming response; HEAD gets only its headers."""
    body = iter(()) if request.method == "HEAD" else messages
    return Response(body, 200, HEADERS, content_type=EVENT_STREAM, direct_passthrough=True)


def client() -> tuple[Any, str]:
    """The client's connection, to notice when it is closed, and its key."""
    caller = current_services().tenants.caller(request.environ)
    return request.environ.get("gunicorn.socket"), caller.key


def last_event_id() -> str | None:
    """The last event received; browsers cannot set the header on the first request."""
    return request.headers.get("Last-Event-ID") or request.args.get("last_event_id") or None
