"""``/jobs/{id}/events`` and ``/events``: what happens, pushed as server-sent events.

Both resume where ``Last-Event-ID`` says. A stream of a job ends with the job; to whoever has
heard that and comes back, as browsers do, 204 says that there is no more. Polling stays
possible and sees the same rows. A stream ends soon after the key that opened it was revoked.
"""

from __future__ import annotations

from collections.abc import Iterator

from flask import Blueprint, Response, request

from app.api.auth.access import Access, open_to
from app.api.openapi.declared import DeclaredResponse, Parameter, described
from app.api.openapi.parts import LAST_EVENT_ID, LAST_EVENT_ID_IN_QUERY, STREAM
from app.api.services import current_services
from app.errors import FieldError, NotFound, TooManyStreams, ValidationFailed
from models.jobs.ids import parse_id

events = Blueprint("events", __name__)

HEADERS = {
    "Cache-Control": "no-store",
    # A proxy that collects a page before it passes it on would never pass this one on.
    "X-Accel-Buffering": "no",
}
MOST_TYPE_CHARACTERS = 200
TYPE = Parameter(
    "type",
    "Ends of jobs of this type only.",
    {"type": "string", "minLength": 1, "maxLength": MOST_TYPE_CHARACTERS},
)
EVENT_STREAM = "text/event-stream"


@events.get("/jobs/<job_id>/events")
@open_to(Access.TENANT)
@described(
    "Follow a job",
    DeclaredResponse(200, "Events until it has ended.", STREAM, content_type=EVENT_STREAM),
    DeclaredResponse(204, "It has ended, and you know."),
    query=(LAST_EVENT_ID_IN_QUERY,),
    headers=(LAST_EVENT_ID,),
    errors=(TooManyStreams,),
)
def get_job_events(job_id: str) -> Response:
    """The job's state now, then every change, until it has ended."""
    services = current_services()
    tenant_id = services.tenants.current(request.environ).id
    parsed = parse_id(job_id)
    if parsed is None:
        raise NotFound
    messages = services.events.open_job(
        tenant_id,
        parsed,
        last_event_id(),
        request.environ.get("gunicorn.socket"),
        services.tenants.caller(request.environ).key,
    )
    return event_stream(messages) if messages is not None else Response(status=204)


@events.get("/events")
@open_to(Access.TENANT)
@described(
    "Follow all that concerns you",
    DeclaredResponse(200, "Events, without end.", STREAM, content_type=EVENT_STREAM),
    query=(LAST_EVENT_ID_IN_QUERY, TYPE),
    headers=(LAST_EVENT_ID,),
    errors=(TooManyStreams,),
)
def get_tenant_events() -> Response:
    """Ends of the tenant's jobs and whatever else concerns it, from now or from a position."""
    services = current_services()
    tenant_id = services.tenants.current(request.environ).id
    job_type = request.args.get("type")
    if job_type is not None and not 0 < len(job_type) <= MOST_TYPE_CHARACTERS:
        raise ValidationFailed(errors=(FieldError("type", "must have 1 to 200 characters"),))
    return event_stream(
        services.events.open_feed(
            tenant_id,
            last_event_id(),
            job_type,
            request.environ.get("gunicorn.socket"),
            services.tenants.caller(request.environ).key,
        )
    )


def event_stream(messages: Iterator[bytes]) -> Response:
    """A response that goes on; HEAD gets its headers alone."""
    body = iter(()) if request.method == "HEAD" else messages
    return Response(body, 200, HEADERS, content_type=EVENT_STREAM, direct_passthrough=True)


def last_event_id() -> str | None:
    """Where the client was; browsers cannot set the header on the first request."""
    return request.headers.get("Last-Event-ID") or request.args.get("last_event_id") or None
