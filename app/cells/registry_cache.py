"""Registry cache: the cells and the placements of all tenants, one per process.

Every second what changed is read, once per minute everything, so that what was removed goes too. A
tenant's placement that proved to be out of date is read at once, together with others.

While the registry is away what is known goes on to hold: a cell refuses what an old placement sends
there (`models.cells.away`). A process that has never reached it can answer no tenant.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from contextlib import suppress
from datetime import datetime
from types import MappingProxyType

from sqlalchemy import Engine

from app.policy.placement import Placement
from app.repeated import BackgroundLoop
from models.cells.placements import PlacementRow, read_named_placements, read_placements
from models.cells.registry import CellRow, read_cells
from models.store.errors import StateStoreError
from models.store.group_commit import GroupCommit

REFRESH_SECONDS = 1.0
SWEEP_SECONDS = 60.0
#: How long a request waits for the registry.
LOOK_SECONDS = 1.0


class RegistryCache:
    """What one process knows of the registry."""

    def __init__(
        self,
        registry: Engine,
        *,
        refresh_seconds: float = REFRESH_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.registry = registry
        self._clock = clock
        #: Whether the registry was read.
        self.loaded = False
        #: By name. Replaced, never changed in place: readers need no lock.
        self.cells: Mapping[str, CellRow] = MappingProxyType({})
        self._placements: dict[str, Placement] = {}
        #: Two threads read: that of the refreshes and that of single placements.
        self._taking = threading.Lock()
        #: The latest change that was read; None: nothing was.
        self._seen: datetime | None = None
        self._sweep_at = 0.0
        #: Until when a tenant is taken to live where it is known to.
        self._same_until: dict[str, float] = {}
        self._reads: GroupCommit[str, Placement | None] = GroupCommit(
            self._read_again, name="placements"
        )
        #: Called after every refresh.
        self.on_refresh: Callable[[], None] = lambda: None
        away = "cells and placements stay as they are known"
        self._refresher = BackgroundLoop(self.refresh, refresh_seconds, "registry", away=away)
        self.start = self._refresher.start
        self.close = self._refresher.close

    def placement_of(self, tenant: str) -> Placement | None:
        """Where a tenant lives, as far as it is known."""
        return self._placements.get(tenant)

    def look_again(self, tenant: str, seconds: float) -> Placement | None:
        """Where a tenant lives, read now; StateStoreUnavailable if that takes longer."""
        return self._reads.submit(tenant, seconds)

    def newer(self, tenant: str, known: Placement) -> Placement | None:
        """Where a tenant lives, if not as ``known`` says; None: it does, as far as one can tell.

        The registry is asked for a tenant once in a second, however often this is called, and
        whether it answers or not.
        """
        found = self._placements.get(tenant)
        same = found is None or found.version == known.version
        if same and self._clock() >= self._same_until.get(tenant, 0.0):
            with suppress(StateStoreError):
                found = self.look_again(tenant, LOOK_SECONDS)
            # Afterwards: whoever comes meanwhile waits for the same read.
            self._same_until[tenant] = self._clock() + REFRESH_SECONDS
        return None if found is None or found.version == known.version else found

    def refresh(self) -> None:
        """Read what changed, or everything."""
        cells = {cell.name: cell for cell in read_cells(self.registry)}
        if self._seen is None or self._clock() >= self._sweep_at:
            before = dict(self._placements)
            rows = read_placements(self.registry)
            self._take(rows)
            self._forget(before, {row.tenant for row in rows})
            self._same_until.clear()
            self._sweep_at = self._clock() + SWEEP_SECONDS
        else:
            rows = read_placements(self.registry, self._seen)
            self._take(rows)
        latest = max((row.changed_at for row in rows), default=self._seen)
        if latest is not None and (self._seen is None or latest > self._seen):
            self._seen = latest
        self.cells = MappingProxyType(cells)
        self.on_refresh()
        self.loaded = True

    def _read_again(self, tenants: Sequence[str]) -> list[Placement | None]:
        found = read_named_placements(self.registry, set(tenants))
        self._take(found)
        return [self._placements.get(tenant) for tenant in tenants]

    def _take(self, rows: Iterable[PlacementRow]) -> None:
        """Keep the later one of two: reads may overtake each other."""
        with self._taking:
            for row in rows:
                known = self._placements.get(row.tenant)
                if known is None or known.version <= row.version:
                    self._placements[row.tenant] = placement_of_row(row)

    def _forget(self, before: Mapping[str, Placement], placed: Set[str]) -> None:
        """Remove those that were known before all were read, and are not among them."""
        with self._taking:
            for tenant in before.keys() - placed:
                if self._placements.get(tenant) == before[tenant]:
                    del self._placements[tenant]


def placement_of_row(row: PlacementRow) -> Placement:
    """A row of the registry as a placement."""
    return Placement(row.version, MappingProxyType(dict(row.weights)))
