"""How a route declares its access, parameters and answers, and what several routes share.

A declaration is an attribute of the function. It wraps nothing and costs a request nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from pydantic import BaseModel

import app.errors as errors
from app.api.auth.access import Access, open_to
from app.api.http.idempotency import KEY
from app.api.http.query import PARTIAL_VALUES
from app.tenants.keys import SHORT
from app.tenants.scopes import Scope
from app.tenants.tenant import NAME as TENANT_NAME
from models.audit import Act
from models.jobs.states import ApplicationStatus, JobStatus
from tasks.registry import NAME as TYPE_NAME

View = TypeVar("View", bound=Callable[..., Any])
Schema = Mapping[str, Any]

#: Attribute of a view function with its operation.
DECLARED = "fairline_operation"

JSON = "application/json"


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter in the query, the path or a header."""

    name: str
    description: str
    schema: Schema = field(default_factory=lambda: {"type": "string"})


@dataclass(frozen=True, slots=True)
class Header(Parameter):
    """A header of an answer."""

    #: Whether every such answer has it.
    always: bool = True


@dataclass(frozen=True, slots=True)
class Returns:
    """An answer of a view that is not a problem."""

    status: int
    #: None: no body; a mapping: a schema without a model.
    content: type[BaseModel] | Schema | None = None
    headers: tuple[Header, ...] = ()
    #: By default that of the model, or the name of the status.
    description: str = ""
    content_type: str = JSON


@dataclass(frozen=True, slots=True)
class Operation:
    """Declares a view's access, parameters and answers; its docstring is the description."""

    access: Access
    #: Of a key that may call it; None if it is public.
    scope: Scope | None
    summary: str
    answer: Returns
    #: Other answers that are not problems.
    also: tuple[Returns, ...] = ()
    #: Schema of the body; None: there is none.
    body: type[BaseModel] | None = None
    body_required: bool = True
    #: All allowed query parameters. None: they are ignored, and unknown ones are not rejected.
    query: tuple[Parameter, ...] | None = ()
    headers: tuple[Parameter, ...] = ()
    #: Errors besides those that follow from the other fields.
    errors: tuple[type[Exception], ...] = ()
    #: Whether HEAD is documented too.
    head: bool = False
    #: Other scopes that are enough.
    or_scopes: tuple[Scope, ...] = ()
    #: What it is recorded as in the audit log; None: it is read-only.
    acts: tuple[Act, ...] | None = None
    #: Whether it is one of the requests whose rate is limited for each tenant.
    counted: bool = True

    def __call__(self, view: View) -> View:
        setattr(view, DECLARED, self)
        declare = open_to(self.access, *self.scopes, acts=self.acts, counted=self.counted)
        return declare(view)

    @property
    def scopes(self) -> tuple[Scope, ...]:
        """Those of which a key needs one."""
        return () if self.scope is None else (self.scope, *self.or_scopes)

    @property
    def answers(self) -> tuple[Returns, ...]:
        return (self.answer, *self.also)


for_anyone = partial(Operation, Access.PUBLIC, None)
for_tenants = partial(Operation, Access.TENANT)
for_operators = partial(Operation, Access.OPERATOR)


def operation_of(view: Callable[..., Any] | None) -> Operation | None:
    """The operation a view declared."""
    return getattr(view, DECLARED, None)


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
        Parameter("replay_id", "The id of one of your replays.", ID),
        Parameter("schedule_id", "The id of one of your schedules.", ID),
        Parameter("name", "The name of a tenant.", pattern(TENANT_NAME.pattern)),
        Parameter("key_id", "The first part of a key, after `fair_`.", pattern(SHORT.pattern)),
        Parameter("dependency", "A dependency of a job type.", DEPENDENCY),
    )
}

TYPE = Parameter("type", "Only jobs of this type.", pattern(TYPE_NAME.pattern))
POOL = Parameter("pool", "Only jobs of this pool.", pattern(TYPE_NAME.pattern))


def paging(usual: int, most: int) -> tuple[Parameter, ...]:
    """The parameters of a list with pages."""
    schema = {"type": "integer", "minimum": 1, "maximum": most, "default": usual}
    limit = Parameter("limit", "Maximum number of entries per page.", schema)
    return limit, Parameter("cursor", "From the `Link` header of the previous page.")


def choice(name: str, description: str, values: tuple[str, ...]) -> Parameter:
    """A parameter with a closed set of values."""
    return Parameter(name, description, {"type": "string", "enum": list(values)})


PARTIAL = choice(
    "partial",
    "`true`: if a cell does not respond, what the others have; else that is a 503. For accounts"
    " that are large enough to live in several cells.",
    PARTIAL_VALUES,
)


def status_header(statuses: type[JobStatus | ApplicationStatus]) -> Header:
    """The current status."""
    schema = {"type": "string", "enum": [status.value for status in statuses]}
    return Header("Fairline-Status", "The current status.", schema)


IDEMPOTENCY_KEY = Parameter(
    "Idempotency-Key",
    "The same key with the same body returns the same jobs, for a day; with or without quotes.",
    pattern(f"({KEY.pattern})"),
)
PREFER = Parameter(
    "Prefer",
    "`wait=` and a number of seconds, at most 50: the response comes when the job has ended, or"
    " after that time (RFC 7240).",
)
IF_NONE_MATCH = Parameter("If-None-Match", "The `ETag` you have: 304 if nothing has changed.")
LAST_EVENT_ID = Parameter("Last-Event-ID", "Where to resume: the id of the last event received.")
LAST_EVENT_ID_IN_QUERY = Parameter("last_event_id", "For clients that cannot set the header.")

APPLIED = Header("Preference-Applied", "`wait`, if it was waited for.", always=False)
LOCATION = Header("Location", "The path of the new resource.")
ETAG = Header("ETag", "Changes with the content.")
LAG = Header(
    "Fairline-Lag",
    "How old the content is at most, in seconds, where it is read from a standby; send"
    " `Cache-Control: no-cache` to see what you have just changed.",
    {"type": "number", "minimum": 0},
    always=False,
)
LINK = Header("Link", 'The next page, if any, as `<…>; rel="next"`.', always=False)
MISSING = Header(
    "Fairline-Missing-Cells",
    "With `partial`: the cells that did not respond, and whose part is missing.",
    always=False,
)
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
    errors.TenantSuspended,
    errors.RateLimited,
    errors.QueueDepthExceeded,
    errors.BlobBytesExceeded,
    errors.BrokerUnavailable,
    errors.BlobStoreUnavailable,
)


def unchanged(*headers: Header) -> Returns:
    """The answer to a request with the current ``ETag``."""
    return Returns(304, headers=(ETAG, *headers))


#: Errors of a submission with an idempotency key.
KEYED_ERRORS = (errors.IdempotencyKeyReused, errors.IdempotencyKeysExceeded)


def submission(
    summary: str,
    accepted: type[BaseModel],
    ended: type[BaseModel],
    body: type[BaseModel],
    status: Header,
) -> Operation:
    """The operation that submits a job or an application."""
    return for_tenants(
        Scope.SUBMIT,
        summary,
        Returns(202, accepted, (LOCATION, status, *SUBMITTED, APPLIED)),
        also=(Returns(200, ended, (LOCATION, ETAG, status, REPLAYED, *RATE_LIMIT, APPLIED)),),
        body=body,
        query=None,
        headers=(IDEMPOTENCY_KEY, PREFER),
        errors=(*SUBMISSION_ERRORS, *KEYED_ERRORS, errors.ContentUnreadable),
        acts=(),
        counted=False,
    )


def poll(summary: str, content: type[BaseModel], status: Header) -> Operation:
    """The operation that reads a job or an application."""
    return for_tenants(
        Scope.READ,
        summary,
        Returns(200, content, (ETAG, status, ASK_AGAIN_AFTER, APPLIED)),
        also=(unchanged(status, ASK_AGAIN_AFTER, APPLIED),),
        query=None,
        headers=(IF_NONE_MATCH, PREFER),
        errors=(errors.Erased, errors.ContentUnreadable),
        head=True,
    )


def cancellation(
    summary: str,
    cancelled: type[BaseModel],
    stopping: type[BaseModel],
    status: Header,
    gone: tuple[type[Exception], ...] = (),
) -> Operation:
    """The operation that cancels a waiting job, or stops a running one."""
    return for_tenants(
        Scope.SUBMIT,
        summary,
        Returns(200, cancelled, (status,)),
        also=(Returns(202, stopping, (status, ASK_AFTER)),),
        errors=(errors.Conflict, *gone),
        acts=(),
    )
