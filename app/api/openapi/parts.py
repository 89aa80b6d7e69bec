"""Parameters, headers and errors that several routes declare."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pydantic import BaseModel

import app.errors as errors
from app.api.openapi.declared import Header, Operation, Parameter, Returns, for_tenants
from app.tenants.keys import SHORT
from app.tenants.tenant import NAME as TENANT_NAME
from models.jobs.states import ApplicationStatus, JobStatus
from tasks.registry import NAME as TYPE_NAME

SECONDS = {"type": "integer", "minimum": 1}
ID = {"type": "string", "format": "uuid"}
DEPENDENCY = {"type": "string", "minLength": 1, "examples": ["claude"]}
STREAM = {"type": "string"}


def pattern(expression: str) -> dict[str, Any]:
    """The schema of a string that matches an expression completely."""
    return {"type": "string", "pattern": f"^{expression}$"}


#: All path parameters.
IN_PATHS = {
    one.name: one
    for one in (
        Parameter("application_id", "The id of one of your applications.", ID),
        Parameter("job_id", "The id of one of your jobs.", ID),
        Parameter("schedule_id", "The id of one of your schedules.", ID),
        Parameter("name", "The name of a tenant.", pattern(TENANT_NAME.pattern)),
        Parameter("key_id", "The first part of a key, after `fair_`.", pattern(SHORT.pattern)),
        Parameter("dependency", "A dependency of a job type.", DEPENDENCY),
    )
}

CURSOR = Parameter("cursor", "From the `Link` header of the previous page.")
TYPE = Parameter("type", "Only jobs of this type.", pattern(TYPE_NAME.pattern))
POOL = Parameter("pool", "Only jobs of this pool.", pattern(TYPE_NAME.pattern))


def page_limit(usual: int, most: int) -> Parameter:
    """The page size."""
    schema = {"type": "integer", "minimum": 1, "maximum": most, "default": usual}
    return Parameter("limit", "Maximum number of entries per page.", schema)


def choice(name: str, description: str, values: tuple[str, ...]) -> Parameter:
    """A parameter with a closed set of values."""
    return Parameter(name, description, {"type": "string", "enum": list(values)})


def status_header(statuses: type[JobStatus | ApplicationStatus]) -> Header:
    """The current status."""
    schema = {"type": "string", "enum": [status.value for status in statuses]}
    return Header("Fairline-Status", "The current status.", schema)


def headers_object(headers: Iterable[Header]) -> dict[str, Any]:
    """The ``headers`` of a response, if it has any."""
    objects = {
        one.name: {
            "description": one.description,
            "required": one.always,
            "schema": dict(one.schema),
        }
        for one in headers
    }
    return {"headers": objects} if objects else {}


IDEMPOTENCY_KEY = Parameter(
    "Idempotency-Key",
    "The same key with the same body returns the same jobs, for a day.",
    pattern("[ -~]{1,255}"),
)
IF_NONE_MATCH = Parameter("If-None-Match", "The `ETag` you have: 304 if nothing has changed.")
LAST_EVENT_ID = Parameter("Last-Event-ID", "Where to resume: the id of the last event received.")
LAST_EVENT_ID_IN_QUERY = Parameter("last_event_id", "For clients that cannot set the header.")

LOCATION = Header("Location", "The path of the new resource.")
ETAG = Header("ETag", "Changes with the content.")
LINK = Header("Link", 'The next page, if any, as `<…>; rel="next"`.', always=False)
ASK_AFTER = Header("Retry-After", "Seconds to wait before polling.", SECONDS)
ASK_AGAIN_AFTER = Header(
    "Retry-After", "Seconds to wait before polling again; absent once it has ended.", SECONDS, False
)
STATUS_OF_JOB = status_header(JobStatus)
STATUS_OF_APPLICATION = status_header(ApplicationStatus)
REPLAYED = Header(
    "Idempotent-Replayed",
    "The same request was received before.",
    {"type": "string", "const": "true"},
    False,
)
RATE_LIMIT = (
    Header("RateLimit", "What remains of your rate limit, if you have one.", always=False),
    Header("RateLimit-Policy", "Your rate limit, if you have one.", always=False),
)
#: Headers of an accepted submission.
SUBMITTED = (ASK_AFTER, REPLAYED, *RATE_LIMIT)

#: Errors of any submission.
SUBMISSION_ERRORS = (
    errors.RateLimited,
    errors.QueueDepthExceeded,
    errors.BrokerUnavailable,
    errors.BlobStoreUnavailable,
)


def unchanged(*headers: Header) -> Returns:
    """The answer to a request with the current ``ETag``."""
    return Returns(304, headers=(ETAG, *headers))


def submission(
    summary: str, accepted: type[BaseModel], body: type[BaseModel], status: Header
) -> Operation:
    """The operation that submits a job or an application."""
    return for_tenants(
        summary,
        Returns(202, accepted, (LOCATION, status, *SUBMITTED)),
        body=body,
        query=None,
        headers=(IDEMPOTENCY_KEY,),
        errors=(*SUBMISSION_ERRORS, errors.IdempotencyKeyReused),
    )


def poll(summary: str, content: type[BaseModel], status: Header) -> Operation:
    """The operation that reads a job or an application."""
    return for_tenants(
        summary,
        Returns(200, content, (ETAG, status, ASK_AGAIN_AFTER)),
        also=(unchanged(status, ASK_AGAIN_AFTER),),
        query=None,
        headers=(IF_NONE_MATCH,),
        head=True,
    )


def cancellation(
    summary: str, cancelled: type[BaseModel], stopping: type[BaseModel], status: Header
) -> Operation:
    """The operation that cancels a waiting job, or asks a running one to stop."""
    return for_tenants(
        summary,
        Returns(200, cancelled, (status,)),
        also=(Returns(202, stopping, (status, ASK_AFTER)),),
        errors=(errors.Conflict,),
    )
