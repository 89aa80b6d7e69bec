"""Intake: validated bodies become submissions, submissions become rows.

A large payload goes to the blob store before the commit, so that every blob a row names exists.
A blob whose row was not inserted is removed at once where that is certain, and collected later
where it is not.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from random import SystemRandom
from typing import Any

from gevent import Timeout
from pydantic import ValidationError
from pydantic_core import to_json

from app.admission.admission import Admission
from app.admission.gate import Gate
from app.admission.pool_of_type import PoolsOfTypes
from app.errors import (
    BlobStoreUnavailable,
    FieldError,
    IdempotencyKeyReused,
    Refused,
    TenantMoved,
    ValidationFailed,
    field_error,
    invalid_document,
)
from app.policy.fairshare import Tier
from app.policy.jitter import jittered_time
from app.tenants.allowed_types import require_types
from app.tenants.caps import cap_of
from app.tenants.tenant import TenantProfile
from app.validation import ErrorBudget, refuse_costly_payload
from models.blobs import INLINE_BYTES, BlobError, BlobStore, payload_key
from models.encryption.key_ring import ContentKind, Place
from models.encryption.values import encrypt_blob
from models.jobs.ids import new_id
from models.jobs.submission import Admitted, IdempotencyKey, Submission
from models.store.clock import DATABASE_CLOCK
from models.tallies import TallyKind
from tasks.jobs.score_application import ApplicationPayload
from tasks.registry import JobType

logger = logging.getLogger(__name__)

#: How long all blobs of a request may take together.
BLOB_SECONDS = 5.0
#: Job types named in an error.
MOST_NAMED = 50
#: Most bytes of UTF-8 that a character has.
CHARACTER_BYTES = 4

#: Processes that were forked from one must not draw the same numbers.
_chance = SystemRandom()


@dataclass(frozen=True, slots=True)
class Intake:
    """The parts of a process that take submissions in."""

    #: Rate and depth of what tenants submit.
    gate: Gate
    admission: Admission
    #: Where large payloads go.
    blobs: BlobStore
    #: Where new jobs of a type go.
    pools_of_types: PoolsOfTypes
    #: The number of the cell, for ids; 0: there are no cells.
    cell: int


def job_submission(
    types: Mapping[str, JobType],
    tenant_id: int,
    type_name: str,
    payload: Any,
    *,
    priority: int = 0,
    execute_at: datetime | None = None,
    not_after: datetime | None = None,
    jitter: bool = True,
    resubmitted_from: str | None = None,
    budget: ErrorBudget | None = None,
    cell: int = 0,
) -> Submission:
    """A submission of a job; refuses what its type does not take.

    ``budget``: shared with the other submissions of the same request. ``cell``: for its id.
    """
    job_type = types.get(type_name)
    if job_type is None:
        known = ", ".join(sorted(types)[:MOST_NAMED])
        raise ValidationFailed(errors=(FieldError("type", f"is not registered; known: {known}"),))
    fitted = check_payload(job_type, payload, budget or ErrorBudget())
    # An application is the same as one of POST /applications, leaderboard included.
    application = fitted if isinstance(fitted, ApplicationPayload) else None
    return Submission(
        id=new_id(cell=cell),
        tenant_id=tenant_id,
        type=job_type.name,
        pool=job_type.pool,
        payload=to_json(application.model_dump() if application else payload).decode(),
        candidate=application.candidate if application else None,
        role=application.role if application else None,
        priority=priority,
        execute_at=start_of(execute_at, not_after, jitter),
        not_after=not_after,
        dependency=job_type.dependency or "",
        resubmitted_from=resubmitted_from,
    )


def check_payload(job_type: JobType, payload: object, budget: ErrorBudget) -> object:
    """The payload as the type reads it; refuse what it does not take."""
    if job_type.schema is not None:
        refuse_costly_payload(payload, job_type.schema, budget)
    try:
        return job_type.read(payload)
    except ValidationError as error:
        raise invalid_document(error, "payload") from None
    except Exception as error:  # a validator of the author's that fails
        logger.warning("the schema of %s raised %r", job_type.name, error)
        message = f"could not be validated by the schema of {job_type.name}"
        raise ValidationFailed(errors=(field_error("payload", message),)) from error


def start_of(
    execute_at: datetime | None, not_after: datetime | None, jitter: bool
) -> datetime | None:
    """When the job may run; a window that ends before it opens is refused."""
    if execute_at is None:
        return None
    if not_after is not None and not_after < execute_at:
        raise ValidationFailed(errors=(FieldError("not_after", "is before execute_at"),))
    return jittered_time(execute_at, DATABASE_CLOCK.now(), _chance, jitter, not_after)


def directed(
    services: Intake, tenant: TenantProfile, submissions: Sequence[Submission]
) -> Sequence[Submission]:
    """The submissions in the pools they belong to, with their tenant's caps there.

    Forbidden if the tenant may not submit one of the types. Free accounts have no express lane.
    """
    require_types(tenant.types, (item.type for item in submissions))
    submissions = services.pools_of_types.place(submissions)
    if tenant.tier == Tier.FREE:
        return [item._replace(express=False) for item in submissions]
    if tenant.tier_limits or tenant.limits:
        return [item._replace(cap=cap_of(tenant, item.pool)) for item in submissions]
    return submissions


def take_in(
    services: Intake,
    tenant: TenantProfile,
    submissions: Sequence[Submission],
    key: IdempotencyKey | None,
) -> Admitted:
    """Make the submissions of one request durable, all of them or none."""
    submissions, gate = directed(services, tenant, submissions), services.gate
    entered = gate.enter(tenant, submissions, key, blob_bytes_of(submissions))
    joined = entered.refused is None
    try:
        if entered.refused is not None and not gate.repeats(tenant, key):
            gate.count(tenant, entered.refused, len(submissions))
            raise entered.refused
        admitted = make_durable(services, submissions, key)
        joined = not admitted.repeated
        return admitted
    except (IdempotencyKeyReused, TenantMoved):
        joined = False
        raise
    finally:
        gate.settle(entered, joined=joined)


def take_what_fits(
    services: Intake, tenant: TenantProfile, submissions: Sequence[Submission]
) -> tuple[Admitted, dict[str, Refused]]:
    """Make those durable, together, that there is room for; refuse the others by id."""
    submissions, gate = directed(services, tenant, submissions), services.gate
    entered = gate.enter(tenant, submissions, blob_bytes=blob_bytes_of(submissions))
    joined = True
    try:
        left, left_bytes, fitting = dict(entered.jobs), entered.blob_bytes, []
        refused: dict[str, Refused] = {}
        for item in submissions:
            left[item.pool] -= 1
            size = blob_bytes_of((item,))
            if left[item.pool] < 0:
                refused[item.id] = gate.too_deep(tenant, item.pool)
            elif size > left_bytes:
                refused[item.id] = gate.too_large(tenant)
            else:
                left_bytes -= size
                fitting.append(item)
        for error in refused.values():
            gate.count(tenant, error)
        if not fitting:
            raise error
        return make_durable(services, fitting, None), refused
    except TenantMoved:
        joined = False
        raise
    finally:
        gate.settle(entered, joined=joined)


def make_durable(
    services: Intake, submissions: Sequence[Submission], key: IdempotencyKey | None
) -> Admitted:
    """Write the submissions of one request, together."""
    large = [item.id for item in submissions if is_large(item.payload)]
    blob_bytes = blob_bytes_of(submissions) if large else 0
    if large:
        submissions = put_payloads(services.blobs, submissions, large)
    try:
        admitted = services.admission.admit(submissions, key)
    except (IdempotencyKeyReused, TenantMoved):
        discard_payloads(services.blobs, large)
        raise
    if admitted.repeated:
        discard_payloads(services.blobs, large)
    elif large:
        counted = (TallyKind.STORED_BLOB, str(submissions[0].tenant_id)), (len(large), blob_bytes)
        services.admission.tallies.add_all([counted])
    return admitted


def status_of(submission: Submission, admitted: Admitted) -> str:
    """What a reply calls the status: the same for a repetition as for the first request."""
    start, at = submission.execute_at, admitted.first_at or DATABASE_CLOCK.now()
    return "scheduled" if start is not None and start > at else "queued"


def is_large(payload: str) -> bool:
    """Whether a payload belongs into the blob store."""
    return len(payload) * CHARACTER_BYTES > INLINE_BYTES and len(payload.encode()) > INLINE_BYTES


def blob_bytes_of(submissions: Iterable[Submission]) -> int:
    """The bytes of the payloads that belong into the blob store."""
    return sum(len(item.payload.encode()) for item in submissions if is_large(item.payload))


def put_payloads(
    blobs: BlobStore, submissions: Sequence[Submission], large: Sequence[str]
) -> list[Submission]:
    """The submissions, with the payloads of the large ones in the store."""
    keys = {job_id: payload_key(job_id) for job_id in large}
    # No exception of ours is given to raise: the store's client would take it for its own
    # and try again. A bare timeout goes through.
    with Timeout(BLOB_SECONDS) as timeout:
        try:
            for item in submissions:
                if item.id in keys:
                    place = Place(item.tenant_id, item.id, ContentKind.PAYLOAD)
                    blobs.put(keys[item.id], encrypt_blob(item.payload.encode(), place))
        except (BlobError, Timeout) as error:
            if isinstance(error, Timeout) and error is not timeout:
                raise
            logger.warning("503: the blob store failed or took over %g s: %s", BLOB_SECONDS, error)
            raise BlobStoreUnavailable from error
    return [
        item._replace(payload="null", payload_blob=keys[item.id]) if item.id in keys else item
        for item in submissions
    ]


def discard_payloads(blobs: BlobStore, ids: Sequence[str]) -> None:
    """Remove blobs that no row will name. Those that cannot be removed are collected later."""
    for job_id in ids:
        try:
            blobs.delete(payload_key(job_id))
        except BlobError as error:
            logger.debug("left to the collector: %s", error)
