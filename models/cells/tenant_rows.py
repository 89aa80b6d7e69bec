"""What a move does with each table, and the rows that are a tenant's own: terms, limits and keys.

``ON_MOVE`` names every table of the schema: a new one is not forgotten, for a test compares them.

A tenant has the same id in every cell. So its rows are copied as they are, and what is encrypted is
readable in every cell that has the same keys.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from sqlalchemy import Connection, Engine

from models.schema import Base
from models.store.row_copies import CopiedTable, TextRow
from models.store.session import connect, fetch


class OnMove(StrEnum):
    """What becomes of the rows of a table when their tenant moves."""

    #: The tenant's own, in every cell of it: copied again and again until new jobs go there.
    OWN = "own"
    #: Copied to all cells that new jobs go to, removed with the tenant.
    COPIED = "copied"
    #: With the job that they belong to, see `models.jobs.transfer`.
    WITH_JOB = "with the job"
    #: Each row is in one cell, and goes to another.
    MOVED = "moved"
    #: Added to the rows of the other cell, once.
    SUMMED = "summed"
    #: Stays, and is removed with the tenant: made anew where it comes to, or of no use there.
    LEFT = "left"
    #: Stays for good.
    KEPT = "kept"
    #: No tenant's rows.
    NONE = "none"


ON_MOVE: Mapping[str, OnMove] = {
    **dict.fromkeys(("tenants", "api_keys", "tenant_limits"), OnMove.OWN),
    "idempotency_keys": OnMove.COPIED,
    **dict.fromkeys(("jobs", "attempts", "run_logs", "checkpoints"), OnMove.WITH_JOB),
    # Most with their job; scored ones outlive it.
    "applications": OnMove.WITH_JOB,
    **dict.fromkeys(("schedules", "events", "replays", "erasures"), OnMove.MOVED),
    # Of the tallies those that limits and the search for spikes look back on: see `sums`.
    **dict.fromkeys(("usage", "refusals", "tallies"), OnMove.SUMMED),
    # Counts of ended jobs; the others are made by triggers.
    **dict.fromkeys(("job_count_keys", "job_count_sums", "job_count_deltas"), OnMove.SUMMED),
    # The fair share begins anew, as for a tenant that had nothing to do; so do the rate of
    # submissions and what is judged by recent failures. Blobs are counted every few minutes.
    **dict.fromkeys(("shares", "rate_buckets", "verdicts", "blob_counts"), OnMove.LEFT),
    # Lanes of jobs that were queued, written by a trigger.
    "arrivals": OnMove.LEFT,
    # What was predicted of a job that is gone is forgotten by the forecaster.
    "predictions": OnMove.KEPT,
    # People sign in again; sessions end by themselves.
    "sessions": OnMove.KEPT,
    # Nothing is taken out of it, or written into it afterwards.
    "audit_log": OnMove.KEPT,
    # Requests for a cell that is away follow the placement by themselves.
    "intake_jobs": OnMove.KEPT,
    # The registry's, and what the move itself writes.
    **dict.fromkeys(("placements", "moves", "tenant_copies", "away_tenants"), OnMove.KEPT),
    **dict.fromkeys(("cells", "removed_cells", "cell_identity", "transfer_marks"), OnMove.NONE),
    **dict.fromkeys(("processes", "leaders", "desired_workers", "pool_samples"), OnMove.NONE),
    **dict.fromkeys(("feed_generations", "circuits", "verdicts_version", "quotas"), OnMove.NONE),
    **dict.fromkeys(("job_types", "express_lanes"), OnMove.NONE),
}


def copied_table(name: str, *leave_out: str) -> CopiedTable:
    """A table of the schema, to be copied."""
    return CopiedTable(Base.metadata.tables[name], leave_out)


#: The part that holds in a cell is that cell's own.
TENANTS = copied_table("tenants", "share")
LIMITS, API_KEYS = copied_table("tenant_limits"), copied_table("api_keys")
IDEMPOTENCY_KEYS = copied_table("idempotency_keys")
OF_TENANT = "WHERE tenant_id = %(tenant_id)s::bigint"
#: Keys of one transaction.
BATCH = 1_000

FIND_TENANT = """
    SELECT id, deleted_at IS NOT NULL AS deleted FROM tenants WHERE name = %(name)s
"""
#: Ids and names of tenants are unique over all cells, unless a database was added with tenants of
#: its own.
OTHER_TENANT = """
    SELECT id, name FROM tenants
    WHERE (id = %(tenant_id)s::bigint) <> (name = %(name)s::text)
"""
HAS_TENANT = "SELECT EXISTS (SELECT FROM tenants WHERE id = %(tenant_id)s::bigint)"
#: Terms, without the mark of their last change.
TERMS = ", ".join(name for name in TENANTS.types if name not in ("id", "changed_at"))
#: ``{condition}``: of terms that differ, which are copied.
WRITE_TERMS = """
    ON CONFLICT (id) DO UPDATE
    SET ({terms}, changed_at) = ROW ({given}, clock_timestamp())
    WHERE ({known}) IS DISTINCT FROM ({given}) AND {condition}"""
#: A key that was revoked in either cell is; all else is as in the other one.
WRITE_KEYS = """
    ON CONFLICT (id) DO UPDATE
    SET name = excluded.name, scopes = excluded.scopes, expires_at = excluded.expires_at,
        revoked_at = least(known.revoked_at, excluded.revoked_at),
        last_used_at = greatest(known.last_used_at, excluded.last_used_at)
    WHERE known.tenant_id = excluded.tenant_id
      AND (known.name, known.scopes, known.expires_at, known.revoked_at, known.last_used_at)
          IS DISTINCT FROM (excluded.name, excluded.scopes, excluded.expires_at,
                            least(known.revoked_at, excluded.revoked_at),
                            greatest(known.last_used_at, excluded.last_used_at))"""
WRITE_LIMITS = """
    ON CONFLICT (tenant_id, pool) DO UPDATE
    SET in_flight = excluded.in_flight, reserved = excluded.reserved, depth = excluded.depth"""
DELETE_LIMITS = """
    DELETE FROM tenant_limits
    WHERE tenant_id = %(tenant_id)s::bigint AND pool <> ALL (%(pools)s::text[])
"""
SET_SHARE = """
    UPDATE tenants SET share = %(share)s, changed_at = clock_timestamp()
    WHERE id = %(tenant_id)s AND share <> %(share)s
"""
#: The later use of a key counts; and that its digest was forgotten.
WRITE_IDEMPOTENCY_KEYS = """
    ON CONFLICT (tenant_id, key) DO UPDATE
    SET digest = excluded.digest, job_ids = excluded.job_ids, created_at = excluded.created_at
    WHERE excluded.created_at > known.created_at
       OR excluded.created_at = known.created_at AND excluded.digest = '' AND known.digest <> ''"""
ALL_KEYS = f"{OF_TENANT} AND key > %(after)s ORDER BY tenant_id, idempotency_keys.key LIMIT {BATCH}"
#: By their age first: all keys of the tenant are many more.
YOUNG_KEYS = f"""
    WHERE ctid = ANY (array(
        WITH young AS MATERIALIZED (
            SELECT ctid AS place, tenant_id, key FROM idempotency_keys
            WHERE created_at >= %(since)s::timestamptz)
        SELECT place FROM young {OF_TENANT} AND key > %(after)s ORDER BY young.key LIMIT {BATCH}))
    ORDER BY idempotency_keys.key"""
REVISION = "SELECT version_num FROM alembic_version"
#: The tenant in a cell that rows come to, and locked: nobody deletes it meanwhile.
LIVES_HERE = """
    SELECT id FROM tenants WHERE id = %(tenant_id)s AND deleted_at IS NULL FOR SHARE
"""


class CopiedTerms(StrEnum):
    """Which terms replace those that a cell has."""

    ALL = "all"
    #: That were changed since they were copied.
    CHANGED = "changed"
    #: And later than those that the cell has.
    LATER = "later"
    NONE = "none"


#: As a condition; whether they were changed is known before.
REPLACES = {
    CopiedTerms.ALL: "true",
    CopiedTerms.CHANGED: "true",
    CopiedTerms.LATER: "excluded.changed_at > known.changed_at",
    CopiedTerms.NONE: "false",
}

OwnRows = Mapping[str, list[TextRow]]


class CannotMove(Exception):
    """Something in a cell is in the way of the move; its message says what."""


def find_tenant(engine: Engine, name: str) -> tuple[int, bool] | None:
    """A tenant of a cell: its id, and whether it is being deleted."""
    rows = fetch(engine, FIND_TENANT, {"name": name})
    return (int(rows[0].id), bool(rows[0].deleted)) if rows else None


def read_own_rows(engine: Engine, tenant_id: int) -> OwnRows:
    """The tenant's terms, limits and API keys, as this cell has them."""
    asked = {"tenant_id": tenant_id}
    with connect(engine) as connection:
        # Limits afterwards: whoever changes them changes the terms first.
        return {
            "tenants": TENANTS.read(connection, "WHERE id = %(tenant_id)s::bigint", asked),
            "api_keys": API_KEYS.read(connection, OF_TENANT, asked),
            "tenant_limits": LIMITS.read(connection, OF_TENANT, asked),
        }


def write_own_rows(
    connection: Connection,
    rows: OwnRows,
    *,
    share: float = 1.0,
    terms: CopiedTerms = CopiedTerms.ALL,
    lives_here: bool = False,
) -> None:
    """Let this cell have these rows of a tenant; of terms and limits those that ``terms`` says.

    ``lives_here``: its share is known, and if it is gone it stays gone.
    """
    if not rows["tenants"]:
        raise CannotMove("the tenant is not where it was read")
    [tenant] = rows["tenants"]
    asked: dict[str, Any] = {"tenant_id": tenant["id"], "name": tenant["name"]}
    other = connection.exec_driver_sql(OTHER_TENANT, asked).first()
    if other is not None:
        raise CannotMove(f"another tenant there is called {other.name} and has the id {other.id}")
    known = connection.exec_driver_sql(HAS_TENANT, asked).scalar_one()
    if lives_here and not known:
        return
    written = TENANTS.insert(connection, rows["tenants"], terms_conflict(REPLACES[terms]))
    API_KEYS.insert(connection, rows["api_keys"], WRITE_KEYS)
    if written or terms in (CopiedTerms.ALL, CopiedTerms.CHANGED):
        pools = [row["pool"] for row in rows["tenant_limits"]]
        connection.exec_driver_sql(DELETE_LIMITS, {**asked, "pools": pools})
        LIMITS.insert(connection, rows["tenant_limits"], WRITE_LIMITS)
    if not lives_here:
        set_share(connection, int(str(tenant["id"])), share)


def terms_conflict(condition: str) -> str:
    """How terms that are there are replaced."""
    names = TERMS.split(", ")
    return WRITE_TERMS.format(
        terms=TERMS,
        known=", ".join(f"known.{name}" for name in names),
        given=", ".join(f"excluded.{name}" for name in names),
        condition=condition,
    )


def set_share(connection: Connection, tenant_id: int, share: float) -> None:
    """The part of the tenant's terms that holds in this cell."""
    connection.exec_driver_sql(SET_SHARE, {"tenant_id": tenant_id, "share": share})


def require_tenant(connection: Connection, tenant_id: int) -> None:
    """The tenant lives in this cell, and does so until the end of the transaction."""
    if connection.exec_driver_sql(LIVES_HERE, {"tenant_id": tenant_id}).first() is None:
        raise CannotMove("the tenant is being deleted")


def require_same_schema(one: Engine, other: Engine) -> None:
    """Rows are copied between databases of the same version only."""
    [found], [there] = fetch(one, REVISION), fetch(other, REVISION)
    if found.version_num != there.version_num:
        raise CannotMove(
            f"its databases are at the migrations {found.version_num} and {there.version_num}:"
            " migrate all cells first"
        )


def read_idempotency_keys(
    engine: Engine, tenant_id: int, after: str, since: str | None = None
) -> list[TextRow]:
    """The next idempotency keys behind one; ``since``: only those that were made later."""
    rest = ALL_KEYS if since is None else YOUNG_KEYS
    with connect(engine) as connection:
        asked = {"tenant_id": tenant_id, "after": after, "since": since}
        return IDEMPOTENCY_KEYS.read(connection, rest, asked)


def write_idempotency_keys(connection: Connection, rows: list[TextRow]) -> None:
    """Let this cell know the keys, so that a repetition finds what its first request became."""
    IDEMPOTENCY_KEYS.insert(connection, rows, WRITE_IDEMPOTENCY_KEYS)
