"""Jobs and what belongs to each of them.

``jobs`` is the hot table. Its partial indexes cover live states only, its lease column is
not indexed (a heartbeat stays a heap-only update), and payloads beyond half a kilobyte
move out of the row, so that a status change copies little.
"""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal

from sqlalchemy import ARRAY, Uuid
from sqlalchemy.orm import Mapped, mapped_column

from models.schema.base import (
    Base,
    Count,
    Count2,
    Count4,
    Id,
    Int2,
    Int4,
    Json,
    Now,
    Status,
    Sum,
    TextOrEmpty,
    Xid,
    index,
)


class Job(
    Base,
    table="jobs",
    fillfactor=80,
    toast_tuple_target=512,
    autovacuum_vacuum_scale_factor=0.01,
    autovacuum_vacuum_threshold=1000,
    autovacuum_vacuum_insert_scale_factor=0.2,
    autovacuum_vacuum_cost_delay=0,
):
    """One piece of work and its state: the truth every process agrees on."""

    id: Mapped[Id] = mapped_column(primary_key=True)
    tenant_id: Mapped[int]
    #: Raised by every dispatch; the holder of an older number can write nothing.
    lease: Mapped[Count4]
    #: Attempts spent so far.
    attempt: Mapped[Count2]
    #: Runs that were put off (dependency away, snoozed) without spending an attempt.
    deferrals: Mapped[Count4]
    #: Workers that were lost while running it.
    crashes: Mapped[Count2]
    priority: Mapped[Count2]
    status: Mapped[Status]
    type: Mapped[str]
    pool: Mapped[str]
    created_at: Mapped[Now]
    execute_at: Mapped[datetime | None]
    not_after: Mapped[datetime | None]
    dispatched_at: Mapped[datetime | None]
    started_at: Mapped[datetime | None]
    finished_at: Mapped[datetime | None]
    #: When a dispatch without a claim, or a claim without a heartbeat, counts as lost.
    lease_expires_at: Mapped[datetime | None]
    #: Process that holds the claim.
    worker: Mapped[str | None]
    #: W3C trace context of the submission.
    traceparent: Mapped[str | None]
    error_class: Mapped[str | None]
    error_message: Mapped[str | None]
    payload: Mapped[Json]
    result: Mapped[Json | None]
    #: Service the job's type depends on: its lane. Empty if there is none.
    dependency: Mapped[TextOrEmpty]
    #: Where a large payload is; ``payload`` is then JSON's null.
    payload_blob: Mapped[str | None]
    #: When the running job was asked to stop.
    cancel_requested_at: Mapped[datetime | None]
    #: ``{"done": …, "total": …}`` as the job last reported it.
    progress: Mapped[Json | None]
    #: Slot time of all runs that ended.
    slot_seconds: Mapped[Sum]
    #: How often it was brought back from the dead letters.
    replays: Mapped[Count2]
    #: Transaction that ended it: the order of the event feed. Set by a trigger.
    ended_xid: Mapped[Xid | None]
    #: Queue of its dispatch beside the pool's own: ``free`` or ``reserved.<tenant>``.
    slice: Mapped[TextOrEmpty]

    __table_args__ = (
        index("jobs_line", "pool, tenant_id, dependency, priority DESC, id", "status = 'queued'"),
        index("jobs_of_tenant", "tenant_id, id"),
        index("jobs_ended", "tenant_id, ended_xid, id", "ended_xid IS NOT NULL"),
        # What dead letters are counted by is in the index: the rows are not read for it.
        index("jobs_dead", "tenant_id, id", "status = 'dead'", "pool, type, error_class"),
        index(
            "jobs_cancelling", "worker", "status = 'running' AND cancel_requested_at IS NOT NULL"
        ),
        index("jobs_in_flight", "pool", "status IN ('dispatched', 'running')"),
        index(
            "jobs_in_slice", "pool, slice", "status IN ('dispatched', 'running') AND slice <> ''"
        ),
        index("jobs_due", "pool, execute_at", "status = 'scheduled'"),
        index(
            "jobs_deadline",
            "not_after",
            "status IN ('scheduled', 'queued') AND not_after IS NOT NULL",
        ),
    )


class Application(Base, table="applications", fillfactor=80):
    """A candidate's application; shares its id with the job that scores it."""

    id: Mapped[Id] = mapped_column(primary_key=True)
    tenant_id: Mapped[int]
    candidate: Mapped[str]
    role: Mapped[str]
    score: Mapped[Decimal | None]
    rationale: Mapped[str | None]
    scored_at: Mapped[datetime | None]
    #: How the score came about, as the scorer reported it; older scores have none.
    record: Mapped[Json | None]

    __table_args__ = (
        # Both pages of the leaderboard and a rank are one walk along this index.
        index("applications_ranking", "tenant_id, role, score DESC, id", "score IS NOT NULL"),
    )


class JobCount(Base, table="job_counts", fillfactor=50, autovacuum_vacuum_threshold=200):
    """Jobs per tenant, pool and state, exact in every transaction; tenant 0 is all tenants.

    The counts of tenant 0, and only these, are kept by dependency.

    Spread over shards, so that processes do not wait for each other's commit on one row:
    a single shard may be negative, only the sum over shards counts. Counts of terminal
    states only grow; removing old rows does not lower them.
    """

    tenant_id: Mapped[int] = mapped_column(primary_key=True)
    pool: Mapped[str] = mapped_column(primary_key=True)
    dependency: Mapped[TextOrEmpty] = mapped_column(primary_key=True)
    shard: Mapped[Int2] = mapped_column(primary_key=True)
    scheduled: Mapped[Count]
    queued: Mapped[Count]
    dispatched: Mapped[Count]
    running: Mapped[Count]
    succeeded: Mapped[Count]
    dead: Mapped[Count]
    cancelled: Mapped[Count]
    expired: Mapped[Count]


class Attempt(Base, table="attempts"):
    """A run that gave no result."""

    job_id: Mapped[Id] = mapped_column(primary_key=True)
    lease: Mapped[Int4] = mapped_column(primary_key=True)
    worker: Mapped[str | None]
    started_at: Mapped[datetime | None]
    ended_at: Mapped[Now]
    #: What the run made of the job.
    status: Mapped[Status]
    error_class: Mapped[str | None]
    error_message: Mapped[str | None]


class Checkpoint(Base, table="checkpoints", fillfactor=70):
    """State that a job saved for its next run."""

    job_id: Mapped[Id] = mapped_column(primary_key=True)
    #: Lease it was written under.
    lease: Mapped[Int4]
    state: Mapped[Json | None]
    #: Where a large state is.
    blob: Mapped[str | None]
    saved_at: Mapped[Now]


class IdempotencyKeyRow(Base, table="idempotency_keys"):
    """A submission that may be repeated without being admitted twice."""

    tenant_id: Mapped[int] = mapped_column(primary_key=True)
    key: Mapped[str] = mapped_column(primary_key=True)
    #: Of the request, to tell a repetition from another request under the same key.
    digest: Mapped[bytes]
    job_ids: Mapped[list[str]] = mapped_column(ARRAY(Uuid(as_uuid=False)))
    created_at: Mapped[Now]

    __table_args__ = (index("idempotency_keys_age", "created_at"),)
