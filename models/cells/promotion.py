"""Promotion: another cell takes the place of one that is lost for good, in all placements.

Tenants come from their copies in the registry (`models.cells.copies`): terms, limits, API keys and
schedules. Of their jobs nothing is known until the lost cell is back. Then its scheduler finds that
they are placed elsewhere, dispatches nothing for them and has them transferred, as by a move
(``PlacementCheck``). Requests that were taken in meanwhile follow the placement by themselves
(``IntakeHandover``).

For each tenant the other cell has it before the placement says so: dying in between leaves a tenant
that is not used yet, and the next run goes on. Every step can be repeated.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from sqlalchemy import Engine
from sqlalchemy.exc import SQLAlchemyError

from models.audit import Act, record, recording
from models.cells.away import set_away
from models.cells.copies import CopiedTenant, install_copy, read_copy
from models.cells.databases import CellDatabases
from models.cells.moved_rows import put_schedules
from models.cells.moves import REQUEST
from models.cells.placements import PlacementRow, change_placement, read_placement, read_placements
from models.cells.tenant_rows import CannotMove, find_tenant, set_share
from models.store.errors import StateStoreError
from models.store.session import execute, fetch, transaction

#: A move from or to the lost cell cannot go on. Whoever runs it finds that it is gone.
END_MOVE = "DELETE FROM moves WHERE tenant = %(tenant)s"
#: One that has only prepared the lost cell begins again with the other one; one that is being taken
#: back is so without it.
TURN_MOVES = """
    UPDATE moves
    SET wanted = (wanted - %(lost)s::text) || CASE
            WHEN step = 'undo' THEN '{}'::jsonb
            WHEN wanted ? %(to)s::text AND (wanted->>%(to)s::text)::float8 > 0 THEN '{}'::jsonb
            ELSE jsonb_build_object(%(to)s::text, wanted->%(lost)s::text) END,
        step = CASE step WHEN 'undo' THEN step ELSE 'prepare' END,
        fence = fence + 1, lease_expires_at = to_timestamp(0),
        changed_at = now(), error = ''
    WHERE (wanted->>%(lost)s::text)::float8 > 0
      AND NOT EXISTS (SELECT FROM placements AS placed
                      WHERE placed.tenant = moves.tenant AND placed.cells ? %(lost)s::text)
"""


@dataclass(slots=True)
class Promoted:
    """What became of the tenants of a lost cell."""

    tenants: list[str] = field(default_factory=list)
    #: Those that the registry has no copy of, which stay where they are.
    without_copy: list[str] = field(default_factory=list)
    #: Those that could not be installed, with the reason; they stay too.
    failed: dict[str, str] = field(default_factory=dict)


class NoCopy(Exception):
    """Neither the registry nor the other cell knows the tenant."""


def promote(databases: CellDatabases, lost: str, to: str) -> Promoted:
    """Place all tenants of the cell ``lost`` in the cell ``to`` instead."""
    registry, promoted = databases.registry, Promoted()
    execute(registry, TURN_MOVES, {"lost": lost, "to": to})
    for placement in read_placements(registry):
        if lost not in placement.weights:
            continue
        try:
            promote_tenant(databases, placement, lost, to)
        except NoCopy:
            promoted.without_copy.append(placement.tenant)
        except (CannotMove, SQLAlchemyError, StateStoreError) as error:
            for engine in (registry, databases.engine(to)):
                fetch(engine, "SELECT 1")  # whoever cannot reach these need not go on
            promoted.failed[placement.tenant] = str(error)
        else:
            promoted.tenants.append(placement.tenant)
    return promoted


def promote_tenant(databases: CellDatabases, found: PlacementRow, lost: str, to: str) -> None:
    """Place one tenant in the other cell, unless that is done already."""
    registry: Engine = databases.registry
    placement: PlacementRow | None = found
    while placement is not None and lost in placement.weights:
        weights = replaced(placement.weights, lost, to)
        holder: str | None = None
        copy, gains = read_copy(registry, placement.tenant), weights.get(to, 0.0) > 0
        # While a cell is being left, some of the tenant's schedules are still there.
        was_left = placement.weights[lost] <= 0
        if gains:
            install(databases.engine(to), copy, placement, weights, to)
        if copy is not None and copy.rows["schedules"] and (gains or was_left):
            holder = put_back_schedules(databases, copy, weights, to, always=was_left)
        if flip(registry, placement, weights, holder):
            divide(databases, placement, weights, without=to)
            return
        placement = read_placement(registry, placement.tenant)


def flip(
    registry: Engine, placement: PlacementRow, weights: Mapping[str, float], holder: str | None
) -> bool:
    """Change the placement, and end the move that the tenant is on; False if it has changed.

    Schedules belong to the first cell that admits. If another one has them (``holder``), or may
    have them because a move was ended, a move to the same cells brings them there.
    """
    tenant = placement.tenant
    with recording(registry) as connection:
        if not change_placement(connection, tenant, placement.version, weights):
            return False
        ended = connection.exec_driver_sql(END_MOVE, {"tenant": tenant}).rowcount
        cells = admitting(weights)
        if len(cells) > 1 and (ended or holder not in (None, cells[0])):
            wanted = {"tenant": tenant, "wanted": json.dumps(dict(weights))}
            connection.exec_driver_sql(REQUEST, {**wanted, "version": placement.version + 1})
        before, after = {"cells": dict(placement.weights)}, {"cells": dict(weights)}
        record(connection, Act.TENANT_MOVE, tenant, tenant=tenant, before=before, after=after)
    return True


def replaced(weights: Mapping[str, float], lost: str, to: str) -> dict[str, float]:
    """The placement with the other cell in place of the lost one.

    A cell that was being emptied is just dropped; if nothing is left then, what was being emptied
    into the lost one is used again.
    """
    kept = {cell: weight for cell, weight in weights.items() if cell != lost}
    gained = weights[lost]
    if gained > 0 or not any(weight > 0 for weight in kept.values()):
        kept[to] = kept.get(to, 0.0) + (gained or 1.0)
    return kept


def install(
    target: Engine,
    copy: CopiedTenant | None,
    placement: PlacementRow,
    weights: Mapping[str, float],
    to: str,
) -> None:
    """Let the other cell have the tenant, without its schedules, and admit for it."""
    known = find_tenant(target, placement.tenant)
    if copy is None and known is None:
        raise NoCopy(placement.tenant)
    share = share_of(weights, to)
    with transaction(target) as connection:
        if copy is not None and known is None:
            install_copy(connection, copy, share=share, schedules=False)
            tenant_id = int(str(copy.rows["tenants"][0]["id"]))
        else:
            assert known is not None
            tenant_id = known[0]
            set_share(connection, tenant_id, share)
        set_away(connection, tenant_id, placement.version + 1, away=False)


def admitting(weights: Mapping[str, float]) -> list[str]:
    """The cells that new jobs go to; schedules are in the first one."""
    return sorted(cell for cell, weight in weights.items() if weight > 0)


def put_back_schedules(
    databases: CellDatabases,
    copy: CopiedTenant,
    weights: Mapping[str, float],
    to: str,
    *,
    always: bool = False,
) -> str:
    """Let the first cell that admits have the schedules of the copy, if the lost one had them; the
    cell that has them now. ``always``: also if another cell wrote the copy."""
    if copy.cell in admitting(weights) and not always:
        return copy.cell  # they are where they were
    first = admitting(weights)[0]
    try:
        put_copied(databases.engine(first), copy)
    except StateStoreError:
        if first == to or weights.get(to, 0.0) <= 0:
            raise
        put_copied(databases.engine(to), copy)
        return to
    return first


def put_copied(target: Engine, copy: CopiedTenant) -> None:
    """Let a cell have the schedules of the copy."""
    with transaction(target) as connection:
        put_schedules(connection, copy.rows["schedules"])


def divide(
    databases: CellDatabases, placement: PlacementRow, weights: Mapping[str, float], without: str
) -> None:
    """Tell the tenant's other cells their part of its terms; one that is away keeps its own."""
    for cell, weight in weights.items():
        if cell == without or weight <= 0:
            continue
        try:
            engine = databases.engine(cell)
            known = find_tenant(engine, placement.tenant)
            if known is not None:
                with transaction(engine) as connection:
                    set_share(connection, known[0], share_of(weights, cell))
        except StateStoreError:
            continue


def share_of(weights: Mapping[str, float], cell: str) -> float:
    """The part of the tenant's terms that holds in a cell."""
    return weights[cell] / sum(weight for weight in weights.values() if weight > 0)
