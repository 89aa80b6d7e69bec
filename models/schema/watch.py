"""What is counted and held against job types, tenants and dependencies, and who is told."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import JSON, BigInteger, Double, Identity, Index, Text, Uuid, text
from sqlalchemy.orm import Mapped, mapped_column

from models.schema.base import Base, Moment, TransactionId


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
    #: What both are is said by the kind: see :class:`models.tallies.TallyKind`.
    total: Mapped[int] = mapped_column(BigInteger, server_default="0")
    amount: Mapped[int] = mapped_column(BigInteger, server_default="0")

    __table_args__ = ({"postgresql_with": {"fillfactor": "70"}},)


class CircuitRow(Base):
    """Whether a dependency is asked at all."""

    __tablename__ = "circuits"

    dependency: Mapped[str] = mapped_column(Text, primary_key=True)
    state: Mapped[str] = mapped_column(Text)
    changed_at: Mapped[datetime] = mapped_column(Moment, server_default=text("now()"))


class VerdictRow(Base):
    """A restriction that the scheduler imposes on a job type or a tenant, while it lasts."""

    __tablename__ = "verdicts"

    #: ``quarantine`` of a job type, ``throttle`` of a tenant in a pool, ``spike`` of a tenant.
    kind: Mapped[str] = mapped_column(Text, primary_key=True)
    #: The job type; empty for a tenant.
    name: Mapped[str] = mapped_column(Text, primary_key=True, server_default="")
    #: The tenant; 0 for a job type.
    tenant_id: Mapped[int] = mapped_column(BigInteger, primary_key=True, server_default="0")
    #: Empty if it holds in all pools.
    pool: Mapped[str] = mapped_column(Text, primary_key=True, server_default="")
    since: Mapped[datetime] = mapped_column(Moment, server_default=text("now()"))
    detail: Mapped[Any] = mapped_column(JSON, server_default="{}")


class QuotaRow(Base):
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
