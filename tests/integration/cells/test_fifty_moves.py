"""50 moves of tenants who submit and run jobs all the time, by processes that are killed.

Tenants repeat every request under its key, through API processes that know an older placement, too.
In the end every job that was accepted is in one cell, has ended and ran to its end once, no key
gave two jobs, and the bill is the sum of its jobs.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from dataclasses import dataclass, field

import pytest

from models.cells.moves import MoveRefused, read_moves, request_move
from models.cells.placements import PlacementRow, read_placement
from models.jobs.admit import admit_group
from models.jobs.claim import JobRef
from models.jobs.ids import new_id
from models.jobs.settle import Ending
from models.jobs.states import FailureClass, JobStatus
from models.jobs.submission import (
    Admitted,
    IdempotencyKey,
    Submission,
    SubmissionGroup,
    TenantAway,
)
from tests.support.database_fixture import DatabaseFixture
from tests.support.mover_processes import killed_movers
from tests.support.moving_cells import DONE, NAMES, MovingCells

pytestmark = pytest.mark.long

SEED = 19
MOVES = 50
TENANTS = ("acme", "borg", "cyan", "dunn")
#: Nobody is killed any more after this, which is enough on a machine that has nothing else to do.
KILL_SECONDS = 60.0
MOST_SECONDS = 300.0
AGAIN = Ending(JobStatus.QUEUED, error_class=FailureClass.APP_ERROR)


@pytest.fixture
def cells(moved_cells: MovingCells) -> MovingCells:
    for name in TENANTS[1:]:
        moved_cells.place(name, NAMES[0])
    return moved_cells


@dataclass
class Tenant:
    """Somebody who submits, with a view of the placement that may be old."""

    cells: MovingCells
    name: str
    tenant_id: int
    chance: random.Random
    known: PlacementRow | None = None
    #: Ids by key.
    accepted: dict[str, str] = field(default_factory=dict)
    doubled: list[str] = field(default_factory=list)
    refused: int = 0

    def run(self, stop: threading.Event) -> None:
        number = 0
        while not stop.is_set():
            number += 1
            self.submit(f"{self.name} {number}")
            if self.chance.random() < 0.3:  # a repetition of any of them
                self.submit(self.chance.choice(list(self.accepted)))
            time.sleep(0.03)

    def submit(self, key: str) -> None:
        """Until it is accepted, as a client does."""
        while True:
            if self.known is None:
                self.known = read_placement(self.cells.registry, self.name)
                assert self.known is not None
            cell = self.chosen(key, self.known)
            job = Submission(new_id(), self.tenant_id, "echo", "medium", "{}")
            known = IdempotencyKey(key, key.encode(), self.known.version)
            [outcome] = admit_group(
                self.cells.cells[cell].engine, [SubmissionGroup((job,), known)], False
            )
            if isinstance(outcome, TenantAway):
                self.refused += 1
                self.known = None
                time.sleep(0.005)
                continue
            assert isinstance(outcome, Admitted)
            first = self.accepted.setdefault(key, outcome.ids[0])
            if first != outcome.ids[0]:
                self.doubled.append(key)
            return

    def chosen(self, key: str, placement: PlacementRow) -> str:
        """A cell for the key, the same for everybody who knows this placement."""
        admitting = sorted(cell for cell, weight in placement.weights.items() if weight > 0)
        return admitting[random.Random(key).randrange(len(admitting))]


@dataclass
class CellWorkers:
    """Dispatches and runs the jobs of a cell; some runs fail at first."""

    database: DatabaseFixture
    chance: random.Random
    finished: Counter[str] = field(default_factory=Counter)

    def run(self, stop: threading.Event) -> None:
        while not stop.is_set():
            self.turn()
            time.sleep(0.05)

    def turn(self) -> None:
        self.database.leader.run_once(0.0)
        refs = [JobRef(one.id, one.lease) for one in self.database.dispatch(room=20)]
        claims = self.database.claim(*refs) if refs else ()
        time.sleep(self.chance.uniform(0.0, 0.02))
        for claim in claims:
            again = claim.ref.lease == 1 and self.chance.random() < 0.2
            if self.database.settle(claim.ref, AGAIN if again else DONE, run_seconds=1.0):
                self.finished[claim.ref.id] += not again


def wanted(chance: random.Random, placement: PlacementRow) -> dict[str, float]:
    """Another placement: mostly one cell, sometimes several."""
    while True:
        count = chance.choice((1, 1, 1, 2, 3))
        weights = {cell: float(chance.randint(1, 3)) for cell in chance.sample(NAMES, count)}
        if weights != dict(placement.weights):
            return weights


def move_all(cells: MovingCells, chance: random.Random, deadline: float) -> int:
    """Request 50 moves, of all tenants; how many have ended."""
    requested = 0
    while time.monotonic() < deadline and (requested < MOVES or read_moves(cells.registry)):
        tenant = chance.choice(TENANTS)
        placement = read_placement(cells.registry, tenant)
        assert placement is not None
        try:
            if requested < MOVES:
                request_move(cells.registry, tenant, wanted(chance, placement))
                requested += 1
        except MoveRefused:
            pass  # it is being moved
        time.sleep(0.02)
    return requested - len(read_moves(cells.registry))


def test_fifty_moves_under_load_with_kills(cells: MovingCells) -> None:
    chance, stop = random.Random(SEED), threading.Event()
    tenants = [
        Tenant(cells, name, tenant_id_of(cells, name), random.Random(f"{SEED} {name}"))
        for name in TENANTS
    ]
    workers = [CellWorkers(cell, random.Random(name)) for name, cell in cells.cells.items()]
    runs = [*(tenant.run for tenant in tenants), *(worker.run for worker in workers)]
    threads = [threading.Thread(target=run, args=(stop,), daemon=True) for run in runs]
    deadline = time.monotonic() + MOST_SECONDS
    with killed_movers(
        cells.registry_url, count=3, seed=SEED, pause=(0.2, 0.8), seconds=KILL_SECONDS
    ) as movers:
        for thread in threads:
            thread.start()
        ended = move_all(cells, chance, deadline)
    stop.set()
    for thread in threads:
        thread.join()
    for _ in range(200):
        if not unfinished(cells):
            break
        for worker in workers:
            worker.turn()
    errors = [(move.tenant, move.step, move.error) for move in read_moves(cells.registry)]
    assert (ended, errors) == (MOVES, [])
    assert movers.kills >= 20
    judge(cells, tenants, workers)


def tenant_id_of(cells: MovingCells, name: str) -> int:
    [row] = cells.cells[NAMES[0]].query("SELECT id FROM tenants WHERE name = %s", name)
    return int(row.id)


def unfinished(cells: MovingCells) -> int:
    statement = "SELECT count(*) AS jobs FROM jobs WHERE status::text NOT IN ('succeeded')"
    return sum(cell.query(statement)[0].jobs for cell in cells.cells.values())


def judge(cells: MovingCells, tenants: list[Tenant], workers: list[CellWorkers]) -> None:
    accepted = [job_id for tenant in tenants for job_id in tenant.accepted.values()]
    assert len(accepted) > 500, "there was no load"
    assert sum(tenant.refused for tenant in tenants) > 0, "no request met a move"
    assert not cells.miscounted()
    where: Counter[str] = Counter()
    for cell in cells.cells.values():
        where.update(row.id for row in cell.query("SELECT id::text FROM jobs"))
    finished: Counter[str] = Counter()
    for worker in workers:
        finished.update(worker.finished)
    assert {
        "keys with two jobs": [key for tenant in tenants for key in tenant.doubled],
        "lost": [job_id for job_id in accepted if not where[job_id]],
        "in two cells": [job_id for job_id, count in where.items() if count > 1],
        "not asked for": sorted(where.keys() - set(accepted)),
        "not finished once": [job_id for job_id in accepted if finished[job_id] != 1],
        "unfinished": unfinished(cells),
    } == {
        "keys with two jobs": [],
        "lost": [],
        "in two cells": [],
        "not asked for": [],
        "not finished once": [],
        "unfinished": 0,
    }
    for tenant in tenants:
        cells.name, cells.tenant_id = tenant.name, tenant.tenant_id
        jobs, _, seconds = cells.usage()
        slots = sum(
            cell.query(
                "SELECT coalesce(sum(slot_seconds), 0) AS sum FROM jobs WHERE tenant_id = %s",
                tenant.tenant_id,
            )[0].sum
            for cell in cells.cells.values()
        )
        assert (jobs, float(seconds)) == (len(tenant.accepted), slots)
        assert cells.counts()["succeeded"] == len(tenant.accepted)
