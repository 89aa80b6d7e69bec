"""Parameters, headers and errors that several routes share."""

from __future__ import annotations

from typing import Any

import app.errors as errors
from app.api.openapi.declared import DeclaredResponse, Header, Parameter
from app.tenants.keys import SHORT
from app.tenants.tenant import NAME as TENANT_NAME
from models.jobs.states import ApplicationStatus, JobStatus
from tasks.registry import NAME as TYPE_NAME

SECONDS = {"type": "integer", "minimum": 1}
ID = {"type": "string", "format": "uuid"}
DEPENDENCY = {"type": "string", "minLength": 1, "examples": ["claude"]}
STREAM = {"type": "string"}


def pattern(expression: str) -> dict[str, Any]:
    """The schema of a text that fits an expression whole."""
    return {"type": "string", "pattern": f"^{expression}$"}


#: Everything that a path may name.
IN_PATHS = {
    one.name: one
    for one in (
        Parameter("application_id", "Of an application of yours.", ID),
        Parameter("job_id", "Of a job of yours.", ID),
        Parameter("schedule_id", "Of a schedule of yours.", ID),
        Parameter("name", "Of a tenant.", pattern(TENANT_NAME.pattern)),
        Parameter("key_id", "The first part of a key, after `fair_`.", pattern(SHORT.pattern)),
        Parameter("dependency", "What a job type depends on.", DEPENDENCY),
    )
}

CURSOR = Parameter("cursor", "From the `Link` of the page before.")
TYPE = Parameter("type", "Jobs of this type only.", pattern(TYPE_NAME.pattern))
POOL = Parameter("pool", "Jobs of this pool only.", pattern(TYPE_NAME.pattern))


def page_limit(usual: int, most: int) -> Parameter:
    """How many are on a page."""
    schema = {"type": "integer", "minimum": 1, "maximum": most, "default": usual}
    return Parameter("limit", "Most entries of a page.", schema)


def choice(name: str, description: str, values: tuple[str, ...]) -> Parameter:
    """A parameter with a closed set of values."""
    return Parameter(name, description, {"type": "string", "enum": list(values)})


IDEMPOTENCY_KEY = Parameter(
    "Idempotency-Key",
    "The same key with the same body gives the same jobs, for a day.",
    pattern("[ -~]{1,255}"),
)
IF_NONE_MATCH = Parameter("If-None-Match", "An `ETag` that you know: 304 if it is still so.")
LAST_EVENT_ID = Parameter("Last-Event-ID", "Where to go on: the id of the last event seen.")
LAST_EVENT_ID_IN_QUERY = Parameter(
    "last_event_id", "The same for clients that cannot set the header."
)

LOCATION = Header("Location", "Where it is found.")
ETAG = Header("ETag", "Another one as soon as anything has changed.")
LINK = Header("Link", 'The next page, as `<…>; rel="next"`, if there is one.', always=False)
ASK_AFTER = Header("Retry-After", "Seconds after which to ask for it.", SECONDS)
ASK_AGAIN_AFTER = Header(
    "Retry-After", "Seconds after which to ask again; none once it has ended.", SECONDS, False
)
STATUS_OF_JOB = Header(
    "Fairline-Status", "Its status.", {"type": "string", "enum": [one.value for one in JobStatus]}
)
STATUS_OF_APPLICATION = Header(
    "Fairline-Status",
    "Its status.",
    {"type": "string", "enum": [one.value for one in ApplicationStatus]},
)
REPLAYED = Header(
    "Idempotent-Replayed",
    "That the same request came before.",
    {"type": "string", "const": "true"},
    False,
)
RATE_LIMIT = (
    Header("RateLimit", "What is left of your rate, if you have a limit.", always=False),
    Header("RateLimit-Policy", "Your rate, if you have a limit.", always=False),
)
#: Of a reply to a submission.
SUBMITTED = (ASK_AFTER, REPLAYED, *RATE_LIMIT)

#: What may be in the way of any submission.
SUBMISSION_ERRORS = (
    errors.RateLimited,
    errors.QueueDepthExceeded,
    errors.BrokerUnavailable,
    errors.BlobStoreUnavailable,
)


def unchanged(status: Header) -> DeclaredResponse:
    """The answer to who knows the state already."""
    return DeclaredResponse(304, "It is as you know it.", headers=(ETAG, status, ASK_AGAIN_AFTER))
