"""The tables, as SQLAlchemy sees them. Hot statements are written out beside their callers.

``jobs`` is the hot table. Its partial indexes cover live states only, its lease column is
not indexed (a heartbeat stays a heap-only update), and payloads beyond half a kilobyte
move out of the row, so that a status change copies little.
"""

from __future__ import annotations

from datetime import date, datetime
from decimal import Decimal
from typing import Any

from sqlalchemy import (
    ARRAY,
    JSON,
    BigInteger,
    Date,
    DateTime,
    Double,
    ForeignKey,
    Identity,
    Index,
    Integer,
    LargeBinary,
    Numeric,
    SmallInteger,
    Text,
    UniqueConstraint,
    Uuid,
    text,
)
from sqlalchemy.dialects.postgresql import ENUM
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from sqlalchemy.types import UserDefinedType

from models.states import JobStatus

Moment = DateTime(timezone=True)
status_type = ENUM(*[status.value for status in JobStatus], name="job_status")


class TransactionId(UserDefinedType[int]):
    """PostgreSQL's ``xid8``: a number that only rises, one a transaction."""

    cache_ok = True

    def get_col_spec(self, **_: Any) -> str:
        return "xid8"


class Base(DeclarativeBase):
    """Every table of Fairline."""


class Tenant(Base):
    """Whose work it is."""

    __tablename__ = "tenants"

    id: Mapped[int] = mapped_column(BigInteger, Identity(), primary_key=True)
    name: Mapped[str] = mapped_column(Text, unique=True)
    created_at: Mapped[datetime] = mapped_column(Moment, server_default=text("now()"))
    #: ``free``, ``standard``, ``pro`` or ``enterprise``; see :mod:`app.fairshare.tiers`.
    tier: Mapped[str] = mapped_column(Text, server_default="standard")
    #: In place of the tier's.
    weight: Mapped[float | None] = mapped_column(Double)
    #: Submissions a second, and how many at once; none: as the deployment has it.
    submit_per_second: Mapped[float | None] = mapped_column(Double)
    submit_burst: Mapped[float | None] = mapped_column(Double)
    #: Raised by every change, of its limits too: processes read what is new.
    changed_at: Mapped[datetime] = mapped_column(Moment, server_default=text("now()"))

    __table_args__ = (Index("tenants_changed", "changed_at"),)


class TenantLimit(Base):
    """What a tenant may have and is promised in one pool."""

    __tablename__ = "tenant_limits"

    tenant_id: Mapped[int] = mapped_column(BigInteger, primary_key=True)
    pool: Mapped[str] = mapped_column(Text, primary_key=True)
    #: Jobs in flight at most.
    in_flight: Mapped[int | None] = mapped_column(Integer)
    #: Slots of its own, served by workers of the slice ``<pool>.reserved.<tenant>``.
    reserved: Mapped[int | None] = mapped_column(Integer)
    #: Jobs waiting at most.
    depth: Mapped[int | None] = mapped_column(BigInteger)


class ApiKey(Base):
    """Who is calling. Only a digest of the secret part is kept."""

    __tablename__ = "api_keys"

    #: The short part of the key.
    id: Mapped[str] = mapped_column(Text, primary_key=True)
    #: None for an operator.
    tenant_id: Mapped[int | None] = mapped_column(BigInteger, ForeignKey("tenants.id"))
    name: Mapped[str] = mapped_column(Text, server_default="")
    digest: Mapped[bytes] = mapped_column(LargeBinary)
    created_at: Mapped[datetime] = mapped_column(Moment, server_default=text("now()"))
    revoked_at: Mapped[datetime | None] = mapped_column(Moment)

    __table_args__ = (
        Index("api_keys_revoked", "revoked_at"),
        Index("api_keys_of_tenant", "tenant_id"),
    )


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
        Index("jobs_dead", "tenant_id", "id", postgresql_where=text("status = 'dead'")),
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


class Process(Base):
    """A process of the stack that is alive, and how it is doing."""

    __tablename__ = "processes"

    name: Mapped[str] = mapped_column(Text, primary_key=True)
    #: ``api``, ``scheduler`` or ``worker``.
    kind: Mapped[str] = mapped_column(Text)
    pools: Mapped[list[str]] = mapped_column(ARRAY(Text), server_default="{}")
    slots: Mapped[int] = mapped_column(Integer, server_default="0")
    busy: Mapped[int] = mapped_column(Integer, server_default="0")
    draining: Mapped[bool] = mapped_column(server_default=text("false"))
    db_size: Mapped[int] = mapped_column(Integer, server_default="0")
    db_in_use: Mapped[int] = mapped_column(Integer, server_default="0")
    db_waiters: Mapped[int] = mapped_column(Integer, server_default="0")
    started_at: Mapped[datetime] = mapped_column(Moment, server_default=text("now()"))
    heartbeat_at: Mapped[datetime] = mapped_column(Moment, server_default=text("now()"))


class Leader(Base):
    """Who may act as the scheduler, fenced by an epoch."""

    __tablename__ = "leaders"

    role: Mapped[str] = mapped_column(Text, primary_key=True)
    holder: Mapped[str] = mapped_column(Text)
    #: Raised by every change of holder.
    epoch: Mapped[int] = mapped_column(BigInteger)
    expires_at: Mapped[datetime] = mapped_column(Moment)
    #: When the holder last reached the broker.
    broker_seen_at: Mapped[datetime | None] = mapped_column(Moment)


class ExpressLane(Base):
    """The scheduler's permission to dispatch in the request, while a pool has no line."""

    __tablename__ = "express_lanes"

    pool: Mapped[str] = mapped_column(Text, primary_key=True)
    #: Jobs that may still be dispatched on this permission.
    credit: Mapped[int] = mapped_column(Integer, server_default="0")
    granted_at: Mapped[datetime] = mapped_column(Moment, server_default=text("now()"))

    __table_args__ = ({"postgresql_with": {"fillfactor": "50"}},)


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


class IdempotencyKey(Base):
    """A submission that may be repeated without being taken twice."""

    __tablename__ = "idempotency_keys"

    tenant_id: Mapped[int] = mapped_column(BigInteger, primary_key=True)
    key: Mapped[str] = mapped_column(Text, primary_key=True)
    #: Of the request, so that another one under the same key is told from a repetition.
    digest: Mapped[bytes] = mapped_column(LargeBinary)
    job_ids: Mapped[list[str]] = mapped_column(ARRAY(Uuid(as_uuid=False)))
    created_at: Mapped[datetime] = mapped_column(Moment, server_default=text("now()"))

    __table_args__ = (Index("idempotency_keys_age", "created_at"),)


class Event(Base):
    """Something a tenant should hear of, besides the ends of its jobs; tenant 0 is everybody."""

    __tablename__ = "events"

    id: Mapped[int] = mapped_column(BigInteger, Identity(), primary_key=True)
    tenant_id: Mapped[int] = mapped_column(BigInteger)
    kind: Mapped[str] = mapped_column(Text)
    job_id: Mapped[str | None] = mapped_column(Uuid(as_uuid=False))
    detail: Mapped[Any] = mapped_column(JSON, server_default="{}")
    at: Mapped[datetime] = mapped_column(Moment, server_default=text("now()"))
    xid: Mapped[int] = mapped_column(TransactionId, server_default=text("pg_current_xact_id()"))

    __table_args__ = (Index("events_feed", "tenant_id", "xid", "id"),)


class Tally(Base):
    """Counts over a stretch of time, gathered by the workers for the policies of failure."""

    __tablename__ = "tallies"

    kind: Mapped[str] = mapped_column(Text, primary_key=True)
    bucket: Mapped[datetime] = mapped_column(Moment, primary_key=True)
    name: Mapped[str] = mapped_column(Text, primary_key=True)
    total: Mapped[int] = mapped_column(BigInteger, server_default="0")
    bad: Mapped[int] = mapped_column(BigInteger, server_default="0")

    __table_args__ = ({"postgresql_with": {"fillfactor": "70"}},)


class Circuit(Base):
    """Whether a dependency is asked at all."""

    __tablename__ = "circuits"

    dependency: Mapped[str] = mapped_column(Text, primary_key=True)
    state: Mapped[str] = mapped_column(Text)
    changed_at: Mapped[datetime] = mapped_column(Moment, server_default=text("now()"))


class Verdict(Base):
    """What the scheduler holds against a job type or a tenant, while it holds."""

    __tablename__ = "verdicts"

    #: ``quarantine`` (of a type), ``throttle`` (of tenant:pool), ``spike`` (of a tenant).
    kind: Mapped[str] = mapped_column(Text, primary_key=True)
    name: Mapped[str] = mapped_column(Text, primary_key=True)
    since: Mapped[datetime] = mapped_column(Moment, server_default=text("now()"))
    detail: Mapped[Any] = mapped_column(JSON, server_default="{}")


class Usage(Base):
    """What a tenant used in a day, written by the statement that settles. Sharded: see JobCount."""

    __tablename__ = "usage"

    tenant_id: Mapped[int] = mapped_column(BigInteger, primary_key=True)
    day: Mapped[date] = mapped_column(Date, primary_key=True)
    pool: Mapped[str] = mapped_column(Text, primary_key=True)
    shard: Mapped[int] = mapped_column(SmallInteger, primary_key=True)
    #: Jobs that came to an end, and runs that did.
    jobs: Mapped[int] = mapped_column(BigInteger, server_default="0")
    runs: Mapped[int] = mapped_column(BigInteger, server_default="0")
    slot_seconds: Mapped[float] = mapped_column(Double, server_default="0")
    #: Of them, those in slices of its own.
    slice_seconds: Mapped[float] = mapped_column(Double, server_default="0")
    tokens_in: Mapped[int] = mapped_column(BigInteger, server_default="0")
    tokens_out: Mapped[int] = mapped_column(BigInteger, server_default="0")

    __table_args__ = (
        {"postgresql_with": {"fillfactor": "50", "autovacuum_vacuum_threshold": "200"}},
    )


class Arrival(Base):
    """A bell: jobs joined this line. Written by a trigger, taken away by the scheduler."""

    __tablename__ = "arrivals"

    #: The table has no key: a bell may ring twice. The mapper wants one.
    pool: Mapped[str] = mapped_column(Text, primary_key=True)
    tenant_id: Mapped[int] = mapped_column(BigInteger, primary_key=True)
    dependency: Mapped[str] = mapped_column(Text, primary_key=True)

    __table_args__ = (
        {
            "postgresql_with": {
                "autovacuum_vacuum_threshold": "200",
                "autovacuum_vacuum_scale_factor": "0",
                "autovacuum_vacuum_cost_delay": "0",
            }
        },
    )


class Share(Base):
    """How far a tenant's fair share has come in a pool; tenant 0 is the pool's virtual time."""

    __tablename__ = "shares"

    tenant_id: Mapped[int] = mapped_column(BigInteger, primary_key=True)
    pool: Mapped[str] = mapped_column(Text, primary_key=True)
    #: Virtual time of what it was served, without what is in flight.
    pass_: Mapped[float] = mapped_column("pass", Double)
    #: Usage that is in it: all before this day, and so much of the day.
    counted_day: Mapped[date] = mapped_column(Date)
    counted_seconds: Mapped[float] = mapped_column(Double)
    #: In effect, with floors and slices.
    weight: Mapped[float] = mapped_column(Double)
    in_flight: Mapped[int] = mapped_column(Integer, server_default="0")
    started_per_second: Mapped[float] = mapped_column(Double, server_default="0")
    updated_at: Mapped[datetime] = mapped_column(Moment, server_default=text("now()"))

    __table_args__ = (
        {"postgresql_with": {"fillfactor": "50", "autovacuum_vacuum_threshold": "200"}},
    )


class RateBucket(Base):
    """Submissions that a tenant may still make; API processes take them in chunks."""

    __tablename__ = "rate_buckets"

    tenant_id: Mapped[int] = mapped_column(BigInteger, primary_key=True)
    #: A token is a stretch of time: what lies between this and now may be taken.
    spent_until: Mapped[datetime] = mapped_column(Moment, server_default=text("to_timestamp(0)"))

    __table_args__ = ({"postgresql_with": {"fillfactor": "50"}},)


class Refusal(Base):
    """Submissions that were refused, by day and code."""

    __tablename__ = "refusals"

    tenant_id: Mapped[int] = mapped_column(BigInteger, primary_key=True)
    day: Mapped[date] = mapped_column(Date, primary_key=True)
    code: Mapped[str] = mapped_column(Text, primary_key=True)
    refused: Mapped[int] = mapped_column(BigInteger, server_default="0")

    __table_args__ = ({"postgresql_with": {"fillfactor": "50"}},)


class Quota(Base):
    """What a dependency takes in a minute, as an operator declared it."""

    __tablename__ = "quotas"

    dependency: Mapped[str] = mapped_column(Text, primary_key=True)
    requests_per_minute: Mapped[float | None] = mapped_column(Double)
    tokens_in_per_minute: Mapped[float | None] = mapped_column(Double)
    tokens_out_per_minute: Mapped[float | None] = mapped_column(Double)
    #: What its last answer said is left, and when.
    reading: Mapped[Any | None] = mapped_column(JSON)
    read_at: Mapped[datetime | None] = mapped_column(Moment)
    #: It refused, and is not asked before.
    closed_until: Mapped[datetime | None] = mapped_column(Moment)
    #: Calls that it refused; and calls that told their tokens, with what they used.
    refused: Mapped[int] = mapped_column(BigInteger, server_default="0")
    calls: Mapped[int] = mapped_column(BigInteger, server_default="0")
    tokens_in: Mapped[int] = mapped_column(BigInteger, server_default="0")
    tokens_out: Mapped[int] = mapped_column(BigInteger, server_default="0")
    changed_at: Mapped[datetime] = mapped_column(Moment, server_default=text("now()"))

    __table_args__ = ({"postgresql_with": {"fillfactor": "50"}},)


class MeasuredType(Base):
    """A job type as it was measured: how long it runs, and the pool it belongs to."""

    __tablename__ = "job_types"

    type: Mapped[str] = mapped_column(Text, primary_key=True)
    declared_pool: Mapped[str] = mapped_column(Text)
    #: Where new jobs of the type go.
    pool: Mapped[str] = mapped_column(Text)
    #: None if its author's word was never overruled.
    moved_at: Mapped[datetime | None] = mapped_column(Moment)
    #: Of the last hour in which it ran, recent runs first; and how many runs that were.
    mean_seconds: Mapped[float | None] = mapped_column(Double)
    p95_seconds: Mapped[float | None] = mapped_column(Double)
    runs: Mapped[int] = mapped_column(BigInteger, server_default="0")
    changed_at: Mapped[datetime] = mapped_column(Moment, server_default=text("now()"))

    __table_args__ = ({"postgresql_with": {"fillfactor": "50"}},)


class Schedule(Base):
    """Work that comes again and again."""

    __tablename__ = "schedules"

    id: Mapped[str] = mapped_column(Uuid(as_uuid=False), primary_key=True)
    tenant_id: Mapped[int] = mapped_column(BigInteger)
    name: Mapped[str] = mapped_column(Text)
    cron: Mapped[str] = mapped_column(Text)
    timezone: Mapped[str] = mapped_column(Text)
    #: ``allow``, or ``skip`` a tick while the job of the one before has not ended.
    overlap: Mapped[str] = mapped_column(Text)
    #: Ticks missed in an outage: ``none``, the last ``one`` or ``all`` of them are made up for.
    catch_up: Mapped[str] = mapped_column(Text)
    type: Mapped[str] = mapped_column(Text)
    payload: Mapped[Any] = mapped_column(JSON)
    priority: Mapped[int] = mapped_column(SmallInteger, server_default="0")
    paused: Mapped[bool] = mapped_column(server_default=text("false"))
    #: None if no tick will ever come.
    next_at: Mapped[datetime | None] = mapped_column(Moment)
    last_at: Mapped[datetime | None] = mapped_column(Moment)
    last_job_id: Mapped[str | None] = mapped_column(Uuid(as_uuid=False))
    #: Ticks that became jobs, and ticks that could not.
    made: Mapped[int] = mapped_column(BigInteger, server_default="0")
    skipped: Mapped[int] = mapped_column(BigInteger, server_default="0")
    created_at: Mapped[datetime] = mapped_column(Moment, server_default=text("now()"))

    __table_args__ = (
        UniqueConstraint("tenant_id", "name"),
        Index("schedules_next", "next_at", postgresql_where=text("NOT paused")),
        {"postgresql_with": {"fillfactor": "70"}},
    )


class DesiredWorkers(Base):
    """How many workers a pool should have, as the autoscaler sees it."""

    __tablename__ = "desired_workers"

    pool: Mapped[str] = mapped_column(Text, primary_key=True)
    workers: Mapped[int] = mapped_column(Integer)
    reason: Mapped[str] = mapped_column(Text)
    #: What it was decided by: living workers, jobs that wait for a slot and how long the oldest
    #: has, share of the slots in use.
    living: Mapped[int] = mapped_column(Integer, server_default="0")
    depth: Mapped[int] = mapped_column(BigInteger, server_default="0")
    oldest_seconds: Mapped[float] = mapped_column(Double, server_default="0")
    utilisation: Mapped[float] = mapped_column(Double, server_default="0")
    changed_at: Mapped[datetime] = mapped_column(Moment, server_default=text("now()"))
    updated_at: Mapped[datetime] = mapped_column(Moment, server_default=text("now()"))

    __table_args__ = ({"postgresql_with": {"fillfactor": "50"}},)


class Prediction(Base):
    """When a waiting job was said to start, to be compared with when it did."""

    __tablename__ = "predictions"

    job_id: Mapped[str] = mapped_column(Uuid(as_uuid=False), primary_key=True)
    pool: Mapped[str] = mapped_column(Text)
    made_at: Mapped[datetime] = mapped_column(Moment, server_default=text("now()"))
    wait_seconds: Mapped[float] = mapped_column(Double)

    __table_args__ = ({"postgresql_with": {"fillfactor": "70"}},)
