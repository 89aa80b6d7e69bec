"""IntakeHandover: hands requests that this cell took in over to the cells that they are for.

For each tenant with such requests, a bounded batch at a time, oldest first, to wherever its
placement says now: its cell is back, or it has moved, or another one was promoted. Of each line the
question is what happens if the process dies there:

* before the rows are marked as begun, with the cell that they go to: nothing has happened;
* then: the next leader takes the same rows up, and finds whether their cell has them
  (`models.jobs.hand_over` marks them there, in the transaction that inserts the jobs);
* after their cell has them: they are deleted here by whoever finds that.

A request stays with the cell that its handing over began with, until that is known not to have it,
or is no cell of the tenant's any more.

So two of them at once, or one that wakes up late, do no harm. Whoever submitted has a 202, so the
limits of queues do not count again. A suspended tenant's jobs wait in its cell; those of a deleted
one are deleted when a cell says that it is: a restored registry knows no tenant that was created
since. A cell that does not answer is asked again after a few seconds.
"""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from sqlalchemy import Engine, Row
from sqlalchemy.exc import SQLAlchemyError

from app.policy.placement import Placement
from app.scheduler.role import RoleQueries
from models.blobs import BlobError, BlobStore, payload_key
from models.cells.databases import CellDatabases, UnknownCell
from models.cells.intake_jobs import (
    WaitingRow,
    any_begun,
    begin_handing_over,
    count_waiting,
    keep_alias,
    next_waiting,
    remove_deleted,
    remove_handed_over,
    request_of,
    retire_aliases,
    waiting_tenants,
)
from models.cells.placements import read_named_placements
from models.encryption.key_ring import DecryptionError
from models.jobs.admit import JobsOfAwayTenants
from models.jobs.hand_over import (
    HandedOver,
    IntakeRequest,
    NotYet,
    hand_over,
    handed_over,
    retire_marks,
)
from models.jobs.ids import BELOW_ALL
from models.leadership import Leader
from models.store.errors import StateStoreError
from models.store.session import fetch
from models.tallies import Count, Tallies, TallyKind
from models.tenant_removal import find_deleted
from models.wakeups import wake_scheduler

logger = logging.getLogger(__name__)

#: Pause while there is nothing to hand over.
HAND_OVER_SECONDS = 1.0
#: A cell that did not answer is not asked for so long: others wait for this thread.
AWAY_SECONDS = 3.0
#: Requests of a tenant that the registry does not know are looked at this often.
LOOK_SECONDS = 60.0
#: A turn is not longer than this, but for the batch that it is in.
TURN_SECONDS = 2.0
RETIRE_SECONDS = 3600.0

READ_TENANT = """
    SELECT id, deleted_at IS NOT NULL AS deleted FROM tenants WHERE name = %(tenant)s
"""


class IntakeHandover(RoleQueries):
    def __init__(
        self,
        engine: Engine,
        leader: Leader,
        databases: CellDatabases,
        blobs: BlobStore,
        *,
        host: str,
        keep_seconds: float,
    ) -> None:
        """``host``: the name of this cell. ``keep_seconds``: how long ended jobs are kept."""
        super().__init__(engine, leader)
        self._databases = databases
        self._blobs = blobs
        self._host = host
        self._keep_seconds = keep_seconds
        #: Cells that did not answer, and when to ask them again.
        self._ask_at: dict[str, float] = {}
        #: Tenants that the registry does not know, or under another id: when to look at them again.
        self._look_at: dict[str, float] = {}
        self._retire_at = 0.0
        #: Where a turn ended for lack of time: the tenant, and the row of each tenant.
        self._tenant = ""
        self._after: dict[str, str] = {}

    def run_once(self, now: float) -> int:
        """Hand over what is possible; how many requests."""
        tenants, done, until = waiting_tenants(self._engine), 0, time.monotonic() + TURN_SECONDS
        if now >= self._retire_at and not (tenants and any_begun(self._engine)):
            self._retire()
            self._retire_at = now + RETIRE_SECONDS
        if tenants:
            self._databases.refresh()  # a former primary may still be there, and take writes
        rows = read_named_placements(self._databases.registry, tenants) if tenants else []
        placements = {row.tenant: Placement(row.version, row.weights) for row in rows}
        # First those that the last turn had no time for.
        tenants.sort(key=lambda tenant: (tenant < self._tenant, tenant))
        for place, tenant in enumerate(tenants):
            self._tenant = tenant
            if place and time.monotonic() >= until:
                return done
            try:
                done += self._hand_over_all(tenant, placements.get(tenant), until)
            except Exception:  # the other tenants must not suffer from it
                logger.exception("requests of %s cannot be handed over", tenant)
        self._tenant = ""
        return done

    def _hand_over_all(self, tenant: str, placement: Placement | None, until: float) -> int:
        """A tenant's requests; at least one batch. Those that cannot be handed over are passed."""
        if placement is None:
            return self._forget_deleted(tenant)
        # All of them: which one a request is for depends on its key.
        targets = {cell: self._reach(cell, tenant) for cell in placement.admitting}
        there = {cell: found for cell, found in targets.items() if found is not None}
        if not there:  # unless one is away, the placement of a removed tenant was left
            away = any(time.monotonic() < self._ask_at.get(cell, 0.0) for cell in targets)
            return 0 if away else self._forget_deleted(tenant)
        if any(found.deleted for found in there.values()):
            return self._forget_deleted(tenant)
        tenant_id, done = next(iter(there.values())).id, 0
        while rows := next_waiting(self._engine, tenant, self._after.pop(tenant, BELOW_ALL)):
            self._after[tenant] = rows[-1].id
            if any(row.tenant_id != tenant_id for row in rows):  # of an earlier one of this name
                done += self._forget_deleted(tenant, tenant_id)
            done += self._one_batch(rows, tenant_id, placement, there)
            if time.monotonic() >= until:
                break
        return done

    def _one_batch(
        self,
        rows: Sequence[WaitingRow],
        tenant_id: int,
        placement: Placement,
        there: Collection[str],
    ) -> int:
        own = [row for row in rows if row.tenant_id == tenant_id]
        chosen = self._choose(own, placement, there)
        batches = defaultdict[str, list[IntakeRequest]](list)
        for request in self._begin(chosen, tenant_id):
            batches[chosen[request.id]].append(request)
        return sum(
            self._hand_over(cell, placed(batch, placement.version))
            for cell, batch in batches.items()
        )

    def _choose(
        self, rows: Sequence[WaitingRow], placement: Placement, there: Collection[str]
    ) -> dict[str, str]:
        """The cells that requests go to, by request; without those that have to wait."""
        chosen = {row.id: cell_of(placement, row) for row in rows}
        found: dict[str, str] = {}
        begun: dict[str, set[str]] = {}
        for row in rows:
            if row.begun and row.cell != chosen[row.id]:
                begun.setdefault(row.cell, set()).add(row.id)
        for cell, ids in begun.items():
            known = self._known_in(cell, ids)
            if known is not None:
                found.update(dict.fromkeys(known, cell))
            elif cell in placement.weights:  # else it is lost, and another one was promoted
                chosen = {one: target for one, target in chosen.items() if one not in ids}
        return {one: cell for one, cell in chosen.items() if cell in there} | found

    def _known_in(self, cell: str, ids: Collection[str]) -> set[str] | None:
        """Those of these requests that a cell has already; None if it does not answer."""
        if time.monotonic() < self._ask_at.get(cell, 0.0):
            return None
        try:
            return handed_over(self._databases.engine(cell), self._host, ids)
        except (StateStoreError, UnknownCell) as error:
            logger.debug("%s does not say what it has: %s", cell, error)
            self._put_off(cell)
            return None

    def _forget_deleted(self, tenant: str, living: int | None = None) -> int:
        """Delete the requests of tenants of this name that a cell says are deleted.

        ``living``: the id of the one that there is now. Others are kept, and that is logged once.
        """
        if time.monotonic() < self._look_at.get(tenant, 0.0):
            return 0
        waiting = count_waiting(self._engine, tenant)
        waiting.pop(living or 0, None)
        deleted = {one for cell in self._databases.cells() for one in self._deleted(cell, waiting)}
        left = sum(count for one, count in waiting.items() if one not in deleted)
        if left and tenant not in self._look_at:
            logger.error(
                "%d requests that were taken in for %s are kept: no cell has that tenant, and none"
                " says that it is deleted. If the registry was restored: docs/operations.md#cells",
                *(left, tenant),
            )
        self._look_at[tenant] = time.monotonic() + LOOK_SECONDS
        removed = remove_deleted(self._engine, tenant, deleted)
        if removed:
            logger.warning("%s is deleted: %d requests that were taken in are too", tenant, removed)
        return removed

    def _deleted(self, cell: str, tenant_ids: Collection[int]) -> set[int]:
        """Those of these tenants that a cell says are deleted; none if it does not answer."""
        if time.monotonic() < self._ask_at.get(cell, 0.0):
            return set()
        try:
            return find_deleted(self._databases.engine(cell), tenant_ids)
        except (StateStoreError, UnknownCell) as error:
            logger.debug("%s does not say who is deleted: %s", cell, error)
            self._put_off(cell)
            return set()

    def _reach(self, cell: str, tenant: str) -> Row[Any] | None:
        """The tenant as a cell has it; None if that does not answer, or does not know it yet."""
        if time.monotonic() < self._ask_at.get(cell, 0.0):
            return None
        try:
            rows = fetch(self._databases.engine(cell), READ_TENANT, {"tenant": tenant})
        except (StateStoreError, UnknownCell) as error:
            logger.debug("%s is not there: %s", cell, error)
            self._put_off(cell)
            return None
        return rows[0] if rows else None

    def _put_off(self, cell: str) -> None:
        self._ask_at[cell] = time.monotonic() + AWAY_SECONDS

    def _begin(self, cells: Mapping[str, str], tenant_id: int) -> list[IntakeRequest]:
        """The requests that go to these cells. From here on nobody cancels them here."""
        found: list[IntakeRequest] = []
        for row, key in begin_handing_over(self._engine, cells, self._leader.epoch):
            try:
                request = request_of(row, tenant_id, key)
            except DecryptionError as error:
                logger.error("a request of %s cannot be handed over: %s", row.tenant, error)
                continue
            if request is not None:
                found.append(request)
        return found

    def _hand_over(self, cell: str, requests: Sequence[IntakeRequest]) -> int:
        """Requests to their cell; how many are there now."""
        engine = self._databases.engine(cell)
        try:
            self._put_blobs(requests)
            done = hand_over(engine, self._host, requests)
        except (JobsOfAwayTenants, NotYet):
            return 0  # the tenant has just been moved, or is about to be
        except (StateStoreError, BlobError) as error:
            logger.warning("%d requests could not be handed to %s: %s", len(requests), cell, error)
            self._put_off(cell)
            return 0
        except SQLAlchemyError:
            if len(requests) > 1:  # one that cannot be inserted is not the others' fault
                return sum(self._hand_over(cell, [request]) for request in requests)
            logger.exception("request %s cannot be handed over", requests[0].id)
            return 0
        self._finish(done)
        self._count(engine, done)
        wake_scheduler(engine)
        return len(done)

    def _put_blobs(self, requests: Sequence[IntakeRequest]) -> None:
        """Large payloads, before there is a row that names them."""
        for request in requests:
            for job_id, data in request.blobs.items():
                self._blobs.put(payload_key(job_id), data)

    def _finish(self, done: Sequence[HandedOver]) -> None:
        """Their cell has them: delete them here, or keep which earlier jobs answer for them."""
        for one in done:
            if one.first_ids:
                keep_alias(self._engine, one.request.id, one.first_ids)
                self._discard_blobs(one.request.blobs)
        remove_handed_over(self._engine, [one.request.id for one in done if not one.first_ids])

    def _discard_blobs(self, blobs: Mapping[str, bytes]) -> None:
        for job_id in blobs:
            try:
                self._blobs.delete(payload_key(job_id))
            except BlobError as error:
                logger.debug("left to the collector: %s", error)

    def _count(self, engine: Engine, done: Sequence[HandedOver]) -> None:
        """Count the new jobs in their cell, as their submissions would have been."""
        tallies = Tallies()
        tallies.add_all(count for one in done if one.fresh for count in counts_of(one.request))
        try:
            tallies.write(engine)
        except StateStoreError as error:
            logger.debug("not counted: %s", error)

    def _retire(self) -> None:
        """Forget aliases and marks as old as ended jobs get; only while nothing is begun."""
        retire_aliases(self._engine, self._keep_seconds, self._leader.epoch)
        for cell in self._databases.cells():
            try:
                retire_marks(self._databases.engine(cell), self._host, self._keep_seconds)
            except StateStoreError as error:
                logger.debug("%s keeps its marks: %s", cell, error)


def cell_of(placement: Placement, row: WaitingRow) -> str:
    """The cell that a request is for: with a key always the same, as the router chooses it."""
    if row.key is None and row.begun and row.cell in placement.admitting:
        return row.cell  # whoever began with it may still be about to insert it there
    return placement.choose((row.id if row.key is None else row.key).encode())


def placed(requests: Sequence[IntakeRequest], version: int) -> list[IntakeRequest]:
    """The requests, with the version of the placement that their cell was chosen by."""
    return [
        one if one.key is None else one._replace(key=one.key._replace(placement=version))
        for one in requests
    ]


def counts_of(request: IntakeRequest) -> list[Count]:
    """What a submission of this request would have counted."""
    tenant = str(request.tenant_id)
    counts: list[Count] = [((TallyKind.SUBMISSION, tenant), (len(request.submissions), 0))]
    if request.key is not None:
        counts.append(((TallyKind.IDEMPOTENCY_KEY, tenant), (1, 1)))
    if request.blobs:
        sizes = sum(map(len, request.blobs.values()))
        counts.append(((TallyKind.STORED_BLOB, tenant), (len(request.blobs), sizes)))
    return counts
