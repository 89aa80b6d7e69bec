"""Copies of tenants in the registry, for the case that their cell is lost for good.

A copy has the tenant's terms, limits, API keys and schedules. The scheduler of the first cell of a
tenant writes it; of a tenant in several cells the others have its own rows anyway, and schedules
are in the first one. While they are brought there by a move, those that are known stay in the copy.
What a copy says of terms, limits and keys is a few seconds old; what it says of schedules is as old
as a walk over all tenants takes, or as such a move.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError

from models.cells.moved_rows import SCHEDULES, put_schedules
from models.cells.tenant_rows import API_KEYS, LIMITS, TENANTS, OwnRows, write_own_rows
from models.store.errors import StateStoreError
from models.store.row_copies import TextRow
from models.store.session import connect, execute, fetch

logger = logging.getLogger(__name__)

#: Tenants of one statement, and bytes of their schedules' payloads, unless one has more alone.
BATCH = 200
BATCH_BYTES = 16 * 1_048_576

#: What changes all the time is left out: a copy is written when something else has changed.
UNSTEADY = {"tenants": ("changed_at",), "api_keys": ("last_used_at",)}
FIND_CHANGED = """
    SELECT now() AS now, array(
        SELECT id FROM tenants WHERE changed_at > %(since)s::timestamptz - interval '30 seconds'
        UNION SELECT tenant_id FROM api_keys
        WHERE tenant_id IS NOT NULL
          AND greatest(created_at, revoked_at) > %(since)s::timestamptz - interval '30 seconds'
    ) AS changed
"""
NEXT = f"SELECT id FROM tenants WHERE id > %(after)s ORDER BY id LIMIT {BATCH}"
READ_SIZES = """
    SELECT tenant_id, sum(octet_length(payload::text)) AS bytes FROM schedules
    WHERE tenant_id = ANY (%(ids)s) GROUP BY tenant_id
"""
#: The registry's, so that all cells and their standbys go by one clock.
READ_CLOCK = "SELECT clock_timestamp() AS now"
#: Only of tenants whose first cell this is, only if something differs, and only over a copy that
#: was read earlier: a scheduler that stood still between its read and this may have been replaced.
#: One that was read in the future says that the registry's clock was set back. Schedules that a
#: move is about to bring here are in the copy that their old cell wrote.
WRITE = """
    INSERT INTO tenant_copies AS known (tenant, cell, rows, copied_at)
    SELECT given.tenant, %(cell)s,
           CASE WHEN moves.tenant IS NULL THEN given.rows ELSE jsonb_set(
               given.rows, '{schedules}', (given.rows->'schedules') || (
                   SELECT coalesce(jsonb_agg(schedule), '[]')
                   FROM jsonb_array_elements(earlier.rows->'schedules') AS schedule
                   WHERE schedule->'id' <> ALL (array(
                       SELECT one->'id' FROM jsonb_array_elements(given.rows->'schedules') AS one))
               )) END, %(read_at)s
    FROM (SELECT tenant, rows::jsonb AS rows
          FROM unnest(%(tenants)s::text[], %(rows)s::text[]) AS texts (tenant, rows)) AS given
    JOIN placements ON placements.tenant = given.tenant
    LEFT JOIN moves ON moves.tenant = given.tenant AND moves.step IN ('open', 'transfer')
    LEFT JOIN tenant_copies AS earlier ON earlier.tenant = given.tenant
    WHERE %(cell)s = (SELECT min(name COLLATE "C") FROM jsonb_each_text(placements.cells)
                          AS placed (name, weight) WHERE weight::float8 > 0)
    ORDER BY given.tenant
    ON CONFLICT (tenant) DO UPDATE
    SET cell = excluded.cell, rows = excluded.rows, copied_at = excluded.copied_at
    WHERE (known.cell, known.rows) IS DISTINCT FROM (excluded.cell, excluded.rows)
      AND (known.copied_at < excluded.copied_at OR known.copied_at > now())
"""
READ = "SELECT tenant, cell, rows, copied_at FROM tenant_copies WHERE tenant = %(tenant)s"
#: Of tenants that are placed nowhere.
FORGET = """
    DELETE FROM tenant_copies AS copy
    WHERE copy.cell = %(cell)s
      AND NOT EXISTS (SELECT FROM placements WHERE placements.tenant = copy.tenant)
"""


class CopiedTenant(NamedTuple):
    """A tenant's own rows and schedules, as the registry has them."""

    tenant: str
    cell: str
    rows: Mapping[str, list[TextRow]]
    #: When they were read, or a moment before.
    copied_at: datetime


def find_changed(engine: Engine, since: datetime | None) -> tuple[list[int], datetime]:
    """Tenants of a cell whose terms or keys changed since a look, if there was one; and the time of
    this one."""
    [row] = fetch(engine, FIND_CHANGED, {"since": since})
    return list(row.changed), row.now


def next_tenants(engine: Engine, after: int) -> list[int]:
    """The next ones of a walk over all tenants of a cell."""
    return [row.id for row in fetch(engine, NEXT, {"after": after})]


def batches_of(engine: Engine, ids: Collection[int]) -> Iterator[list[int]]:
    """The tenants in parts that fit into memory."""
    sizes = {row.tenant_id: row.bytes for row in fetch(engine, READ_SIZES, {"ids": list(ids)})}
    batch: list[int] = []
    size = 0
    for tenant_id in sorted(ids):
        own = sizes.get(tenant_id, 0)
        if batch and (len(batch) == BATCH or size + own > BATCH_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(tenant_id)
        size += own
    if batch:
        yield batch


def copy_tenants(registry: Engine, cell: str, engine: Engine, ids: Collection[int]) -> int:
    """Copy tenants of a cell to the registry; how many differed.

    One that the registry refuses keeps no other from being copied.
    """
    return sum(copy_batch(registry, cell, engine, batch) for batch in batches_of(engine, ids))


def copy_batch(registry: Engine, cell: str, engine: Engine, ids: Sequence[int]) -> int:
    """Copy these tenants; if the registry refuses them, each alone."""
    try:
        return write_copies(registry, cell, engine, ids)
    except StateStoreError:
        raise
    except DBAPIError:
        if len(ids) > 1:
            return sum(copy_batch(registry, cell, engine, [each]) for each in ids)
        logger.exception("tenant %d is not copied to the registry", *ids)
        return 0


def write_copies(registry: Engine, cell: str, engine: Engine, ids: Sequence[int]) -> int:
    """Read the tenants and write their copies, in a statement each."""
    [clock] = fetch(registry, READ_CLOCK)
    copies = read_tenants(engine, ids)
    asked: dict[str, Any] = {
        "cell": cell,
        "read_at": clock.now,
        "tenants": list(copies),
        "rows": [json.dumps(rows) for rows in copies.values()],
    }
    return execute(registry, WRITE, asked)


def read_tenants(engine: Engine, ids: Sequence[int]) -> dict[str, dict[str, list[TextRow]]]:
    """The rows of some tenants, by name and table."""
    asked = {"ids": list(ids)}
    with connect(engine) as connection:
        tenants = TENANTS.read(connection, "WHERE id = ANY (%(ids)s)", asked)
        others = {
            table.name: table.read(
                connection,
                f"WHERE tenant_id = ANY (%(ids)s) ORDER BY {', '.join(table.key)}",
                asked,
            )
            for table in (API_KEYS, LIMITS, SCHEDULES)
        }
    found: dict[str | None, dict[str, list[TextRow]]] = {
        tenant["id"]: {"tenants": [steady("tenants", tenant)], **{name: [] for name in others}}
        for tenant in tenants
    }
    for name, rows in others.items():
        for row in rows:
            if row["tenant_id"] in found:  # else it was created between the two statements
                found[row["tenant_id"]][name].append(steady(name, row))
    return {str(tenant["name"]): found[tenant["id"]] for tenant in tenants}


def steady(table: str, row: TextRow) -> TextRow:
    """A row without what changes all the time."""
    return {name: value for name, value in row.items() if name not in UNSTEADY.get(table, ())}


def read_copy(registry: Engine, tenant: str) -> CopiedTenant | None:
    """The copy of a tenant, if there is one."""
    rows = fetch(registry, READ, {"tenant": tenant})
    return CopiedTenant(**rows[0]._mapping) if rows else None


def forget_copies(registry: Engine, cell: str) -> int:
    """Forget copies of tenants that were deleted; how many."""
    return execute(registry, FORGET, {"cell": cell})


def install_copy(
    connection: Connection, copy: CopiedTenant, *, share: float = 1.0, schedules: bool = True
) -> None:
    """Let this cell have the tenant, its limits, keys and schedules, as part of a transaction.

    What is there already is replaced, but for schedules.
    """
    own: OwnRows = {
        "tenants": [{**row, "changed_at": "now"} for row in copy.rows["tenants"]],
        "api_keys": [{**row, "last_used_at": None} for row in copy.rows["api_keys"]],
        "tenant_limits": copy.rows["tenant_limits"],
    }
    write_own_rows(connection, own, share=share)
    if schedules:
        put_schedules(connection, copy.rows["schedules"])
