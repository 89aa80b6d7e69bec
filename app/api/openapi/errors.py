"""What may go wrong with an operation, as responses of the document.

Which errors those are follows from how the operation is made: one with a body can be sent a
broken one, one with a key can be called without. The rest is declared.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from http import HTTPStatus
from typing import Any

import app.errors as errors
from app.api.auth.access import Access
from app.api.http.problems import AWAY_CODE, INTERNAL_CODE, STATUS
from app.api.openapi.declared import Header, Operation
from app.api.openapi.parts import RATE_LIMIT, SECONDS
from models.store.errors import StateStoreError, StateStoreUnavailable

PROBLEM_TYPE = "application/problem+json"
PROBLEM = {"$ref": "#/components/schemas/Problem"}

HEADERS: dict[int, tuple[Header, ...]] = {
    HTTPStatus.UNAUTHORIZED: (Header("WWW-Authenticate", "How to say who you are."),),
    HTTPStatus.TOO_MANY_REQUESTS: (
        Header("Retry-After", "Seconds after which to try again.", SECONDS),
        *RATE_LIMIT,
    ),
    HTTPStatus.SERVICE_UNAVAILABLE: (
        Header("Retry-After", "Seconds after which to try again.", SECONDS),
    ),
}

#: What may become of any body.
BODY_ERRORS = (
    errors.MalformedBody,
    errors.RequestTimeout,
    errors.PayloadTooLarge,
    errors.UnsupportedMediaType,
    errors.ValidationFailed,
)
#: What may become of any call with a key, which is looked up.
KEY_ERRORS = (errors.Unauthenticated, errors.Forbidden, StateStoreUnavailable)


def errors_of(
    operation: Operation, access: Access, names_something: bool
) -> Iterator[type[Exception]]:
    """Everything that may go wrong."""
    if access is not Access.PUBLIC:
        yield from KEY_ERRORS
    if operation.body is not None:
        yield from BODY_ERRORS
    if operation.query is not None:
        yield errors.ValidationFailed
    if names_something:
        yield errors.NotFound
    yield from operation.errors
    yield errors.FairlineError


def status_and_code(error: type[Exception]) -> tuple[int, str]:
    """What a caller is told of an error."""
    if issubclass(error, StateStoreError):
        return HTTPStatus.SERVICE_UNAVAILABLE.value, AWAY_CODE
    if error is errors.FairlineError:
        return HTTPStatus.INTERNAL_SERVER_ERROR.value, INTERNAL_CODE
    if not issubclass(error, errors.FairlineError):
        raise TypeError(f"{error.__name__} is nothing that a caller is told")
    return STATUS[error].value, error.code


def problem_responses(
    operation: Operation, access: Access, names_something: bool, responses: dict[str, Any]
) -> dict[str, Any]:
    """The problems of an operation by status; ``responses`` collects what they refer to."""
    found: dict[int, dict[str, None]] = {}
    for error in errors_of(operation, access, names_something):
        status, code = status_and_code(error)
        found.setdefault(status, {})[code] = None
    connection = {answer.status for answer in operation.answers}
    return {
        str(status): refer(status, tuple(codes), responses)
        for status, codes in sorted(found.items())
        if status not in connection
    }


def refer(status: int, codes: Iterable[str], responses: dict[str, Any]) -> dict[str, str]:
    """A reference to the response of this status with one of these codes."""
    listed = sorted(codes)
    name = f"{status}.{'.'.join(listed)}"
    if name not in responses:
        responses[name] = problem_response(status, listed)
    return {"$ref": f"#/components/responses/{name}"}


def problem_response(status: int, codes: list[str]) -> dict[str, Any]:
    """A response that tells of a problem."""
    told = {"properties": {"status": {"const": status}, "code": {"enum": codes}}}
    response: dict[str, Any] = {
        "description": f"{HTTPStatus(status).phrase}: {', '.join(f'`{code}`' for code in codes)}.",
        "content": {PROBLEM_TYPE: {"schema": {"allOf": [PROBLEM, told]}}},
    }
    headers = HEADERS.get(status, ())
    if headers:
        response["headers"] = {one.name: one.document for one in headers}
    return response
