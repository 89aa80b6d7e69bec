"""Moves whose runner is killed with SIGKILL again and again come to their end.

Real processes, at random moments by seed, with little to move so that every step is hit.
"""

from __future__ import annotations

import time

import pytest

from tests.support.mover_processes import killed_movers
from tests.support.moving_cells import DEAD, A, B, MovingCells

pytestmark = pytest.mark.long

JOBS = 40


@pytest.fixture
def cells(moved_cells: MovingCells) -> MovingCells:
    return moved_cells


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_move_goes_on_whoever_is_killed_when(cells: MovingCells, seed: int) -> None:
    jobs = {cells.ended(A), cells.ended(A, DEAD)}
    jobs |= {cells.admitted(A, f"key {number}") for number in range(JOBS)}
    cells.cells[A].execute(
        "INSERT INTO events (tenant_id, kind) SELECT %s, 'circuit_open' FROM generate_series(1, 9)",
        cells.tenant_id,
    )
    used, counts = cells.usage(), cells.counts()
    deadline = time.monotonic() + 120
    with killed_movers(cells.registry_url, count=2, seed=seed, pause=(0.05, 0.4)) as movers:
        for to in ("b", "a", "b"):
            cells.request(**{to: 1.0})
            while (move := cells.move) is not None:
                assert time.monotonic() < deadline, f"the move stays at {move}"
                time.sleep(0.01)
    assert movers.kills >= 5
    assert cells.placement.weights == {B: 1.0}
    assert {job_id: cell for job_id, [(cell, _)] in cells.jobs().items()} == dict.fromkeys(jobs, B)
    assert (cells.usage(), cells.counts()) == (used, counts)
    assert cells.left_in(A) == {}
    assert cells.cells[B].query("SELECT count(*) AS n FROM events")[0].n == 9
    for number in range(JOBS):
        assert cells.admitted(B, f"key {number}") in jobs
