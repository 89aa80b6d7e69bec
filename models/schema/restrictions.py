"""What is counted about job types, tenants and dependencies, and the restrictions that follow."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import Identity, text

from models.schema.base import (
    Base,
    Count,
    Id,
    Int4,
    Json,
    Mapped,
    Now,
    TextOrEmpty,
    Xid,
    index,
    mapped_column,
)


class Event(Base, table="events"):
    """An event of a tenant's feed, besides the ends of its jobs; tenant 0 is all tenants."""

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)
    tenant_id: Mapped[int]
    kind: Mapped[str]
    job_id: Mapped[Id | None]
    detail: Mapped[Json] = mapped_column(server_default="{}")
    at: Mapped[Now]
    xid: Mapped[Xid] = mapped_column(server_default=text("feed_xid()"))

    __table_args__ = (index("events_feed", "tenant_id, xid, id"),)


class FeedGenerationRow(Base, table="feed_generations"):
    """A history of transaction numbers, begun by a restore or a promotion."""

    number: Mapped[Int4] = mapped_column(primary_key=True, autoincrement=False)
    tag: Mapped[str]
    #: Cluster and timeline.
    identity: Mapped[str]
    #: What is added to a transaction's number to get that of its entries.
    shift: Mapped[int]
    #: The lowest number that its entries may have.
    first_xid: Mapped[Xid]
    #: Entries above this that the cluster numbered before it began have to be renumbered.
    renumber_after: Mapped[Xid | None]
    begun_at: Mapped[Now]


class Tally(Base, table="tallies", fillfactor=70):
    """Counts over a stretch of time, gathered by the workers for the retry policies."""

    kind: Mapped[str] = mapped_column(primary_key=True)
    bucket: Mapped[datetime] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(primary_key=True)
    #: Their meaning depends on the kind: see :class:`models.tallies.TallyKind`.
    total: Mapped[Count]
    amount: Mapped[Count]


class CircuitRow(Base, table="circuits"):
    """Whether a dependency may be called."""

    dependency: Mapped[str] = mapped_column(primary_key=True)
    state: Mapped[str]
    changed_at: Mapped[Now]
    #: Why it refuses everybody's calls, in a few words; empty if they just fail.
    reason: Mapped[TextOrEmpty]


class VerdictRow(Base, table="verdicts"):
    """A restriction that the scheduler imposes on a job type or a tenant, while it lasts."""

    #: ``quarantine`` of a job type, ``throttle`` of a tenant in a pool, ``spike`` of a tenant,
    #: ``retry_budget`` of a tenant, ``tenant_quarantine`` of a tenant's jobs of a type.
    kind: Mapped[str] = mapped_column(primary_key=True)
    #: The job type; empty for a tenant.
    name: Mapped[TextOrEmpty] = mapped_column(primary_key=True)
    #: The tenant; 0 for a job type.
    tenant_id: Mapped[Count] = mapped_column(primary_key=True)
    #: Empty if it holds in all pools.
    pool: Mapped[TextOrEmpty] = mapped_column(primary_key=True)
    since: Mapped[Now]
    detail: Mapped[Json] = mapped_column(server_default="{}")


class VerdictsVersion(Base, table="verdicts_version", fillfactor=50):
    """One row, with another version after every change of ``verdicts``: kept by a trigger.

    Workers read the restrictions only when it differs from the one they know. It is random: a
    number could be given out twice after commits were lost in a failover.
    """

    #: Always true.
    one: Mapped[bool] = mapped_column(primary_key=True, server_default=text("true"))
    version: Mapped[Id] = mapped_column(server_default=text("gen_random_uuid()"))


class QuotaRow(Base, table="quotas", fillfactor=50):
    """What a dependency accepts per minute, as an operator declared it, and how it is used."""

    dependency: Mapped[str] = mapped_column(primary_key=True)
    requests_per_minute: Mapped[float | None]
    tokens_in_per_minute: Mapped[float | None]
    tokens_out_per_minute: Mapped[float | None]
    #: What its last response said is left, and when.
    reading: Mapped[Json | None]
    read_at: Mapped[datetime | None]
    #: It refused, and is not called before.
    closed_until: Mapped[datetime | None]
    #: Calls that it refused; and calls that reported their tokens, with what they used.
    refused: Mapped[Count]
    calls: Mapped[Count]
    tokens_in: Mapped[Count]
    tokens_out: Mapped[Count]
    changed_at: Mapped[Now]


class MeasuredType(Base, table="job_types", fillfactor=50):
    """A job type as it was measured: how long it runs, and the pool it belongs to."""

    type: Mapped[str] = mapped_column(primary_key=True)
    declared_pool: Mapped[str]
    #: Where new jobs of the type go.
    pool: Mapped[str]
    #: None if it was never moved from its declared pool.
    moved_at: Mapped[datetime | None]
    #: Of the last hour in which it ran, recent runs first; and how many runs that were.
    mean_seconds: Mapped[float | None]
    p95_seconds: Mapped[float | None]
    runs: Mapped[Count]
    changed_at: Mapped[Now]
