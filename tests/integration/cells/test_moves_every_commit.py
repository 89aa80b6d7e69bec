"""A move whose runner is killed with SIGKILL before and after every single commit that it makes.

A real process makes the steps and kills itself at the n-th commit, for every n. Clients and workers
go on with what they find then, and another runner ends the move. No job is lost or there twice,
each ends once, and each key still gives its job.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import pytest

from models.cells.moves import MoveStep, cancel_move
from models.jobs.claim import JobRef
from models.jobs.submission import TenantAway
from tests.support.killed_commits import KillPoint, run_killed
from tests.support.moved_tenant import add_rows_everywhere
from tests.support.moving_cells import DONE, A, B, MovingCells

pytestmark = pytest.mark.long

#: Of rows on their way: none is left behind.
MARKS = "SELECT mark FROM transfer_marks WHERE mark LIKE 'moved/%%'"


@pytest.fixture
def cells(moved_cells: MovingCells) -> MovingCells:
    return moved_cells


@dataclass
class Load:
    """A tenant's jobs and keys, its client, and the workers of all cells."""

    cells: MovingCells
    jobs: set[str] = field(default_factory=set)
    #: Ids by key.
    keys: dict[str, str] = field(default_factory=dict)
    in_flight: list[tuple[str, JobRef]] = field(default_factory=list)
    ended: Counter[str] = field(default_factory=Counter)

    def begin(self, name: str) -> None:
        """A new tenant with rows in all tables, in the first cell."""
        self.cells.name, self.cells.tenant_id = name, self.cells.place(name)
        made = add_rows_everywhere(self.cells)
        self.jobs, self.keys = set(made.values()), {"first": made["queued"]}
        self.ended.update((made["succeeded"], made["dead"]))
        self.in_flight.append((A, JobRef(made["running"], 1)))
        self.settle()
        for number in range(3):
            self.submit(f"key {number}")

    def submit(self, key: str) -> None:
        """As a client does that knows the placement; the same key always gives the same job."""
        cell = min(cell for cell, weight in self.cells.placement.weights.items() if weight > 0)
        outcome = self.cells.submit(cell, key)
        if not isinstance(outcome, TenantAway):
            assert self.keys.setdefault(key, outcome.ids[0]) == outcome.ids[0]
            self.jobs.add(outcome.ids[0])

    def start(self) -> None:
        """Dispatch and claim, in all cells."""
        for name, cell in self.cells.cells.items():
            cell.leader.run_once(0.0)
            refs = [JobRef(one.id, one.lease) for one in cell.dispatch()]
            claims = cell.claim(*refs) if refs else ()
            self.in_flight += [(name, claim.ref) for claim in claims]

    def settle(self) -> None:
        """All runs succeed."""
        for cell, ref in self.in_flight:
            self.ended[ref.id] += self.cells.cells[cell].settle(ref, DONE, run_seconds=1.0)
        self.in_flight.clear()

    def go_on(self) -> None:
        """What clients and workers do while nobody runs the move; then another runner ends it."""
        for key in (*self.keys, "new"):
            self.submit(key)
        self.start()
        runner = self.cells.runner() if self.cells.move is not None else None
        deadline = time.monotonic() + 30
        while runner is not None and (move := self.cells.move) is not None:
            assert time.monotonic() < deadline, f"the move stays at {move}"
            runner.renewed(move)
            if not runner.run_once():
                self.settle()  # jobs that run are waited for
        self.settle()

    def end(self) -> None:
        """Repeat all requests, and run every job that is left."""
        for key in (*self.keys, "new"):
            self.submit(key)
        for cell in self.cells.cells.values():
            cell.execute("UPDATE jobs SET status = 'queued' WHERE status = 'scheduled'")
        self.start()
        self.settle()


def to_another_cell(cells: MovingCells) -> None:
    cells.request(b=1)


def to_one_more_cell(cells: MovingCells) -> None:
    cells.request(a=1, b=1)


def taken_back(cells: MovingCells) -> None:
    cells.request(b=1)
    while cells.step is not MoveStep.FLIP:
        cells.turn()
    cancel_move(cells.registry, cells.name)
    cells.execute("UPDATE moves SET lease_expires_at = to_timestamp(0)")  # nobody is waited for


@dataclass(frozen=True)
class Journey:
    """How a move begins, where the tenant is afterwards, and the steps that it takes."""

    begin: Callable[[MovingCells], None]
    placement: Mapping[str, float]
    steps: frozenset[MoveStep]


#: A new step is one of these until it is said otherwise: a move that does not come to it fails.
FORWARD = frozenset(MoveStep) - {MoveStep.UNDO}
JOURNEYS = (
    Journey(to_another_cell, {B: 1.0}, FORWARD),
    Journey(to_one_more_cell, {A: 1.0, B: 1.0}, FORWARD),
    Journey(taken_back, {A: 1.0}, frozenset({MoveStep.UNDO})),
)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("journey", JOURNEYS, ids=lambda each: each.begin.__name__)
def test_a_move_ends_well_wherever_its_runner_is_killed(
    cells: MovingCells, journey: Journey, after: bool
) -> None:
    kills, killed_in, commits = 0, set[MoveStep](), None
    while commits is None:
        point, load = KillPoint(kills + 1, after), Load(cells)
        load.begin(f"killed-{point.commit}")
        journey.begin(cells)
        commits = run_killed(cells.registry_url, point)
        if commits is None:
            kills += 1
            killed_in |= {move.step for move in [cells.move] if move is not None}
        load.go_on()
        load.end()
        judge(load, journey, str(point))
    # The last process made all its commits: none has been left out.
    assert kills == commits
    assert killed_in == journey.steps


def judge(load: Load, journey: Journey, point: str) -> None:
    cells, jobs = load.cells, load.cells.jobs()
    assert cells.placement.weights == journey.placement, point
    assert jobs.keys() == load.jobs, point
    assert {
        "in two cells": [job_id for job_id, where in jobs.items() if len(where) > 1],
        "elsewhere": [
            job_id for job_id, [(cell, _), *_] in jobs.items() if cell not in journey.placement
        ],
        "not ended once": [job_id for job_id in load.jobs if load.ended[job_id] != 1],
        "states": Counter(state for where in jobs.values() for _, state in where),
        "left": [
            name for name in cells.cells if name not in journey.placement and cells.left_in(name)
        ],
        "miscounted": cells.miscounted(),
        "used": cells.usage()[0],
        "marks": [row for cell in cells.cells.values() for row in cell.query(MARKS)],
    } == {
        "in two cells": [],
        "elsewhere": [],
        "not ended once": [],
        "states": Counter(succeeded=len(jobs) - 1, dead=1),
        "left": [],
        "miscounted": [],
        "used": len(jobs),
        "marks": [],
    }, point
