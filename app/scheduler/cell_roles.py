"""A scheduler's further roles where there are several cells: moves, checks, copies, intake."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from sqlalchemy import Engine

from app.config import Settings
from app.scheduler.maintenance.intake_handover import HAND_OVER_SECONDS, IntakeHandover
from app.scheduler.maintenance.mover import MOVE_SECONDS, Mover
from app.scheduler.maintenance.placement_check import (
    CHECK_SECONDS,
    COPY_SECONDS,
    AfterCheck,
    PlacementCheck,
    TenantCopier,
    forget_placement,
)
from app.scheduler.role import Housekeeping, Role, TimedRole
from models.blobs import BlobStore
from models.cells.databases import CellDatabases
from models.cells.registry import open_registry, read_identity
from models.leadership import Leader
from models.store.roles import DatabaseRole

logger = logging.getLogger(__name__)


class LateHandover:
    """Hands over what this cell took in for others, as soon as it is in the registry."""

    def __init__(
        self,
        engine: Engine,
        leader: Leader,
        databases: CellDatabases,
        blobs: BlobStore,
        keep_seconds: float,
    ) -> None:
        self._engine = engine
        self._leader = leader
        self._databases = databases
        self._blobs = blobs
        self._keep_seconds = keep_seconds
        self._role: IntakeHandover | None = None

    def run_once(self, now: float) -> int:
        """Hand over, if the name of this cell is known; how many requests."""
        if self._role is None:
            _, name = read_identity(self._engine)
            if not name:
                return 0
            self._role = IntakeHandover(
                self._engine,
                self._leader,
                self._databases,
                self._blobs,
                host=name,
                keep_seconds=self._keep_seconds,
            )
        return self._role.run_once(now)


class CellRoles:
    """The roles of a scheduler that only exist where there is a registry.

    In a thread of their own: the registry or another cell may be away, and a statement there then
    takes as long as it may.
    """

    def __init__(
        self,
        engine: Engine,
        leader: Leader,
        settings: Settings,
        name: str,
        blobs: BlobStore,
        keep_seconds: float,
    ) -> None:
        self._engine = engine
        self._leader = leader
        self._registry = open_registry(settings, process=name, role=DatabaseRole.SCHEDULER)
        self._databases = databases = CellDatabases(
            self._registry, settings, process=name, role=DatabaseRole.SCHEDULER
        )
        self._check = PlacementCheck(engine, leader, databases)
        handover = LateHandover(engine, leader, databases, blobs, keep_seconds)
        self._thread = Housekeeping(
            leader,
            [
                TimedRole(self._check, CHECK_SECONDS),
                TimedRole(Mover(databases, name), MOVE_SECONDS),
                TimedRole(handover, HAND_OVER_SECONDS),
                TimedRole(TenantCopier(engine, leader, databases), COPY_SECONDS),
            ],
        )
        self.start = self._thread.start

    def after_check(self, role: Role) -> Role:
        """The role, which a new leader begins with when placements were checked."""
        return AfterCheck(role, self._check, self._leader)

    def databases(self) -> dict[int, Engine]:
        """The databases of all cells of the registry, this one too, by number."""
        self._databases.refresh()  # a former primary may still answer
        own, _ = read_identity(self._engine)
        return {
            cell.number: self._engine if cell.number == own else self._databases.engine(name)
            for name, cell in self._databases.cells().items()
        }

    def others(self) -> Sequence[Engine]:
        """The databases of all other cells."""
        return [engine for engine in self.databases().values() if engine is not self._engine]

    def forget(self, tenant: str) -> None:
        """A tenant that was deleted has left this cell."""
        forget_placement(self._databases, tenant)

    def close(self) -> None:
        self._thread.stop()
        self._databases.close()
        self._registry.dispose()
