"""Jobs and what belongs to each of them.

``jobs`` is the hot table. Its partial indexes cover live states only, its lease column is
not indexed (a heartbeat stays a heap-only update), and payloads beyond half a kilobyte
move out of the row, so that a status change copies little.
"""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from typing import Any

from sqlalchemy import (
    ARRAY,
    JSON,
    BigInteger,
    Double,
    Index,
    Integer,
    LargeBinary,
    Numeric,
    SmallInteger,
    Text,
    Uuid,
    text,
)
from sqlalchemy.orm import Mapped, mapped_column

from models.schema.base import Base, Moment, TransactionId, status_type


class Job(Base):
    """One piece of work and where it is on its way: the truth every process agrees on."""

    __tablename__ = "jobs"

    id: Mapped[str] = mapped_column(Uuid(as_uuid=False), primary_key=True)
    tenant_id: Mapped[int] = mapped_column(BigInteger)
    #: Raised by every dispatch; whoever holds an older number can write nothing.
    lease: Mapped[int] = mapped_column(Integer, server_default="0")
    #: Tries spent so far.
    attempt: Mapped[int] = mapped_column(SmallInteger, server_default="0")
    #: Runs that were put off (dependency away, snoozed) without spending a try.
    deferrals: Mapped[int] = mapped_column(Integer, server_default="0")
    #: Workers that were lost while running it.
    crashes: Mapped[int] = mapped_column(SmallInteger, server_default="0")
    priority: Mapped[int] = mapped_column(SmallInteger, server_default="0")
    status: Mapped[str] = mapped_column(status_type)
    type: Mapped[str] = mapped_column(Text)
    pool: Mapped[str] = mapped_column(Text)
    created_at: Mapped[datetime] = mapped_column(Moment, server_default=text("now()"))
    execute_at: Mapped[datetime | None] = mapped_column(Moment)
    not_after: Mapped[datetime | None] = mapped_column(Moment)
    dispatched_at: Mapped[datetime | None] = mapped_column(Moment)
    started_at: Mapped[datetime | None] = mapped_column(Moment)
    finished_at: Mapped[datetime | None] = mapped_column(Moment)
    #: When a dispatch without a claim, or a claim without a heartbeat, counts as lost.
    lease_expires_at: Mapped[datetime | None] = mapped_column(Moment)
    #: Process that holds the claim.
    worker: Mapped[str | None] = mapped_column(Text)
    #: W3C trace context of the submission.
    traceparent: Mapped[str | None] = mapped_column(Text)
    error_class: Mapped[str | None] = mapped_column(Text)
    error_message: Mapped[str | None] = mapped_column(Text)
    payload: Mapped[Any] = mapped_column(JSON)
    result: Mapped[Any | None] = mapped_column(JSON)
    #: Service the job's type depends on; its lane in the line. Empty if there is none.
    dependency: Mapped[str] = mapped_column(Text, server_default="")
    #: Where a large payload is; ``payload`` is then JSON's null.
    payload_blob: Mapped[str | None] = mapped_column(Text)
    #: Somebody asked the running job to stop.
    cancel_requested_at: Mapped[datetime | None] = mapped_column(Moment)
    #: ``{"done": …, "total": …}`` as the job said it last.
    progress: Mapped[Any | None] = mapped_column(JSON)
    #: Slot time of all runs that ended.
    slot_seconds: Mapped[float] = mapped_column(Double, server_default="0")
    #: How often it was brought back from the dead letters.
    replays: Mapped[int] = mapped_column(SmallInteger, server_default="0")
    #: Transaction that ended it: the order of the event feed. Set by a trigger.
    ended_xid: Mapped[int | None] = mapped_column(TransactionId)
    #: Queue of its dispatch beside the pool's own: ``free`` or ``reserved.<tenant>``.
    slice: Mapped[str] = mapped_column(Text, server_default="")

    __table_args__ = (
        Index(
            "jobs_line",
            "pool",
            "tenant_id",
            "dependency",
            text("priority DESC"),
            "id",
            postgresql_where=text("status = 'queued'"),
        ),
        Index("jobs_of_tenant", "tenant_id", "id"),
        Index(
            "jobs_ended",
            "tenant_id",
            "ended_xid",
            "id",
            postgresql_where=text("ended_xid IS NOT NULL"),
        ),
        # What dead letters are counted by is in the index: nobody goes to the rows for it.
        Index(
            "jobs_dead",
            "tenant_id",
            "id",
            postgresql_include=["pool", "type", "error_class"],
            postgresql_where=text("status = 'dead'"),
        ),
        Index(
            "jobs_cancelling",
            "worker",
            postgresql_where=text("status = 'running' AND cancel_requested_at IS NOT NULL"),
        ),
        Index(
            "jobs_in_flight",
            "pool",
            postgresql_where=text("status IN ('dispatched', 'running')"),
        ),
        Index(
            "jobs_in_slice",
            "pool",
            "slice",
            postgresql_where=text("status IN ('dispatched', 'running') AND slice <> ''"),
        ),
        Index("jobs_due", "pool", "execute_at", postgresql_where=text("status = 'scheduled'")),
        Index(
            "jobs_deadline",
            "not_after",
            postgresql_where=text("status IN ('scheduled', 'queued') AND not_after IS NOT NULL"),
        ),
        {
            "postgresql_with": {
                "fillfactor": "80",
                "toast_tuple_target": "512",
                "autovacuum_vacuum_scale_factor": "0.01",
                "autovacuum_vacuum_threshold": "1000",
                "autovacuum_vacuum_insert_scale_factor": "0.2",
                "autovacuum_vacuum_cost_delay": "0",
            }
        },
    )


class Application(Base):
    """A candidate's application; shares its id with the job that scores it."""

    __tablename__ = "applications"

    id: Mapped[str] = mapped_column(Uuid(as_uuid=False), primary_key=True)
    tenant_id: Mapped[int] = mapped_column(BigInteger)
    candidate: Mapped[str] = mapped_column(Text)
    role: Mapped[str] = mapped_column(Text)
    score: Mapped[Decimal | None] = mapped_column(Numeric(5, 2))
    rationale: Mapped[str | None] = mapped_column(Text)
    scored_at: Mapped[datetime | None] = mapped_column(Moment)
    #: How the score came about, as the scorer told it; scores older than this column have none.
    record: Mapped[Any | None] = mapped_column(JSON)

    __table_args__ = (
        # Both pages of the leaderboard and a rank are one walk along this index.
        Index(
            "applications_ranking",
            "tenant_id",
            "role",
            text("score DESC"),
            "id",
            postgresql_where=text("score IS NOT NULL"),
        ),
        {"postgresql_with": {"fillfactor": "80"}},
    )


class JobCount(Base):
    """Jobs per tenant, pool and state, exact in every transaction; tenant 0 is everybody.

    The counts of everybody, and only these, are kept by dependency.

    Spread over shards, so that processes do not wait for each other's commit on one row:
    a single shard may be negative, only the sum over shards counts. Counts of terminal
    states only grow; removing old rows does not lower them.
    """

    __tablename__ = "job_counts"

    tenant_id: Mapped[int] = mapped_column(BigInteger, primary_key=True)
    pool: Mapped[str] = mapped_column(Text, primary_key=True)
    dependency: Mapped[str] = mapped_column(Text, primary_key=True, server_default="")
    shard: Mapped[int] = mapped_column(SmallInteger, primary_key=True)
    scheduled: Mapped[int] = mapped_column(BigInteger, server_default="0")
    queued: Mapped[int] = mapped_column(BigInteger, server_default="0")
    dispatched: Mapped[int] = mapped_column(BigInteger, server_default="0")
    running: Mapped[int] = mapped_column(BigInteger, server_default="0")
    succeeded: Mapped[int] = mapped_column(BigInteger, server_default="0")
    dead: Mapped[int] = mapped_column(BigInteger, server_default="0")
    cancelled: Mapped[int] = mapped_column(BigInteger, server_default="0")
    expired: Mapped[int] = mapped_column(BigInteger, server_default="0")

    __table_args__ = (
        {"postgresql_with": {"fillfactor": "50", "autovacuum_vacuum_threshold": "200"}},
    )


class Attempt(Base):
    """A run that gave no result."""

    __tablename__ = "attempts"

    job_id: Mapped[str] = mapped_column(Uuid(as_uuid=False), primary_key=True)
    lease: Mapped[int] = mapped_column(Integer, primary_key=True)
    worker: Mapped[str | None] = mapped_column(Text)
    started_at: Mapped[datetime | None] = mapped_column(Moment)
    ended_at: Mapped[datetime] = mapped_column(Moment, server_default=text("now()"))
    #: What the run made of the job.
    status: Mapped[str] = mapped_column(status_type)
    error_class: Mapped[str | None] = mapped_column(Text)
    error_message: Mapped[str | None] = mapped_column(Text)


class Checkpoint(Base):
    """What a job wants to know again after its worker was lost."""

    __tablename__ = "checkpoints"

    job_id: Mapped[str] = mapped_column(Uuid(as_uuid=False), primary_key=True)
    #: Lease it was written under.
    lease: Mapped[int] = mapped_column(Integer)
    state: Mapped[Any | None] = mapped_column(JSON)
    #: Where a large state is.
    blob: Mapped[str | None] = mapped_column(Text)
    saved_at: Mapped[datetime] = mapped_column(Moment, server_default=text("now()"))

    __table_args__ = ({"postgresql_with": {"fillfactor": "70"}},)


class IdempotencyKeyRow(Base):
    """A submission that may be repeated without being taken twice."""

    __tablename__ = "idempotency_keys"

    tenant_id: Mapped[int] = mapped_column(BigInteger, primary_key=True)
    key: Mapped[str] = mapped_column(Text, primary_key=True)
    #: Of the request, so that another one under the same key is told from a repetition.
    digest: Mapped[bytes] = mapped_column(LargeBinary)
    job_ids: Mapped[list[str]] = mapped_column(ARRAY(Uuid(as_uuid=False)))
    created_at: Mapped[datetime] = mapped_column(Moment, server_default=text("now()"))

    __table_args__ = (Index("idempotency_keys_age", "created_at"),)
