"""What can go wrong at the front door. Knows nothing of HTTP; ``app.api.http.problems`` does."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from app.policy.rate_limit import RateAllowance


@dataclass(frozen=True, slots=True)
class FieldError:
    """One field that is not as it should be."""

    #: Path in the body, such as ``payload.years`` or ``(body)``.
    field: str
    message: str


class FairlineError(Exception):
    """Something went wrong."""

    #: Stable, upper-case, part of the API.
    code = "INTERNAL_ERROR"

    def __init__(self, detail: str | None = None, errors: tuple[FieldError, ...] = ()) -> None:
        self.detail = detail or (type(self).__doc__ or "").strip()
        self.errors = errors
        super().__init__(self.detail)


class MalformedBody(FairlineError):
    """The body is not valid JSON."""

    code = "VALIDATION_FAILED"


class ValidationFailed(FairlineError):
    """The request does not fit the schema."""

    code = "VALIDATION_FAILED"


class UnsupportedMediaType(FairlineError):
    """Send the body as application/json."""

    code = "UNSUPPORTED_MEDIA_TYPE"


class PayloadTooLarge(FairlineError):
    """The body is larger than this server takes."""

    code = "PAYLOAD_TOO_LARGE"


class RequestTimeout(FairlineError):
    """The body did not arrive in time."""

    code = "REQUEST_TIMEOUT"


class Unauthenticated(FairlineError):
    """An API key is needed."""

    code = "UNAUTHENTICATED"


class Forbidden(FairlineError):
    """This API key does not open this."""

    code = "FORBIDDEN"


class Refused(FairlineError):
    """There is too much of this already; try again later."""

    def __init__(
        self,
        detail: str | None = None,
        *,
        retry_seconds: float,
        allowance: RateAllowance | None = None,
    ) -> None:
        super().__init__(detail)
        #: From when on it is worth to try again.
        self.retry_seconds = retry_seconds
        self.allowance = allowance


class RateLimited(Refused):
    """The tenant submits more often than it may."""

    code = "TENANT_RATE_LIMIT_EXCEEDED"


class QueueDepthExceeded(Refused):
    """The tenant has as many jobs waiting as it may."""

    code = "TENANT_QUEUE_DEPTH_EXCEEDED"


class NotFound(FairlineError):
    """There is no such thing, or it is not yours."""

    code = "NOT_FOUND"


class Conflict(FairlineError):
    """The job has ended; there is nothing left to do."""

    code = "CONFLICT"


class IdempotencyKeyReused(FairlineError):
    """This Idempotency-Key was used for another request."""

    code = "IDEMPOTENCY_KEY_REUSED"


class BlobStoreUnavailable(FairlineError):
    """The store for large payloads does not answer."""

    code = "BLOB_STORE_UNAVAILABLE"


class TooManyStreams(FairlineError):
    """This process has as many event streams as it can serve."""

    code = "TOO_MANY_STREAMS"


class BrokerUnavailable(FairlineError):
    """The broker did not confirm in time."""

    code = "BROKER_UNAVAILABLE"
