"""The problem responses of an operation.

Most errors follow from the declaration: a body can be malformed, a key can be missing. The
others are declared.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from http import HTTPStatus
from typing import Any

import app.errors as errors
from app.api.auth.access import Access
from app.api.http.problems import AWAY_CODE, STATUS
from app.api.openapi.declared import RATE_LIMIT, SECONDS, Header, Operation
from models.store.errors import StateStoreError, StateStoreUnavailable

PROBLEM_TYPE = "application/problem+json"
PROBLEM = {"$ref": "#/components/schemas/Problem"}
RETRY_AFTER = Header("Retry-After", "Seconds to wait before trying again.", SECONDS)

HEADERS: dict[int, tuple[Header, ...]] = {
    HTTPStatus.UNAUTHORIZED: (Header("WWW-Authenticate", "The authentication scheme."),),
    HTTPStatus.TOO_MANY_REQUESTS: (RETRY_AFTER, *RATE_LIMIT),
    HTTPStatus.SERVICE_UNAVAILABLE: (RETRY_AFTER,),
}

#: Of every operation with a body.
BODY_ERRORS = (
    errors.MalformedBody,
    errors.RequestTimeout,
    errors.PayloadTooLarge,
    errors.UnsupportedMediaType,
    errors.ValidationFailed,
)
#: Of every operation with a key, which is looked up, and whose tenant is in a cell.
KEY_ERRORS = (
    errors.Unauthenticated,
    errors.Forbidden,
    StateStoreUnavailable,
    errors.CellUnavailable,
)


def errors_of(operation: Operation, names_something: bool) -> Iterator[type[Exception]]:
    """All errors of an operation; ``names_something``: its path contains an id or a name."""
    if operation.access is not Access.PUBLIC:
        yield from KEY_ERRORS
    if operation.counted and operation.access in (Access.TENANT, Access.TENANT_PAGE):
        yield errors.RequestRateExceeded
    if operation.body is not None:
        yield from BODY_ERRORS
    if operation.query is not None:
        yield errors.ValidationFailed
    if names_something:
        yield errors.NotFound
    yield from operation.errors
    yield errors.FairlineError


def status_and_code(error: type[Exception]) -> tuple[int, str]:
    """The status and code that callers get for an error."""
    if issubclass(error, errors.FairlineError):
        return STATUS[error].value, error.code
    assert issubclass(error, StateStoreError)
    return HTTPStatus.SERVICE_UNAVAILABLE.value, AWAY_CODE


def problem_responses(
    operation: Operation, names_something: bool, responses: dict[str, Any]
) -> dict[str, Any]:
    """References to an operation's problems by status; ``responses`` collects their targets."""
    codes: dict[int, set[str]] = {}
    for error in errors_of(operation, names_something):
        status, code = status_and_code(error)
        codes.setdefault(status, set()).add(code)
    references = {}
    for status in sorted(codes.keys() - {answer.status for answer in operation.answers}):
        listed = sorted(codes[status])
        name = f"{status}.{'.'.join(listed)}"
        responses.setdefault(name, problem_response(status, listed))
        references[str(status)] = {"$ref": f"#/components/responses/{name}"}
    return references


def problem_response(status: int, codes: list[str]) -> dict[str, Any]:
    """The response of this status with one of these codes."""
    narrowed = {"properties": {"status": {"const": status}, "code": {"enum": codes}}}
    return {
        "description": f"{HTTPStatus(status).phrase}: {', '.join(f'`{code}`' for code in codes)}.",
        "content": {PROBLEM_TYPE: {"schema": {"allOf": [PROBLEM, narrowed]}}},
        **headers_object(HEADERS.get(status, ())),
    }


def headers_object(headers: Iterable[Header]) -> dict[str, Any]:
    """The ``headers`` of a response, if it has any."""
    objects = {
        one.name: {"description": one.description, "required": one.always, "schema": one.schema}
        for one in headers
    }
    return {"headers": objects} if objects else {}
