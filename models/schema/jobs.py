"""Jobs and what belongs to each of them.

``jobs`` is the hot table. Its partial indexes cover live states only, its lease column is
not indexed (a heartbeat stays a heap-only update), and payloads beyond two kilobytes
move out of the row, so that a status change copies little.
"""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal

from sqlalchemy import ARRAY, Identity, Uuid, column, text
from sqlalchemy import table as view

from models.jobs.states import JobStatus
from models.schema.base import (
    Base,
    Count,
    Count2,
    Count4,
    Id,
    Int2,
    Int4,
    Json,
    Mapped,
    Now,
    Status,
    Sum,
    TextOrEmpty,
    Xid,
    index,
    mapped_column,
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
    #: When its cancellation was requested.
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
    #: Lease of a claim that was to wait in its worker: while it equals ``lease``, the run is not
    #: known to have begun.
    waiting_lease: Mapped[Int4 | None]
    #: Such claims that were lost with their worker.
    lost_claims: Mapped[Count2]
    #: When its worker process was seen to end during the run, if its parent saw that.
    lost_at: Mapped[datetime | None]
    #: Tokens that a run has reported, and its lease: if it is lost, the tenant pays for them.
    reported_lease: Mapped[Int4 | None]
    reported_tokens_in: Mapped[int | None]
    reported_tokens_out: Mapped[int | None]
    #: The job whose payload was edited for it, as its submission says.
    resubmitted_from: Mapped[Id | None]

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
        index("jobs_due_by_tenant", "pool, tenant_id, execute_at", "status = 'scheduled'"),
        index(
            "jobs_deadline",
            "not_after",
            "status IN ('scheduled', 'queued') AND not_after IS NOT NULL",
        ),
        index("jobs_resubmitted", "resubmitted_from", "resubmitted_from IS NOT NULL"),
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


#: View: jobs per tenant, pool and state, exact in every transaction; tenant 0 is all tenants. The
#: counts of tenant 0, and only these, are kept by dependency. Counts of terminal states only grow;
#: removing old rows does not lower them.
JOB_COUNTS = view(
    "job_counts", *[column(name) for name in ("tenant_id", "pool", "dependency", *JobStatus)]
)


class JobCountKey(Base, table="job_count_keys"):
    """A key of ``job_counts`` that ever was counted."""

    tenant_id: Mapped[int] = mapped_column(primary_key=True)
    pool: Mapped[str] = mapped_column(primary_key=True)
    dependency: Mapped[str] = mapped_column(primary_key=True)


class JobCountSum(
    Base,
    table="job_count_sums",
    autovacuum_vacuum_threshold=200,
    autovacuum_vacuum_scale_factor=0,
    autovacuum_vacuum_cost_delay=0,
):
    """The counts of a key, without the deltas behind ``up_to``. The newest row counts."""

    tenant_id: Mapped[int] = mapped_column(primary_key=True)
    pool: Mapped[str] = mapped_column(primary_key=True)
    dependency: Mapped[str] = mapped_column(primary_key=True)
    #: All deltas up to this number are in it.
    up_to: Mapped[int] = mapped_column(primary_key=True)
    scheduled: Mapped[int]
    queued: Mapped[int]
    dispatched: Mapped[int]
    running: Mapped[int]
    succeeded: Mapped[int]
    dead: Mapped[int]
    cancelled: Mapped[int]
    expired: Mapped[int]


class JobCountDelta(
    Base,
    table="job_count_deltas",
    autovacuum_vacuum_threshold=1000,
    autovacuum_vacuum_scale_factor=0,
    autovacuum_vacuum_cost_delay=0,
):
    """What one statement changed about the counts of a key. Written by a trigger, folded into
    the sums: see :mod:`models.job_counts`."""

    tenant_id: Mapped[int] = mapped_column(primary_key=True)
    pool: Mapped[str] = mapped_column(primary_key=True)
    dependency: Mapped[str] = mapped_column(primary_key=True)
    id: Mapped[int] = mapped_column(Identity(always=True), primary_key=True)
    scheduled: Mapped[Int4]
    queued: Mapped[Int4]
    dispatched: Mapped[Int4]
    running: Mapped[Int4]
    succeeded: Mapped[Int4]
    dead: Mapped[Int4]
    cancelled: Mapped[Int4]
    expired: Mapped[Int4]

    __table_args__ = (index("job_count_deltas_id", "id"),)


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


class RunLogRow(Base, table="run_logs"):
    """What a run logged, and the traceback of what it raised; of the newest runs of a job."""

    job_id: Mapped[Id] = mapped_column(primary_key=True)
    #: See :mod:`models.jobs.run_logs`.
    place: Mapped[Int2] = mapped_column(primary_key=True)
    lease: Mapped[Int4]
    #: The newest lines: ``{"at": …, "level": …, "message": …}`` each.
    log: Mapped[Json | None]
    #: How many older lines were not kept.
    dropped: Mapped[Count]
    traceback: Mapped[str | None]
    written_at: Mapped[Now]


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


class Erasure(Base, table="erasures", fillfactor=70):
    """What remains of an application that was erased on request: no personal data.

    See :mod:`models.jobs.erase`.
    """

    id: Mapped[Id] = mapped_column(primary_key=True)
    tenant_id: Mapped[int]
    requested_at: Mapped[Now]
    #: When nothing of it was left; None while its run is being stopped or blobs are left.
    erased_at: Mapped[datetime | None]
    #: When the scheduler looks at it again; None: no more.
    due_at: Mapped[datetime | None] = mapped_column(server_default=text("now()"))
    #: Its blobs that have still to be deleted.
    blobs: Mapped[list[str]] = mapped_column(server_default="{}")

    __table_args__ = (
        index("erasures_due", "due_at", "due_at IS NOT NULL"),
        index("erasures_of_tenant", "tenant_id"),
    )
