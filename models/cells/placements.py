"""Placements in the registry: the cells of each tenant, with weights and a version."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from datetime import datetime
from typing import NamedTuple

from sqlalchemy import Connection, Engine, Row

from models.store.session import execute, fetch

#: A change may be committed so much later than its ``changed_at`` says: a transaction and a half.
OVERLAP = "10 seconds"

COLUMNS = "tenant, version, cells, changed_at"
READ_ALL = f"SELECT {COLUMNS} FROM placements"
READ_CHANGED = f"{READ_ALL} WHERE changed_at > %(since)s::timestamptz - interval '{OVERLAP}'"
READ_NAMED = f"{READ_ALL} WHERE tenant = ANY (%(tenants)s)"
#: The first version is a time in microseconds, and so higher than those of an earlier tenant of the
#: same name, which caches and cells may still know. A placement that is there keeps its cells, and
#: is returned: its tenant may still have to be created. Its version is raised, so that nobody
#: removes it as that of the earlier one.
FIRST_VERSION = "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint"
PLACE = f"""
    INSERT INTO placements AS known (tenant, version, cells)
    VALUES (%(tenant)s, {FIRST_VERSION}, %(cells)s::jsonb)
    ON CONFLICT (tenant) DO UPDATE SET version = known.version + 1, changed_at = now()
    RETURNING {COLUMNS}
"""
#: Tenants that are there already; a placement keeps its version, which a move may have told a cell.
PLACE_UNPLACED = f"""
    INSERT INTO placements (tenant, version, cells)
    SELECT tenant, {FIRST_VERSION}, %(cells)s::jsonb
    FROM unnest(%(tenants)s::text[]) AS tenant
    ON CONFLICT (tenant) DO NOTHING
"""
#: Only the one that was read is changed.
CHANGE = """
    UPDATE placements SET cells = %(cells)s::jsonb, version = version + 1, changed_at = now()
    WHERE tenant = %(tenant)s AND version = %(version)s
"""
REMOVE = """
    DELETE FROM placements
    WHERE tenant = %(tenant)s AND version = %(version)s
      AND changed_at <= now() - make_interval(secs => %(age)s)
"""
#: The open cells of a region, the one with the fewest tenants first. A tenant that is being moved
#: counts where it will be.
LEAST_USED = """
    SELECT cells.name, count(placed.tenant) AS tenants FROM cells
    LEFT JOIN (SELECT placements.tenant, coalesce(moves.wanted, placements.cells) AS weights
               FROM placements LEFT JOIN moves
                   ON moves.tenant = placements.tenant AND moves.step <> 'undo') AS placed
        ON (placed.weights->>cells.name)::float8 > 0
    WHERE cells.state = 'open' AND (cells.region = %(region)s OR %(region)s = '')
    GROUP BY cells.name, cells.number ORDER BY tenants, cells.number
"""
TENANTS_OF_CELLS = """
    SELECT cell, count(*) AS tenants FROM placements, jsonb_object_keys(cells) AS cell GROUP BY cell
"""


class PlacementRow(NamedTuple):
    """A tenant's placement as the registry has it."""

    tenant: str
    version: int
    #: Weights by name of the cell; 0: being emptied.
    weights: Mapping[str, float]
    changed_at: datetime


def read_placements(registry: Engine, since: datetime | None = None) -> list[PlacementRow]:
    """All placements, or those that changed since: some of them may be known already."""
    if since is None:
        return [placement_row(row) for row in fetch(registry, READ_ALL)]
    return [placement_row(row) for row in fetch(registry, READ_CHANGED, {"since": since})]


def read_named_placements(registry: Engine, tenants: Collection[str]) -> list[PlacementRow]:
    """Those of some tenants."""
    return [placement_row(row) for row in fetch(registry, READ_NAMED, {"tenants": list(tenants)})]


def read_placement(registry: Engine, tenant: str) -> PlacementRow | None:
    """One tenant's."""
    return next(iter(read_named_placements(registry, (tenant,))), None)


def placement_row(row: Row[tuple[object, ...]]) -> PlacementRow:
    weights = {str(cell): float(weight) for cell, weight in row.cells.items()}
    return PlacementRow(row.tenant, row.version, weights, row.changed_at)


def place_tenant(connection: Connection, tenant: str, weights: Mapping[str, float]) -> PlacementRow:
    """Place a new tenant; its placement, which is another one if it had one."""
    asked = {"tenant": tenant, "cells": json.dumps(dict(weights))}
    return placement_row(connection.exec_driver_sql(PLACE, asked).one())


def place_unplaced(registry: Engine, tenants: Collection[str], cell: str) -> list[PlacementRow]:
    """Place the tenants of a cell that have no placement; the placements of all of them."""
    asked = {"tenants": list(tenants), "cells": json.dumps({cell: 1.0})}
    execute(registry, PLACE_UNPLACED, asked)
    return read_named_placements(registry, tenants)


def change_placement(
    connection: Connection, tenant: str, version: int, weights: Mapping[str, float]
) -> bool:
    """Replace the placement of this version; whether it still was the current one."""
    asked = {"tenant": tenant, "version": version, "cells": json.dumps(dict(weights))}
    return connection.exec_driver_sql(CHANGE, asked).rowcount > 0


def remove_placement(registry: Engine, tenant: str, version: int, *, age: float = 0.0) -> bool:
    """Forget where a tenant lived that is gone; whether this was its current placement.

    ``age``: only if it has not changed for so many seconds.
    """
    return execute(registry, REMOVE, {"tenant": tenant, "version": version, "age": age}) > 0


def least_used_cells(registry: Engine, region: str) -> dict[str, int]:
    """The open cells of a region (empty: of all), the one with the fewest tenants first; and how
    many tenants each has when all moves have ended."""
    return {row.name: row.tenants for row in fetch(registry, LEAST_USED, {"region": region})}


def tenants_of_cells(registry: Engine) -> dict[str, int]:
    """How many tenants live in each cell; a spread tenant counts in each of its cells."""
    return {row.cell: row.tenants for row in fetch(registry, TENANTS_OF_CELLS)}
