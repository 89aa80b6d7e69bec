"""Every error as RFC 9457 ``application/problem+json``: the one place that knows both sides."""

from __future__ import annotations

import logging
from http import HTTPStatus
from typing import Any

import orjson
from flask import Flask, Response
from werkzeug.exceptions import HTTPException

from app import errors
from models.errors import StateStoreError

logger = logging.getLogger(__name__)

STATUS: dict[type[errors.FairlineError], HTTPStatus] = {
    errors.MalformedBody: HTTPStatus.BAD_REQUEST,
    errors.ValidationFailed: HTTPStatus.UNPROCESSABLE_ENTITY,
    errors.UnsupportedMediaType: HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
    errors.PayloadTooLarge: HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    errors.RequestTimeout: HTTPStatus.REQUEST_TIMEOUT,
    errors.Unauthenticated: HTTPStatus.UNAUTHORIZED,
    errors.NotFound: HTTPStatus.NOT_FOUND,
    errors.BrokerUnavailable: HTTPStatus.SERVICE_UNAVAILABLE,
}

#: Seconds a caller should wait when the state store is away.
RETRY_AFTER_SECONDS = 2


def problem(
    status: HTTPStatus,
    code: str,
    detail: str,
    fields: tuple[errors.FieldError, ...] = (),
    headers: dict[str, str] | None = None,
) -> Response:
    """A problem document."""
    body: dict[str, Any] = {
        "type": f"urn:fairline:problem:{code.lower().replace('_', '-')}",
        "title": status.phrase,
        "status": status.value,
        "code": code,
        "detail": detail,
    }
    if fields:
        body["errors"] = [{"field": error.field, "message": error.message} for error in fields]
    return Response(
        orjson.dumps(body), status.value, headers, content_type="application/problem+json"
    )


def register_problems(app: Flask) -> None:
    """Turn every exception that reaches Flask into a problem document."""

    @app.errorhandler(errors.FairlineError)
    def _ours(error: errors.FairlineError) -> Response:
        status = STATUS.get(type(error), HTTPStatus.INTERNAL_SERVER_ERROR)
        headers = {"WWW-Authenticate": "Bearer"} if status is HTTPStatus.UNAUTHORIZED else None
        return problem(status, error.code, error.detail, error.errors, headers)

    @app.errorhandler(StateStoreError)
    def _away(error: StateStoreError) -> Response:
        logger.warning("503: %s", error)
        return problem(
            HTTPStatus.SERVICE_UNAVAILABLE,
            "STATE_STORE_UNAVAILABLE",
            "The state store does not answer; nothing was accepted. Please try again.",
            headers={"Retry-After": str(RETRY_AFTER_SECONDS)},
        )

    @app.errorhandler(HTTPException)
    def _http(error: HTTPException) -> Response:
        status = HTTPStatus(error.code or 500)
        headers = {}
        if status is HTTPStatus.METHOD_NOT_ALLOWED:
            headers["Allow"] = ", ".join(getattr(error, "valid_methods", None) or ())
        code = {404: "NOT_FOUND", 413: "PAYLOAD_TOO_LARGE"}.get(status, status.name)
        return problem(status, code, error.description or status.phrase, headers=headers)

    @app.errorhandler(Exception)
    def _unexpected(error: Exception) -> Response:
        logger.exception("unexpected")
        return problem(
            HTTPStatus.INTERNAL_SERVER_ERROR, "INTERNAL_ERROR", "Something unexpected happened."
        )
