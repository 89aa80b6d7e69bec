"""Maps every error to RFC 9457 ``application/problem+json``."""

from __future__ import annotations

import logging
from http import HTTPStatus
from typing import Any

from flask import Response
from werkzeug.exceptions import HTTPException

import app.errors as errors
from app.api.http.reply import RATE_POLICY, Reply, limit_headers, whole_seconds
from models.encryption.key_ring import DecryptionError
from models.store.errors import StateStoreError

logger = logging.getLogger(__name__)

STATUS: dict[type[errors.FairlineError], HTTPStatus] = {
    errors.MalformedBody: HTTPStatus.BAD_REQUEST,
    errors.ValidationFailed: HTTPStatus.UNPROCESSABLE_ENTITY,
    errors.UnsupportedMediaType: HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
    errors.PayloadTooLarge: HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    errors.RequestTimeout: HTTPStatus.REQUEST_TIMEOUT,
    errors.Unauthenticated: HTTPStatus.UNAUTHORIZED,
    errors.Forbidden: HTTPStatus.FORBIDDEN,
    errors.TenantSuspended: HTTPStatus.FORBIDDEN,
    errors.RateLimited: HTTPStatus.TOO_MANY_REQUESTS,
    errors.QueueDepthExceeded: HTTPStatus.TOO_MANY_REQUESTS,
    errors.IdempotencyKeysExceeded: HTTPStatus.TOO_MANY_REQUESTS,
    errors.BlobBytesExceeded: HTTPStatus.TOO_MANY_REQUESTS,
    errors.RequestRateExceeded: HTTPStatus.TOO_MANY_REQUESTS,
    errors.TenantStreamsExceeded: HTTPStatus.TOO_MANY_REQUESTS,
    errors.NotFound: HTTPStatus.NOT_FOUND,
    errors.Erased: HTTPStatus.GONE,
    errors.Conflict: HTTPStatus.CONFLICT,
    errors.IdempotencyKeyReused: HTTPStatus.UNPROCESSABLE_ENTITY,
    errors.BlobStoreUnavailable: HTTPStatus.SERVICE_UNAVAILABLE,
    errors.ContentUnreadable: HTTPStatus.SERVICE_UNAVAILABLE,
    errors.BrokerUnavailable: HTTPStatus.SERVICE_UNAVAILABLE,
    errors.TenantMoved: HTTPStatus.SERVICE_UNAVAILABLE,
    errors.CellUnavailable: HTTPStatus.SERVICE_UNAVAILABLE,
    errors.TooManyStreams: HTTPStatus.SERVICE_UNAVAILABLE,
    errors.FairlineError: HTTPStatus.INTERNAL_SERVER_ERROR,
}

#: Codes that differ from Python's name of the status, which changes with its version.
CODES = {413: "PAYLOAD_TOO_LARGE", 414: "URI_TOO_LONG"}

#: Replace Werkzeug's texts.
DETAILS = {
    404: "There is no such path.",
    405: "This path does not support that method; see the Allow header.",
}

#: Codes of errors without a class: the state store is unavailable, or an unexpected exception.
AWAY_CODE = "STATE_STORE_UNAVAILABLE"
#: A group may still be committed after its callers gave up, so no more is promised.
AWAY_DETAIL = (
    "The state store did not respond in time; whether the request was processed is unknown."
    " Please try again, with the same Idempotency-Key if it is a submission."
)
INTERNAL_CODE = errors.FairlineError.code

#: How draft-ietf-httpapi-ratelimit-headers-11 calls refusals for a quota, and our quotas by code.
QUOTA_EXCEEDED = {
    "type": "https://iana.org/assignments/http-problem-types#quota-exceeded",
    "title": "Request cannot be satisfied as assigned quota has been exceeded",
}
POLICIES = {
    errors.RateLimited.code: RATE_POLICY,
    errors.QueueDepthExceeded.code: "queue-depth",
    errors.IdempotencyKeysExceeded.code: "idempotency-keys",
    errors.BlobBytesExceeded.code: "blob-bytes",
    errors.RequestRateExceeded.code: "requests",
    errors.TenantStreamsExceeded.code: "event-streams",
}

#: By status; Retry-After is in seconds.
HEADERS = {401: {"WWW-Authenticate": "Bearer"}, 503: {"Retry-After": "2"}}


def code_of(status: HTTPStatus) -> str:
    """The code of an error that has no class of its own."""
    return CODES.get(status, status.name)


def members(
    status: HTTPStatus, code: str, detail: str, fields: tuple[errors.FieldError, ...] = ()
) -> dict[str, Any]:
    """A problem document."""
    body: dict[str, Any] = {
        "type": f"urn:fairline:problem:{code.lower().replace('_', '-')}",
        "title": status.phrase,
        "status": status.value,
        "code": code,
        "detail": detail,
    }
    if code in POLICIES:
        body |= {**QUOTA_EXCEEDED, "violated-policies": [POLICIES[code]]}
    if fields:
        body["errors"] = [{"field": error.field, "message": error.message} for error in fields]
    return body


def problem(
    status: HTTPStatus,
    code: str,
    detail: str,
    fields: tuple[errors.FieldError, ...] = (),
    headers: dict[str, str] | None = None,
) -> Response:
    """A problem document as a response."""
    document = members(status, code, detail, fields)
    headers = {**HEADERS.get(status, {}), **(headers or {})}
    return Reply(document, status.value, headers, "application/problem+json")


def problem_of(error: Exception) -> Any:
    """The response to an exception."""
    match error:
        case errors.FairlineError():
            headers = limits_of(error) if isinstance(error, errors.Refused) else {}
            status = STATUS.get(type(error), HTTPStatus.INTERNAL_SERVER_ERROR)
            return problem(status, error.code, error.detail, error.errors, headers)
        case StateStoreError():
            logger.warning("503: %s", error)
            return problem(HTTPStatus.SERVICE_UNAVAILABLE, AWAY_CODE, AWAY_DETAIL)
        case DecryptionError():
            logger.error("503: %s", error)
            return problem_of(errors.ContentUnreadable(str(error)))
        case HTTPException():
            return _http(error)
        case _:
            logger.error("unexpected error", exc_info=error)
            return problem(
                HTTPStatus.INTERNAL_SERVER_ERROR, INTERNAL_CODE, "An unexpected error occurred."
            )


def limits_of(error: errors.Refused) -> dict[str, str]:
    """When to try again, and what remains of the limit."""
    seconds = str(whole_seconds(error.retry_seconds))
    return {"Retry-After": seconds, **limit_headers(error.allowance)}


def _http(error: HTTPException) -> Any:
    status = HTTPStatus(error.code or 500)
    if status < HTTPStatus.BAD_REQUEST:
        return error.get_response()  # a redirect, which needs its Location
    headers = {}
    if status is HTTPStatus.METHOD_NOT_ALLOWED:
        headers["Allow"] = ", ".join(getattr(error, "valid_methods", None) or ())
    detail = DETAILS.get(status) or error.description or status.phrase
    return problem(status, code_of(status), detail, headers=headers)
