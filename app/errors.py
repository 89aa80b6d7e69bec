"""Errors of the API, independent of HTTP; ``app.api.http.problems`` maps them to responses.

The docstring of a class is its default message to the client.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pydantic import ValidationError

from tasks.errors_of_schema import MOST_ERRORS, first_errors

if TYPE_CHECKING:
    from app.policy.rate_limit import RateAllowance

#: Most characters of a field's name or message that are sent back.
MOST_NAME = 200


@dataclass(frozen=True, slots=True)
class FieldError:
    """An invalid field."""

    #: Path in the body, such as ``payload.years`` or ``(body)``.
    field: str
    message: str


class FairlineError(Exception):
    """Something went wrong."""

    #: Stable, upper-case, part of the API.
    code = "INTERNAL_ERROR"

    def __init_subclass__(cls, code: str = "") -> None:
        cls.code = code or cls.code

    def __init__(self, detail: str | None = None, errors: tuple[FieldError, ...] = ()) -> None:
        self.detail = detail or (type(self).__doc__ or "").strip()
        self.errors = errors
        super().__init__(self.detail)

    def explain(self) -> str:
        """What is wrong, field by field if it is about fields."""
        return "; ".join(f"{one.field} {one.message}" for one in self.errors) or self.detail


class MalformedBody(FairlineError, code="VALIDATION_FAILED"):
    """The body is not valid JSON."""


class ValidationFailed(FairlineError, code="VALIDATION_FAILED"):
    """The request does not match the schema."""

    def __init__(
        self, detail: str | None = None, errors: tuple[FieldError, ...] = (), total: int = 0
    ) -> None:
        """``total``: how many errors there are, if not all are given."""
        listed = errors[:MOST_ERRORS]
        super().__init__(detail, listed)
        self._said = self.detail
        self.total = max(total, len(errors))
        if self.total > len(listed):
            self.detail += f" The first {len(listed)} of {self.total:,} errors are listed."

    def first(self, most: int) -> ValidationFailed:
        """The same with fewer of the errors."""
        return ValidationFailed(self._said, self.errors[:most], self.total)


class UnsupportedMediaType(FairlineError, code="UNSUPPORTED_MEDIA_TYPE"):
    """Send the body as application/json."""


class PayloadTooLarge(FairlineError, code="PAYLOAD_TOO_LARGE"):
    """The body is too large."""


class RequestTimeout(FairlineError, code="REQUEST_TIMEOUT"):
    """The body did not arrive in time."""


class Unauthenticated(FairlineError, code="UNAUTHENTICATED"):
    """An API key is required."""


class Forbidden(FairlineError, code="FORBIDDEN"):
    """This API key does not grant access to this resource."""


class TenantSuspended(FairlineError, code="TENANT_SUSPENDED"):
    """Your account is suspended: queued jobs wait, and nothing more is accepted."""


class Refused(FairlineError):
    """A limit was reached; try again later."""

    def __init__(
        self,
        detail: str | None = None,
        *,
        retry_seconds: float,
        allowance: RateAllowance | None = None,
    ) -> None:
        super().__init__(detail)
        #: When it makes sense to try again.
        self.retry_seconds = retry_seconds
        self.allowance = allowance


class RateLimited(Refused, code="TENANT_RATE_LIMIT_EXCEEDED"):
    """The tenant exceeded its submission rate."""


class QueueDepthExceeded(Refused, code="TENANT_QUEUE_DEPTH_EXCEEDED"):
    """The tenant has reached its limit of waiting jobs."""


class IdempotencyKeysExceeded(Refused, code="TENANT_IDEMPOTENCY_KEYS_EXCEEDED"):
    """The tenant has reached its limit of idempotency keys."""


class BlobBytesExceeded(Refused, code="TENANT_BLOB_BYTES_EXCEEDED"):
    """The tenant has reached its limit of bytes in the blob store."""


class RequestRateExceeded(Refused, code="TENANT_REQUEST_RATE_EXCEEDED"):
    """The tenant exceeded its rate of requests other than submissions."""


class NotFound(FairlineError, code="NOT_FOUND"):
    """It does not exist, or it does not belong to you."""


class Erased(FairlineError, code="ERASED"):
    """It was erased."""


class Conflict(FairlineError, code="CONFLICT"):
    """The job has already ended."""


class IdempotencyKeyReused(FairlineError, code="IDEMPOTENCY_KEY_REUSED"):
    """This Idempotency-Key was used for a different request."""


class BlobStoreUnavailable(FairlineError, code="BLOB_STORE_UNAVAILABLE"):
    """The store for large payloads is not responding."""


class ContentUnreadable(FairlineError, code="CONTENT_UNREADABLE"):
    """It is stored encrypted, and its key is not available."""


class TooManyStreams(FairlineError, code="TOO_MANY_STREAMS"):
    """This process has reached its limit of event streams."""


class TenantStreamsExceeded(Refused, code="TENANT_STREAMS_EXCEEDED"):
    """The tenant has reached its limit of event streams in this process; close some."""


class TenantMoved(FairlineError, code="TENANT_MOVED"):
    """Your account is being moved; please try again in a moment."""


class CellUnavailable(FairlineError, code="CELL_UNAVAILABLE"):
    """The part of the platform that your account is in is not responding."""


class BrokerUnavailable(FairlineError, code="BROKER_UNAVAILABLE"):
    """The broker did not confirm in time."""


def invalid_field(field: str, message: str) -> ValidationFailed:
    """The error for one invalid field, parameter or header."""
    return ValidationFailed(errors=(FieldError(field, message),))


def invalid_document(error: ValidationError, within: str = "") -> ValidationFailed:
    """Pydantic's errors as ours; ``within`` names the field that was validated."""
    prefix = [within] if within else []
    errors = tuple(
        field_error(".".join([*prefix, *map(str, entry["loc"])]) or "(body)", entry["msg"])
        for entry in first_errors(error)
    )
    return ValidationFailed(errors=errors, total=error.error_count())


def field_error(path: str, message: str) -> FieldError:
    """An error that does not send a megabyte of name back to its sender."""
    return FieldError(shortened(path), shortened(message))


def shortened(text: str) -> str:
    """The beginning of a text, if it is long."""
    return text if len(text) <= MOST_NAME else f"{text[:MOST_NAME]}…"
