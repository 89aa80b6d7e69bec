"""Tenants: who they are, what they may have, what they used and were refused."""

from __future__ import annotations

from datetime import date, datetime

from sqlalchemy import (
    BigInteger,
    Date,
    Double,
    ForeignKey,
    Identity,
    Index,
    Integer,
    LargeBinary,
    SmallInteger,
    Text,
    text,
)
from sqlalchemy.orm import Mapped, mapped_column

from models.schema.base import Base, Moment


class Tenant(Base):
    """Whose work it is."""

    __tablename__ = "tenants"

    id: Mapped[int] = mapped_column(BigInteger, Identity(), primary_key=True)
    name: Mapped[str] = mapped_column(Text, unique=True)
    created_at: Mapped[datetime] = mapped_column(Moment, server_default=text("now()"))
    #: ``free``, ``standard``, ``pro`` or ``enterprise``; see :mod:`app.policy.fairshare.tiers`.
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


class RateBucket(Base):
    """Submissions that a tenant may still make; API processes take them in chunks."""

    __tablename__ = "rate_buckets"

    tenant_id: Mapped[int] = mapped_column(BigInteger, primary_key=True)
    #: A token is a stretch of time: what lies between this and now may be taken.
    spent_until: Mapped[datetime] = mapped_column(Moment, server_default=text("to_timestamp(0)"))

    __table_args__ = ({"postgresql_with": {"fillfactor": "50"}},)


class RefusalRow(Base):
    """Submissions that were refused, by day and code."""

    __tablename__ = "refusals"

    tenant_id: Mapped[int] = mapped_column(BigInteger, primary_key=True)
    day: Mapped[date] = mapped_column(Date, primary_key=True)
    code: Mapped[str] = mapped_column(Text, primary_key=True)
    refused: Mapped[int] = mapped_column(BigInteger, server_default="0")

    __table_args__ = ({"postgresql_with": {"fillfactor": "50"}},)


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
