"""Request bodies: bounded in size and time, parsed strictly, validated by a schema."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import orjson
from flask import request
from gevent import Timeout
from pydantic import BaseModel, ValidationError
from werkzeug.sansio.utils import get_content_length

from app.api.http.complete_body import CompleteBody
from app.api.services import current_services
from app.errors import (
    MalformedBody,
    PayloadTooLarge,
    RequestTimeout,
    UnsupportedMediaType,
    ValidationFailed,
    field_error,
    invalid_document,
)
from app.validation import ErrorBudget, find_nul, refuse_many_fields

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIEnvironment

Schema = TypeVar("Schema", bound=BaseModel)

JSON = "application/json"
CHUNK_BYTES = 65_536
#: How much of a body that is too large is still read, so that its sender receives the answer.
DRAIN_BYTES = 16 * 1_048_576


@dataclass(frozen=True, slots=True)
class BodyLimits:
    """Limits of request bodies."""

    most_bytes: int
    #: The whole body must arrive within this time.
    seconds: float


class JsonDocument(NamedTuple):
    """A JSON body."""

    raw: bytes
    #: As orjson parses it: integers beyond 64 bits have become floats.
    plain: Any


def parse_body(schema: type[Schema]) -> Schema:
    """The validated body of the current request."""
    return validate_body(read_document(request.environ, current_services().body_limits), schema)


def read_document(environ: WSGIEnvironment, limits: BodyLimits) -> JsonDocument:
    """The body of a request as JSON."""
    content_type = environ.get("CONTENT_TYPE", "")
    if content_type != JSON and content_type.partition(";")[0].strip().lower() != JSON:
        raise UnsupportedMediaType
    if environ.get("HTTP_CONTENT_ENCODING", "identity").lower() != "identity":
        raise UnsupportedMediaType("Send the body without a Content-Encoding.")
    body = read_body(environ, limits)
    try:
        # Stricter than Pydantic's parser: no NaN, no Infinity, no lone surrogates.
        return JsonDocument(body, orjson.loads(body))
    except orjson.JSONDecodeError as error:
        raise MalformedBody(f"The body is not valid JSON: {error}") from None


def validate_body(document: JsonDocument, schema: type[Schema]) -> Schema:
    """The document, validated by the schema."""
    if may_hold_nul(document):
        refuse_nul(document.plain)
    return validate_outline(document, schema)


def validate_outline(document: JsonDocument, schema: type[Schema]) -> Schema:
    """The same for a schema with parts of any type, which the caller checks for NULs."""
    refuse_many_fields(document.plain, schema)
    ErrorBudget().spend(document.plain, schema)
    try:
        return schema.model_validate_json(document.raw)
    except ValidationError as error:
        raise invalid_document(error) from None


def may_hold_nul(document: JsonDocument) -> bool:
    """Whether to search the parsed document for NUL characters."""
    return b"\\u0000" in document.raw


def refuse_nul(plain: Any) -> None:
    """Raise for a NUL character, which cannot be stored."""
    if (path := find_nul(plain)) is not None:
        raise ValidationFailed(errors=(field_error(path, "must not contain NUL characters"),))


def read_body(environ: WSGIEnvironment, limits: BodyLimits) -> bytes:
    """The body, if within the limits; memory use is bounded either way."""
    stream = environ["wsgi.input"]
    most = limits.most_bytes
    if isinstance(stream, CompleteBody):
        # The whole body has arrived: no timeout is needed.
        whole = stream.read(most + 1)
        if len(whole) <= most:
            return whole
        stream.seek(0)
    chunks: list[bytes] = []
    size = 0
    length = get_content_length(
        environ.get("CONTENT_LENGTH"), environ.get("HTTP_TRANSFER_ENCODING")
    )
    too_large = length is not None and length > most
    left = DRAIN_BYTES if length is None else min(length, DRAIN_BYTES)
    try:
        with Timeout(limits.seconds, RequestTimeout):
            while left > 0 and (chunk := stream.read(min(CHUNK_BYTES, left))):
                size += len(chunk)
                left -= len(chunk)
                if size > most:
                    too_large = True
                    chunks.clear()
                if not too_large:
                    chunks.append(chunk)
    except RequestTimeout:
        raise
    except Exception as error:  # gunicorn's parse errors have no other base class
        raise MalformedBody("The body is truncated or not framed correctly.") from error
    if too_large:
        raise PayloadTooLarge(f"The body must not exceed {most:,} bytes.")
    if length is not None and size < length:
        raise MalformedBody("The body is shorter than its Content-Length.")
    return b"".join(chunks)
