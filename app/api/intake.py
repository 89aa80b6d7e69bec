"""Intake: validated bodies become submissions, submissions become rows.

A large payload goes to the blob store before the commit, so that no row ever names a blob
that is not there. A blob whose row was not inserted is removed at once where that is certain,
and collected later where it is not.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from random import Random

from gevent import Timeout
from pydantic import BaseModel, ValidationError
from pydantic_core import to_json

from app.admission import Admitted, Key, Submission
from app.admission.jitter import jittered_time
from app.api.body import field_error, field_errors
from app.api.schemas import SubmitJob, Timing
from app.api.services import Services
from app.errors import (
    BlobStoreUnavailable,
    FieldError,
    IdempotencyKeyReused,
    QueueDepthExceeded,
    ValidationFailed,
)
from app.fairshare import Tier
from app.tenants.tenant import Tenant
from models.blobs import INLINE_BYTES, BlobError, BlobStore, payload_key
from models.ids import new_id
from tasks.jobs.score_application import ApplicationPayload
from tasks.registry import JobType

logger = logging.getLogger(__name__)

#: How long all blobs of a request may take together.
BLOB_SECONDS = 5.0
#: Job types named to a caller who does not know them.
MOST_NAMED = 50
#: Most bytes of UTF-8 that a character has.
CHARACTER_BYTES = 4

_chance = Random()


def job_submission(types: Mapping[str, JobType], tenant_id: int, body: SubmitJob) -> Submission:
    """A body of ``POST /jobs`` or an item of a batch as a submission."""
    job_type = types.get(body.type)
    if job_type is None:
        known = ", ".join(sorted(types)[:MOST_NAMED])
        raise ValidationFailed(errors=(FieldError("type", f"is not registered; known: {known}"),))
    fitted = check_payload(job_type, body.payload)
    payload, candidate, role = body.payload, None, None
    if isinstance(fitted, ApplicationPayload):
        # The same as POST /applications, leaderboard included.
        payload, candidate, role = fitted.model_dump(), fitted.candidate, fitted.role
    return Submission(
        id=new_id(),
        tenant_id=tenant_id,
        type=job_type.name,
        pool=job_type.pool,
        payload=to_json(payload).decode(),
        candidate=candidate,
        role=role,
        priority=body.priority,
        execute_at=start_of(body),
        not_after=body.not_after,
        dependency=job_type.dependency or "",
    )


def check_payload(job_type: JobType, payload: object) -> BaseModel | None:
    """The payload as the type's schema reads it; refuse what it does not take."""
    if job_type.schema is None:
        return None
    try:
        return job_type.schema.model_validate(payload)
    except ValidationError as error:
        raise ValidationFailed(errors=field_errors(error, "payload")) from None
    except Exception as error:  # a validator of the author's that trips over what it was given
        logger.warning("the schema of %s raised %r", job_type.name, error)
        message = f"cannot be read as {job_type.name} takes it"
        raise ValidationFailed(errors=(field_error("payload", message),)) from error


def start_of(body: Timing) -> datetime | None:
    """When the job may run; a window that ends before it opens is refused."""
    if body.execute_at is None:
        return None
    if body.not_after is not None and body.not_after < body.execute_at:
        raise ValidationFailed(errors=(FieldError("not_after", "is before execute_at"),))
    return jittered_time(body.execute_at, datetime.now(UTC), _chance, body.jitter, body.not_after)


def directed(
    house: Services, tenant: Tenant, submissions: Sequence[Submission]
) -> Sequence[Submission]:
    """The submissions with the pool they belong to and the way they may take."""
    submissions = house.pools_of_types.place(submissions)
    if tenant.tier == Tier.FREE:
        return [item._replace(express=False) for item in submissions]
    return submissions


def take_in(
    house: Services, tenant: Tenant, submissions: Sequence[Submission], key: Key | None
) -> Admitted:
    """Make the submissions of one request durable, all of them or none."""
    submissions = directed(house, tenant, submissions)
    entered = house.gate.enter(tenant, submissions)
    joined = entered.full is None
    try:
        if entered.full is not None and not house.gate.repeats(tenant, key):
            refused = house.gate.too_deep(tenant, entered.full)
            house.gate.count(tenant, refused, len(submissions))
            raise refused
        admitted = make_durable(house, submissions, key)
        joined = not admitted.repeated
        return admitted
    finally:
        house.gate.settle(tenant, entered, joined=joined)


def take_what_fits(
    house: Services, tenant: Tenant, submissions: Sequence[Submission]
) -> tuple[Admitted, dict[str, QueueDepthExceeded]]:
    """Make those durable, together, that their lines take; the others by id, with the reason."""
    submissions = directed(house, tenant, submissions)
    entered = house.gate.enter(tenant, submissions)
    try:
        left, fitting = dict(entered.jobs), []
        refused: dict[str, QueueDepthExceeded] = {}
        for item in submissions:
            left[item.pool] -= 1
            if left[item.pool] >= 0:
                fitting.append(item)
            else:
                refused[item.id] = house.gate.too_deep(tenant, item.pool)
        if refused:
            last = refused[next(reversed(refused))]
            house.gate.count(tenant, last, len(refused))
            if not fitting:
                raise last
        return make_durable(house, fitting, None), refused
    finally:
        house.gate.settle(tenant, entered)


def make_durable(house: Services, submissions: Sequence[Submission], key: Key | None) -> Admitted:
    """Write the submissions of one request, together."""
    large = [item.id for item in submissions if is_large(item.payload)]
    if large:
        submissions = put_payloads(house.blobs, submissions, set(large))
    try:
        admitted = house.admission.admit(submissions, key)
    except IdempotencyKeyReused:
        discard_payloads(house.blobs, large)
        raise
    if admitted.repeated:
        discard_payloads(house.blobs, large)
    return admitted


def status_of(submission: Submission, admitted: Admitted) -> str:
    """What a reply calls the status: the same for a repetition as for the first request."""
    if submission.execute_at is None:
        return "queued"
    at = admitted.first_at or datetime.now(UTC)
    return "scheduled" if submission.execute_at > at else "queued"


def is_large(payload: str) -> bool:
    """Whether a payload belongs into the blob store."""
    return len(payload) * CHARACTER_BYTES > INLINE_BYTES and len(payload.encode()) > INLINE_BYTES


def put_payloads(
    blobs: BlobStore, submissions: Sequence[Submission], large: set[str]
) -> list[Submission]:
    """The submissions, with the payloads of the large ones in the store."""
    # No exception of ours is given to raise: the store's client would take it for its own
    # and try again. A bare timeout goes through.
    with Timeout(BLOB_SECONDS) as patience:
        try:
            return [stored(blobs, item) if item.id in large else item for item in submissions]
        except BlobError as error:
            logger.warning("503: %s", error)
            raise BlobStoreUnavailable from error
        except Timeout as expired:
            if expired is not patience:
                raise
            logger.warning("503: the blob store took longer than %g s", BLOB_SECONDS)
            raise BlobStoreUnavailable from expired


def stored(blobs: BlobStore, item: Submission) -> Submission:
    """The submission with its payload in the store."""
    key = payload_key(item.id)
    blobs.put(key, item.payload.encode())
    return item._replace(payload="null", payload_blob=key)


def discard_payloads(blobs: BlobStore, ids: Sequence[str]) -> None:
    """Remove blobs that no row will name. Who fails leaves them to the collector."""
    for job_id in ids:
        try:
            blobs.delete(payload_key(job_id))
        except BlobError as error:
            logger.debug("left to the collector: %s", error)
