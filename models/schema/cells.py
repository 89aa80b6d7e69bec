"""Cells: which there are and which tenants live where, in the registry; what a cell knows of it.

The registry and the cells have one schema. ``cells``, ``removed_cells``, ``placements``, ``moves``
and ``tenant_copies`` are used in the database that is the registry, the others in every cell's.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import ARRAY, Index, Uuid, text
from sqlalchemy.dialects.postgresql import JSONB

from models.schema.base import (
    Base,
    Count,
    Id,
    Int2,
    Mapped,
    Now,
    TextOrEmpty,
    index,
    mapped_column,
)


class RegisteredCell(Base, table="cells"):
    """A whole Fairline: a database and a broker, with schedulers and workers of its own."""

    name: Mapped[str] = mapped_column(primary_key=True)
    #: From 1 to 4095; a part of the ids of its jobs.
    number: Mapped[Int2] = mapped_column(unique=True)
    region: Mapped[TextOrEmpty]
    #: These hold passwords.
    database_url: Mapped[str]
    broker_url: Mapped[str]
    read_database_url: Mapped[TextOrEmpty]
    #: ``open``, or ``draining``: no new tenant is placed here.
    state: Mapped[str] = mapped_column(server_default="open")
    created_at: Mapped[Now]
    changed_at: Mapped[Now]


class RemovedCell(Base, table="removed_cells"):
    """A cell that was removed: ids of its tenants and jobs have its number, so no other gets it."""

    number: Mapped[Int2] = mapped_column(primary_key=True, autoincrement=False)
    name: Mapped[str]
    removed_at: Mapped[Now]


class TenantPlacement(Base, table="placements"):
    """The cells that a tenant lives in."""

    #: Its name: no two tenants of an installation share one.
    tenant: Mapped[str] = mapped_column(primary_key=True)
    #: Raised by every change.
    version: Mapped[int] = mapped_column(server_default="1")
    #: Weights by name of the cell; 0: it admits nothing and is being emptied.
    cells: Mapped[Any] = mapped_column(JSONB)
    changed_at: Mapped[Now]

    __table_args__ = (index("placements_changed", "changed_at"),)


class MoveRow(Base, table="moves", fillfactor=70):
    """A tenant is on its way to another placement; the row goes when it has arrived."""

    tenant: Mapped[str] = mapped_column(primary_key=True)
    #: The placement that it is to have, as in ``placements.cells``.
    wanted: Mapped[Any] = mapped_column(JSONB)
    step: Mapped[str] = mapped_column(server_default="prepare")
    #: Raised by every runner that takes it over: what an earlier one writes has no effect.
    fence: Mapped[Count]
    runner: Mapped[TextOrEmpty]
    lease_expires_at: Mapped[datetime] = mapped_column(server_default=text("to_timestamp(0)"))
    started_at: Mapped[Now]
    changed_at: Mapped[Now]
    #: Jobs that were transferred so far.
    transferred: Mapped[Count]
    #: What the last try failed with.
    error: Mapped[TextOrEmpty]


class TenantCopy(Base, table="tenant_copies", fillfactor=70):
    """A tenant's own rows, for the case that its cell is lost for good."""

    tenant: Mapped[str] = mapped_column(primary_key=True)
    #: The cell that they were read in.
    cell: Mapped[str]
    #: Rows by table: the tenant, its keys, limits and schedules.
    rows: Mapped[Any] = mapped_column(JSONB)
    copied_at: Mapped[Now]

    __table_args__ = (
        # To find the tenant of a key.
        Index(
            "tenant_copies_keys",
            "rows",
            postgresql_using="gin",
            postgresql_ops={"rows": "jsonb_path_ops"},
        ),
    )


class AwayTenant(Base, table="away_tenants"):
    """A tenant whose placement changed: what this cell admits for it; see ``models.cells.away``."""

    tenant_id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    #: It is placed elsewhere: nothing is admitted or dispatched.
    away: Mapped[bool] = mapped_column(server_default=text("true"))
    #: Of the placement. Keys are admitted only from callers who know it, or a later one: an earlier
    #: one would send a repetition of the same request to another cell.
    version: Mapped[Count]
    changed_at: Mapped[Now]


class CellIdentity(Base, table="cell_identity"):
    """Which cell this database is of: one row; none where there are no cells."""

    #: Always true.
    one: Mapped[bool] = mapped_column(primary_key=True, server_default=text("true"))
    number: Mapped[Int2]
    name: Mapped[str]


class IntakeJob(Base, table="intake_jobs"):
    """A submission kept for another cell that is away."""

    #: Of its first job.
    id: Mapped[Id] = mapped_column(primary_key=True)
    #: Of all its jobs, in the order of the request.
    job_ids: Mapped[list[str]] = mapped_column(ARRAY(Uuid(as_uuid=False)))
    tenant: Mapped[str]
    #: Not that of another tenant that had the same name.
    tenant_id: Mapped[int]
    #: The cell that it is for; once its handing over began, the one that may have it.
    cell: Mapped[str]
    #: The idempotency key, and the digest of the request that came with it.
    key: Mapped[str | None]
    digest: Mapped[bytes | None]
    #: The validated request.
    body: Mapped[str]
    created_at: Mapped[Now]
    #: Those of its jobs that were cancelled here.
    cancelled: Mapped[list[str]] = mapped_column(ARRAY(Uuid(as_uuid=False)), server_default="{}")
    #: When its handing over began: from then on its jobs may be in their cell too.
    handed_over_at: Mapped[datetime | None]
    #: The jobs of an earlier request under the same key: these answer for ``job_ids``.
    alias_of: Mapped[list[str] | None] = mapped_column(ARRAY(Uuid(as_uuid=False)))

    __table_args__ = (
        index("intake_jobs_key", "tenant_id, key", where="key IS NOT NULL", unique=True),
        index("intake_jobs_waiting", "cell, id", where="handed_over_at IS NULL"),
        index("intake_jobs_handed_over", "handed_over_at", where="handed_over_at IS NOT NULL"),
        index("intake_jobs_tenant", "tenant, id"),
        # To find the others of a batch; a job that came alone is found by the primary key.
        Index(
            "intake_jobs_members",
            "job_ids",
            postgresql_using="gin",
            postgresql_where=text("cardinality(job_ids) > 1"),
        ),
    )


class TransferMark(Base, table="transfer_marks"):
    """Something was transferred into this cell, once: written with it in one transaction."""

    #: Names the tenant, the cell that it came from, and what it was; or who moves the tenant; or,
    #: as ``deleted/<id>``, a tenant that was deleted here.
    mark: Mapped[str] = mapped_column(primary_key=True)
    #: Of who moves it: the highest fence that was seen here; see `models.cells.fences`.
    number: Mapped[Count]
    at: Mapped[Now]
