"""Tenants: their terms and keys, what they used and what was refused."""

from __future__ import annotations

from datetime import date, datetime

from sqlalchemy import ForeignKey, Identity, Text, text
from sqlalchemy.dialects.postgresql import ARRAY

from models.schema.base import (
    Base,
    Count,
    Int2,
    Int4,
    Mapped,
    Now,
    Sum,
    TextOrEmpty,
    index,
    mapped_column,
)


class Tenant(Base, table="tenants"):
    """A customer."""

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)
    name: Mapped[str] = mapped_column(unique=True)
    created_at: Mapped[Now]
    #: ``free``, ``standard``, ``pro`` or ``enterprise``; see :mod:`app.policy.fairshare.tiers`.
    tier: Mapped[str] = mapped_column(server_default="standard")
    #: In place of the tier's.
    weight: Mapped[float | None]
    #: Whether the limits of its tier hold where it has none of its own.
    tier_limits: Mapped[bool] = mapped_column(server_default=text("false"))
    #: Submissions per second, and how many at once; None: the default.
    submit_per_second: Mapped[float | None]
    submit_burst: Mapped[float | None]
    #: Other requests per second to one API process; None: the default.
    requests_per_second: Mapped[float | None]
    #: Idempotency keys that are kept at most; None: the default.
    idempotency_keys: Mapped[int | None]
    #: Bytes in the blob store at most; None: the default.
    blob_bytes: Mapped[int | None]
    #: Job types that it may submit; None: all.
    types: Mapped[list[str] | None] = mapped_column(ARRAY(Text))
    #: The part of its weight, rates, caps and budgets that holds in this cell; 1: all of it.
    share: Mapped[float] = mapped_column(server_default="1")
    #: Raised by every change, of its limits too: processes read what is new.
    changed_at: Mapped[Now]
    #: Since when it may submit nothing and its queued jobs wait; None: it is not suspended.
    suspended_at: Mapped[datetime | None]
    #: Since when everything of it is being removed, a batch at a time, and at last this row.
    deleted_at: Mapped[datetime | None]

    __table_args__ = (index("tenants_changed", "changed_at"),)


class TenantLimit(Base, table="tenant_limits"):
    """What a tenant may have and is promised in one pool."""

    tenant_id: Mapped[int] = mapped_column(primary_key=True)
    pool: Mapped[str] = mapped_column(primary_key=True)
    #: Jobs in flight at most.
    in_flight: Mapped[Int4 | None]
    #: Dedicated slots, served by workers of the slice ``<pool>.reserved.<tenant>``.
    reserved: Mapped[Int4 | None]
    #: Jobs waiting at most.
    depth: Mapped[int | None]


class BlobCount(Base, table="blob_counts", fillfactor=70):
    """What a tenant has in the blob store, as the scheduler counted it; tenant 0: all of them."""

    tenant_id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    bytes: Mapped[int]
    #: When counting began.
    counted_at: Mapped[datetime]


class ApiKey(Base, table="api_keys"):
    """Identifies a caller. Only a digest of the secret part is stored."""

    #: The short part of the key.
    id: Mapped[str] = mapped_column(primary_key=True)
    #: None for an operator.
    tenant_id: Mapped[int | None] = mapped_column(ForeignKey("tenants.id"))
    name: Mapped[TextOrEmpty]
    digest: Mapped[bytes]
    created_at: Mapped[Now]
    revoked_at: Mapped[datetime | None]
    #: What it may do, see :mod:`app.tenants.scopes`; None: all that its kind may.
    scopes: Mapped[list[str] | None] = mapped_column(ARRAY(Text))
    #: None: never.
    expires_at: Mapped[datetime | None]
    #: To the minute.
    last_used_at: Mapped[datetime | None]

    __table_args__ = (
        index("api_keys_revoked", "revoked_at"),
        index("api_keys_of_tenant", "tenant_id"),
    )


class BrowserSession(Base, table="sessions"):
    """Somebody who signed in to pages; see :mod:`app.tenants.sessions`."""

    #: Of the token in the cookie.
    digest: Mapped[bytes] = mapped_column(primary_key=True)
    #: The key that was signed in with; None: OpenID Connect, of which the next four are.
    key_id: Mapped[str | None]
    issuer: Mapped[str | None]
    subject: Mapped[str | None]
    #: Verified, if there is one.
    email: Mapped[str | None]
    #: The value of the claim that let them in.
    granted_by: Mapped[str | None]
    created_at: Mapped[Now]
    #: The absolute limit.
    expires_at: Mapped[datetime]
    #: When it ends if it is not used; at most ``expires_at``.
    ends_at: Mapped[datetime]

    __table_args__ = (index("sessions_ends", "ends_at"),)


class RateBucket(Base, table="rate_buckets", fillfactor=50):
    """Submissions that a tenant may still make; API processes take them in chunks."""

    tenant_id: Mapped[int] = mapped_column(primary_key=True)
    #: A token is a stretch of time: what lies between this and now may be taken.
    spent_until: Mapped[datetime] = mapped_column(server_default=text("to_timestamp(0)"))


class RefusalRow(Base, table="refusals", fillfactor=50):
    """Submissions that were refused, by day and code."""

    tenant_id: Mapped[int] = mapped_column(primary_key=True)
    day: Mapped[date] = mapped_column(primary_key=True)
    code: Mapped[str] = mapped_column(primary_key=True)
    refused: Mapped[Count]


class Usage(Base, table="usage", fillfactor=50, autovacuum_vacuum_threshold=200):
    """What a tenant used in a day, written by the statement that settles.

    Spread over shards, so that processes do not wait for each other's commit on one row.
    """

    tenant_id: Mapped[int] = mapped_column(primary_key=True)
    day: Mapped[date] = mapped_column(primary_key=True)
    pool: Mapped[str] = mapped_column(primary_key=True)
    shard: Mapped[Int2] = mapped_column(primary_key=True)
    #: Jobs that came to an end, and runs that did.
    jobs: Mapped[Count]
    runs: Mapped[Count]
    slot_seconds: Mapped[Sum]
    #: Of them, those in the tenant's slice.
    slice_seconds: Mapped[Sum]
    tokens_in: Mapped[Count]
    tokens_out: Mapped[Count]
