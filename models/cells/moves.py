"""Moves of tenants between cells: rows of the registry that say what is wanted and how far it is.

A row has the cells that are ``wanted`` (weights, 0 for a cell that the tenant leaves) and the step
that is being made. A runner takes it for a while (a lease); taking it over raises ``fence``, and
every statement here carries the fence and the step that it ends, so that a runner which was
replaced changes nothing. The work of the steps is in `models.cells.move_steps`: each can be
repeated at any time.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from hashlib import blake2b
from typing import Any

from sqlalchemy import Engine, Row

from models.audit import Act, Actor, acting, record, recording
from models.cells.placements import PlacementRow, read_placement
from models.cells.registry import read_cells
from models.leadership import EPOCH_STEP, has_ended
from models.store.session import execute, fetch, transaction

#: A runner that gives no sign for so long is replaced.
LEASE_SECONDS = 10.0
#: Hashes are numbers below this.
HASHES = 2**64


class MoveStep(StrEnum):
    """What is being done for a move; up to ``FLIP`` it can be taken back."""

    #: The tenant's own rows and idempotency keys are copied into new cells.
    PREPARE = "prepare"
    #: The cells that it leaves admit nothing more.
    CLOSE = "close"
    #: What has changed since the first copy is copied.
    KEYS = "keys"
    #: The placement changes: new jobs go to the cells that are wanted.
    FLIP = "flip"
    #: The cells that are wanted admit.
    OPEN = "open"
    #: Jobs and other rows go over, and those in flight are waited for.
    TRANSFER = "transfer"
    #: The cells that it left are no longer in the placement.
    DROP = "drop"
    #: What is left there is removed.
    REMOVE = "remove"
    #: It was cancelled: what was prepared is removed.
    UNDO = "undo"


#: New jobs go where they went before.
BEFORE_FLIP = frozenset({MoveStep.PREPARE, MoveStep.CLOSE, MoveStep.KEYS, MoveStep.FLIP})
#: Steps at whose beginning a cell may refuse the tenant: such moves come first, and go on when the
#: time of a turn is over.
REFUSING = frozenset({MoveStep.KEYS, MoveStep.FLIP, MoveStep.OPEN, MoveStep.UNDO})
#: Steps that are taken back without being asked to if they fail for long, as the tenant is refused
#: meanwhile. `OPEN` is repeated instead: new jobs are in the new cells by then.
GIVEN_UP = BEFORE_FLIP - {MoveStep.PREPARE}


def listed(steps: Collection[MoveStep]) -> str:
    """Steps as SQL has them after ``IN``."""
    return "(" + ", ".join(f"'{step}'" for step in sorted(steps)) + ")"


COLUMNS = """tenant, wanted, step, fence, runner, started_at, changed_at, transferred, error,
           now() - changed_at AS age, lease_expires_at > now() AS runs"""
#: The tenant's cells that are not wanted are left. The first fence is a time in nanoseconds, and so
#: higher than those of an earlier move; none is given out twice, even where commits were lost: see
#: `models.leadership`.
REQUEST = f"""
    INSERT INTO moves (tenant, fence, wanted)
    SELECT tenant, (extract(epoch FROM clock_timestamp()) * 1000000000)::bigint,
           (SELECT jsonb_object_agg(cell, 0) FROM jsonb_object_keys(cells) AS cell)
               || %(wanted)s::jsonb
    FROM placements WHERE tenant = %(tenant)s AND version = %(version)s
    ON CONFLICT (tenant) DO NOTHING
    RETURNING {COLUMNS}
"""
CANCEL = f"""
    UPDATE moves SET step = 'undo', changed_at = now()
    WHERE tenant = %(tenant)s AND step IN {listed(BEFORE_FLIP | {MoveStep.UNDO})}
    RETURNING tenant
"""
READ = f"SELECT {COLUMNS} FROM moves"
READ_ONE = f"{READ} WHERE tenant = %(tenant)s"
#: Our own, or one whose runner gave no sign: first those whose tenants are refused, unless the last
#: try failed, then the one that waited longest.
TAKE = f"""
    UPDATE moves AS move
    SET fence = move.fence + CASE WHEN move.runner = %(runner)s AND move.lease_expires_at > now()
                                  THEN 0 ELSE {EPOCH_STEP} END,
        runner = %(runner)s, lease_expires_at = now() + make_interval(secs => %(lease)s)
    FROM (
        SELECT tenant AS next FROM moves
        WHERE (runner = %(runner)s OR {has_ended("lease_expires_at")})
          AND tenant <> ALL (%(without)s::text[])
          AND (%(only)s::text IS NULL OR tenant = %(only)s)
        ORDER BY (step IN {listed(REFUSING)} AND error = '') DESC,
                 lease_expires_at, tenant
        LIMIT 1
        FOR UPDATE SKIP LOCKED
    ) AS found
    WHERE move.tenant = found.next
    RETURNING {COLUMNS}
"""
#: Conditions of everything that a runner writes here.
STILL_RUNNER = "tenant = %(tenant)s AND fence = %(fence)s AND step = %(step)s"
RENEW = f"""
    UPDATE moves
    SET lease_expires_at = now() + make_interval(secs => %(lease)s),
        transferred = transferred + %(transferred)s, error = %(error)s
    WHERE {STILL_RUNNER}
"""
ADVANCE = f"""
    UPDATE moves SET step = %(next)s, changed_at = now(), error = '' WHERE {STILL_RUNNER}
"""
#: With the change of the placement, in one statement: it happens once.
CHANGE_PLACEMENT = f"""
    WITH moved AS (
        UPDATE moves SET step = %(next)s, changed_at = now(), error = '' WHERE {STILL_RUNNER}
        RETURNING tenant
    )
    UPDATE placements AS placed
    SET cells = %(cells)s::jsonb, version = placed.version + 1, changed_at = now()
    FROM moved WHERE placed.tenant = moved.tenant
    RETURNING placed.version
"""
FINISH = f"DELETE FROM moves WHERE {STILL_RUNNER} RETURNING wanted, transferred, started_at"
#: A cell has seen a higher fence, although the lease is ours: the registry has lost commits.
RAISE_FENCE = f"""
    UPDATE moves SET fence = %(known)s + {EPOCH_STEP}
    WHERE tenant = %(tenant)s AND fence = %(fence)s AND runner = %(runner)s
      AND lease_expires_at > now()
"""


class MoveRefused(Exception):
    """The tenant cannot be moved so; the message says why."""


class MoveLost(Exception):
    """The move was taken over by another runner, or cancelled: this one stops."""


@dataclass(frozen=True, slots=True)
class Move:
    """A move as its runner knows it."""

    tenant: str
    #: Weights by cell; 0: it is left.
    wanted: Mapping[str, float]
    step: MoveStep
    fence: int
    runner: str
    started_at: datetime
    changed_at: datetime
    transferred: int
    error: str
    #: Seconds since the step began, by the registry's clock.
    age_seconds: float
    #: Whether somebody runs it.
    runs: bool
    #: For how long it is taken.
    lease_seconds: float = LEASE_SECONDS

    @property
    def admitting(self) -> dict[str, float]:
        """The cells that new jobs go to, with their weights."""
        return {cell: weight for cell, weight in sorted(self.wanted.items()) if weight > 0}

    @property
    def leaving(self) -> list[str]:
        """The cells that it leaves."""
        return sorted(cell for cell, weight in self.wanted.items() if weight <= 0)

    @property
    def first(self) -> str:
        """The cell of what is in one cell only: schedules, and sums of the cells that it leaves."""
        return min(self.admitting)

    def share(self, cell: str) -> float:
        """The part of the tenant's terms that will hold in a cell."""
        return self.admitting[cell] / sum(self.admitting.values())

    def target(self, row_id: str) -> str:
        """The cell that a row goes to: always the same, or it could come to two of them."""
        drawn = int.from_bytes(blake2b(row_id.encode(), digest_size=8).digest()) / HASHES
        drawn *= sum(self.admitting.values())
        for cell, weight in self.admitting.items():
            drawn -= weight
            if drawn < 0:
                return cell
        return max(self.admitting)

    def marks(self, source: str) -> str:
        """What the marks of rows begin with that come from a cell."""
        return f"moved/{self.tenant}/{source}/{self.started_at.timestamp()}/"


def move_of(row: Row[Any]) -> Move:
    """A row of COLUMNS."""
    columns: dict[str, Any] = dict(row._mapping)
    age = columns.pop("age").total_seconds()
    wanted = {cell: float(weight) for cell, weight in columns.pop("wanted").items()}
    step = MoveStep(columns.pop("step"))
    return Move(wanted=wanted, step=step, age_seconds=age, **columns)


def request_move(registry: Engine, tenant: str, weights: Mapping[str, float]) -> Move:
    """Have a tenant moved to these cells, with their weights above 0."""
    placement = read_placement(registry, tenant)
    if placement is None:
        raise MoveRefused(f"There is no tenant {tenant[:63]!r}.")
    check_cells(registry, placement, weights)
    wanted = {cell: float(weight) for cell, weight in weights.items()}
    asked = {"tenant": tenant, "wanted": json.dumps(wanted), "version": placement.version}
    with recording(registry) as connection:
        row = connection.exec_driver_sql(REQUEST, asked).first()
        if row is not None:
            before, after = {"cells": dict(placement.weights)}, {"cells": wanted}
            record(connection, Act.TENANT_MOVE, tenant, tenant=tenant, before=before, after=after)
            return move_of(row)
    if read_move(registry, tenant) is None:  # its placement changed between the two statements
        return request_move(registry, tenant, weights)
    raise MoveRefused(f"The tenant {tenant!r} is being moved: wait for it, or cancel it.")


def check_cells(registry: Engine, placement: PlacementRow, weights: Mapping[str, float]) -> None:
    """Refuse cells that are unknown or take no new tenants, and what is the case already."""
    states = {cell.name: cell.state for cell in read_cells(registry)}
    for cell in weights:
        if cell not in states:
            known = ", ".join(states) or "none"
            raise MoveRefused(f"There is no cell {cell[:63]!r}. Known cells: {known}.")
        if states[cell] == "draining" and placement.weights.get(cell, 0.0) <= 0:
            raise MoveRefused(f"The cell {cell!r} is being drained: it takes no tenants.")
    if not weights or min(weights.values()) <= 0:
        raise MoveRefused("Name at least one cell, and weights above 0.")
    if dict(placement.weights) == dict(weights):
        raise MoveRefused(f"The tenant {placement.tenant!r} is there already.")


def request_drain(registry: Engine, placement: PlacementRow, cell: str) -> bool:
    """Have what a tenant has in a cell that admits nothing for it moved to where it is."""
    if placement.weights.get(cell, 0.0) > 0:
        return False
    wanted = json.dumps({**placement.weights, cell: 0.0})
    asked = {"tenant": placement.tenant, "wanted": wanted, "version": placement.version}
    return bool(fetch(registry, REQUEST, asked))


def cancel_move(registry: Engine, tenant: str) -> None:
    """Take a move back, unless new jobs go to the other cells already."""
    with recording(registry) as connection:
        if connection.exec_driver_sql(CANCEL, {"tenant": tenant}).first() is not None:
            record(connection, Act.TENANT_MOVE, tenant, tenant=tenant, after={"cancelled": True})
            return
    if read_move(registry, tenant) is None:
        raise MoveRefused(f"The tenant {tenant[:63]!r} is not being moved.")
    raise MoveRefused(
        "New jobs go to the other cells already: wait for the end, and move it back then."
    )


def read_move(registry: Engine, tenant: str) -> Move | None:
    rows = fetch(registry, READ_ONE, {"tenant": tenant})
    return move_of(rows[0]) if rows else None


def read_moves(registry: Engine) -> list[Move]:
    """All that are under way."""
    return [move_of(row) for row in fetch(registry, f"{READ} ORDER BY started_at")]


def take_move(
    registry: Engine,
    runner: str,
    *,
    without: Collection[str] = (),
    only: str | None = None,
    lease_seconds: float = LEASE_SECONDS,
) -> Move | None:
    """Take or renew the lease of a move, of other tenants than these, or of one."""
    asked = {"runner": runner, "without": list(without), "only": only, "lease": lease_seconds}
    rows = fetch(registry, TAKE, asked)
    return replace(move_of(rows[0]), lease_seconds=lease_seconds) if rows else None


def renew(registry: Engine, move: Move, *, transferred: int = 0, error: str = "") -> None:
    """Report that the step goes on; `MoveLost` if it is not ours any more."""
    asked = {
        **fence_of(move),
        "transferred": transferred,
        "error": error,
        "lease": move.lease_seconds,
    }
    if not execute(registry, RENEW, asked):
        raise MoveLost(move.tenant)


def advance(registry: Engine, move: Move, step: MoveStep) -> None:
    """The step has been made, and this is the next."""
    if not execute(registry, ADVANCE, {**fence_of(move), "next": step.value}):
        raise MoveLost(move.tenant)


def place(registry: Engine, move: Move, weights: Mapping[str, float], step: MoveStep) -> int:
    """Change the placement, as the end of a step; its version."""
    asked = {**fence_of(move), "cells": json.dumps(dict(weights)), "next": step.value}
    rows = fetch(registry, CHANGE_PLACEMENT, asked)
    if not rows:
        raise MoveLost(move.tenant)
    return int(rows[0].version)


def finish(registry: Engine, move: Move) -> None:
    """The move has ended; that is in the audit log of the registry."""
    actor = Actor("scheduler", move.runner, "operator", (Act.TENANT_MOVE,))
    done = {"cells": move.admitting, "jobs": move.transferred}
    ended = {"cancelled": True} if move.step is MoveStep.UNDO else done
    with acting(actor), transaction(registry) as connection:
        if connection.exec_driver_sql(FINISH, fence_of(move)).first() is None:
            raise MoveLost(move.tenant)
        record(connection, Act.TENANT_MOVE, move.tenant, tenant=move.tenant, after=ended)


def raise_fence(registry: Engine, move: Move, known: int) -> None:
    """Get a fence above the highest that a cell has seen; `MoveLost` if the lease is not ours."""
    if not execute(registry, RAISE_FENCE, {**fence_of(move), "known": known}):
        raise MoveLost(move.tenant)


def fence_of(move: Move) -> dict[str, object]:
    return {
        "tenant": move.tenant,
        "fence": move.fence,
        "step": move.step.value,
        "runner": move.runner,
    }
