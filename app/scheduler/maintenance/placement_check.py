"""PlacementCheck: a cell admits and dispatches for tenants that are placed there, for no others.

Moves see to that by themselves. This is for a cell that was away when a placement changed: another
cell was promoted in its place. Once it is back, what such tenants have here is transferred to where
they live, as by a move. A scheduler that begins to lead dispatches nothing before the first check,
unless the registry does not answer for some seconds.

While the registry is away, what was known goes on to hold. So it does for a tenant that came here
by a later placement than the registry has, which was restored to before that: the version in
``away_tenants`` is higher. Nothing is moved to a cell that does not have the tenant: that is
logged, for an operator to correct.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import Engine

from app.scheduler.role import Role, RoleQueries
from models.cells.away import read_away, set_away, wait_for_older_statements
from models.cells.copies import copy_tenants, find_changed, forget_copies, next_tenants
from models.cells.databases import CellDatabases, UnknownCell
from models.cells.move_steps import CREATED_SECONDS
from models.cells.moves import read_move, request_drain
from models.cells.placements import (
    PlacementRow,
    read_named_placements,
    read_placement,
    read_placements,
    remove_placement,
)
from models.cells.registry import read_identity
from models.cells.tenant_rows import find_tenant
from models.leadership import STILL_LEADER, Leader
from models.store.errors import StateStoreError
from models.store.session import transaction

logger = logging.getLogger(__name__)

CHECK_SECONDS = 1.0
#: All placements are read again, for what an earlier look has missed.
SWEEP_SECONDS = 60.0
#: Dispatching waits so long for the first check of a leader.
MOST_WAIT_SECONDS = 5.0
#: How long statements that began before a tenant was sent away are waited for.
STATEMENT_SECONDS = 6.0
#: Copies are written this often.
COPY_SECONDS = 3.0


FIND_TENANTS = "SELECT id, name FROM tenants WHERE name = ANY (%(names)s::text[])"
#: Tenants that no placement names, with the version that was known of them here.
FIND_UNPLACED = """
    SELECT id, name, coalesce(known.version, 0) AS version
    FROM tenants LEFT JOIN away_tenants AS known ON known.tenant_id = tenants.id
    WHERE name NOT IN (SELECT unnest(%(names)s::text[])) AND known.away IS NOT TRUE
"""
LEADS = f"SELECT {STILL_LEADER} AS leads"


class PlacementCheck(RoleQueries):
    def __init__(self, engine: Engine, leader: Leader, databases: CellDatabases) -> None:
        super().__init__(engine, leader)
        self._databases = databases
        #: The epoch in which everything was checked.
        self.checked: int | None = None
        self._seen: datetime | None = None
        self._sweep_at = 0.0
        #: Cells that did not answer in this check: each is asked once, not for every tenant.
        self._away_cells: set[str] = set()
        #: Tenants that are here and not where the registry says: logged once.
        self._misplaced: set[str] = set()

    def run_once(self, now: float) -> int:
        """Compare the placements that changed with what this cell does; how many differed."""
        epoch = self._leader.epoch
        _, cell = read_identity(self._engine)
        if not cell:
            return 0  # it is in no registry yet
        if self.checked != epoch or now >= self._sweep_at:
            self._seen = None
            self._sweep_at = now + SWEEP_SECONDS
        self._databases.refresh()
        placements = read_placements(self._databases.registry, self._seen)
        changed = self._check(cell, placements)
        if self._seen is None and placements:
            changed += self._send_unplaced_away([one.tenant for one in placements])
        self._seen = max((one.changed_at for one in placements), default=self._seen)
        self.checked = epoch
        return changed

    def _check(self, cell: str, placements: Sequence[PlacementRow]) -> int:
        names = [one.tenant for one in placements]
        here = {row.name: row.id for row in self._read(FIND_TENANTS, names=names)}
        away = {row.tenant_id for row in read_away(self._engine)}
        placed = [(one, here[one.tenant]) for one in placements if one.tenant in here]
        elsewhere = [each for each in placed if each[0].weights.get(cell, 0.0) <= 0]
        gone = [
            (one, tenant_id)
            for one, tenant_id in elsewhere
            if tenant_id not in away and self._set_away(tenant_id, one.version, away=True)
        ]
        back = [
            (one, tenant_id)
            for one, tenant_id in placed
            if one.weights.get(cell, 0.0) > 0 and tenant_id in away
        ]
        for one, _ in gone:
            logger.warning("%s lives in %s: sent away here", one.tenant, ", ".join(one.weights))
        if gone:
            wait_for_older_statements(self._engine, STATEMENT_SECONDS)
        opened = sum(self._bring_back(one, tenant_id) for one, tenant_id in back)
        self._away_cells.clear()
        drained = sum(self._drain(one, tenant_id, cell) for one, tenant_id in elsewhere)
        return len(gone) + opened + drained

    def _drain(self, placement: PlacementRow, tenant_id: int, cell: str) -> bool:
        """Have what a tenant has here moved to where it lives, unless it is another of its name."""
        if read_move(self._databases.registry, placement.tenant) is not None:
            return False
        targets = sorted(name for name, weight in placement.weights.items() if weight > 0)
        if self._away_cells.intersection(targets):
            return False
        for target in targets:
            try:
                known = find_tenant(self._databases.engine(target), placement.tenant)
            except (StateStoreError, UnknownCell) as error:
                logger.warning(
                    "%s stays here while %s is away: %s", placement.tenant, target, error
                )
                self._away_cells.add(target)
                return False
            if known is None:
                self._tell_misplaced(placement.tenant, target, cell)
                return False
            if known[0] != tenant_id:
                logger.error("%s is another tenant in %s: it stays here", placement.tenant, target)
                return False
        self._misplaced.discard(placement.tenant)
        return bool(targets) and request_drain(self._databases.registry, placement, cell)

    def _tell_misplaced(self, tenant: str, target: str, cell: str) -> None:
        if tenant not in self._misplaced:
            self._misplaced.add(tenant)
            logger.error(
                "%s is in %s, but the registry places it in %s, which does not have it: nothing is"
                " moved. If the registry was restored: docs/operations.md#cells",
                *(tenant, cell, target),
            )

    def _send_unplaced_away(self, names: Sequence[str]) -> int:
        """Do nothing for tenants that are placed nowhere: they were deleted while this cell was
        away. One that is placed later is brought back."""
        unplaced = {row.name: row for row in self._read(FIND_UNPLACED, names=list(names))}
        if unplaced:  # it may have been created since the placements were read
            again = read_named_placements(self._databases.registry, unplaced)
            for one in again:
                del unplaced[one.tenant]
        sent = [
            row.name for row in unplaced.values() if self._set_away(row.id, row.version, away=True)
        ]
        for name in sent:
            logger.error("%s is placed nowhere: sent away here", name)
        return len(sent)

    def _bring_back(self, placement: PlacementRow, tenant_id: int) -> bool:
        """Admit for a tenant that is placed here, unless a move is about to do so."""
        if read_move(self._databases.registry, placement.tenant) is not None:
            return False
        # One that a later move sends away stays away: its version is higher.
        return self._set_away(tenant_id, placement.version, away=False)

    def _set_away(self, tenant_id: int, version: int, *, away: bool) -> bool:
        with transaction(self._engine) as connection:
            asked = {"epoch": self._leader.epoch}
            if not connection.exec_driver_sql(LEADS, asked).scalar_one():
                return False
            return set_away(connection, tenant_id, version, away=away)


class AfterCheck:
    """A role that waits for the first check of placements by this leader, for some seconds."""

    def __init__(self, role: Role, check: PlacementCheck, leader: Leader) -> None:
        self._role = role
        self._check = check
        self._leader = leader
        #: The epoch that is waited in, and until when.
        self._waiting: tuple[int | None, float] = (None, 0.0)

    def run_once(self, now: float) -> int:
        """Run the role, if that is allowed; how many rows it touched."""
        epoch = self._leader.epoch
        if self._check.checked != epoch:
            if self._waiting[0] != epoch:
                self._waiting = epoch, now + MOST_WAIT_SECONDS
            if now < self._waiting[1]:
                return 0
        return self._role.run_once(now)


class TenantCopier(RoleQueries):
    """Copies the tenants of this cell to the registry: what changed, and a part of all of them."""

    def __init__(self, engine: Engine, leader: Leader, databases: CellDatabases) -> None:
        super().__init__(engine, leader)
        self._registry = databases.registry
        self._seen: datetime | None = None
        self._after = 0

    def run_once(self, now: float) -> int:
        """Copy some; how many differed."""
        _, cell = read_identity(self._engine)
        if not cell:
            return 0
        changed, seen = find_changed(self._engine, self._seen)
        walked = next_tenants(self._engine, self._after)
        copied = copy_tenants(self._registry, cell, self._engine, {*changed, *walked})
        self._seen, self._after = seen, max(walked, default=0)
        if not walked:
            copied += forget_copies(self._registry, cell)
        return copied


def forget_placement(databases: CellDatabases, tenant: str) -> None:
    """Forget where a tenant lived that was deleted, when none of its cells has it any more."""
    try:
        placement = read_placement(databases.registry, tenant)
        if placement is None or read_move(databases.registry, tenant) is not None:
            return
        if all(find_tenant(databases.engine(cell), tenant) is None for cell in placement.weights):
            remove_placement(databases.registry, tenant, placement.version, age=CREATED_SECONDS)
    except StateStoreError as error:
        # A tenant of that name can be created all the same, in the same cell.
        logger.warning("the placement of %s is left in the registry: %s", tenant, error)
