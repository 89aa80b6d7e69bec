"""``tenants move`` and ``tenants spread``: what an operator types, and what is said."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from click.testing import CliRunner

from app.cli import placements
from app.cli.tenants import tenants
from app.scheduler.maintenance.mover import Mover
from models.cells.databases import CellDatabases
from models.cells.moves import MoveStep
from tests.support.moving_cells import A, B, MovingCells
from tests.support.waiting import wait_for


@pytest.fixture
def cells(moved_cells: MovingCells, monkeypatch: pytest.MonkeyPatch) -> MovingCells:
    @contextmanager
    def all_cells() -> Iterator[CellDatabases]:
        yield moved_cells.databases

    monkeypatch.setattr(placements, "all_cells", all_cells)
    return moved_cells


def typed(line: str) -> tuple[int, str]:
    """The exit code of a command, and all that it says."""
    done = CliRunner().invoke(tenants, line.split())
    return done.exit_code, done.output


@contextmanager
def moving(cells: MovingCells) -> Iterator[None]:
    """A scheduler that runs moves."""
    stop, mover = threading.Event(), Mover(cells.databases, "scheduler", known_seconds=0.0)

    def run() -> None:
        while not stop.wait(0.05):
            mover.run_once(time.monotonic())

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    yield
    stop.set()
    thread.join()


def test_a_tenant_is_moved_and_waited_for(cells: MovingCells) -> None:
    for _ in range(5):
        cells.admitted(A)
    with moving(cells):
        code, said = typed("move acme --to cell-b --wait")
    assert code == 0, said
    assert "tenant acme: to cell-b" in said
    assert "tenant acme: in cell-b" in said
    steps = [line.split(",")[0].strip() for line in said.splitlines() if line.startswith("  ")]
    order = [step.value for step in MoveStep]
    assert steps and steps == sorted(steps, key=order.index), said
    assert {cell for [(cell, _)] in cells.jobs().values()} == {B}
    rows = cells.registry_rows("SELECT via, what, tenant, after FROM audit_log ORDER BY id")
    assert [(row.via, row.what, row.tenant) for row in rows] == [
        ("command line", "tenant.move", "acme"),
        ("scheduler", "tenant.move", "acme"),
    ]
    assert rows[1].after == {"cells": {"cell-b": 1.0}, "jobs": 5}


def test_a_tenant_is_spread(cells: MovingCells) -> None:
    with moving(cells):
        code, said = typed("spread acme --over cell-a=1,cell-b=2 --wait")
    assert (code, cells.placement.weights) == (0, {A: 1.0, B: 2.0}), said
    assert "in cell-a=1, cell-b=2" in said


def test_a_move_is_cancelled(cells: MovingCells) -> None:
    assert typed("move acme --to cell-b")[0] == 0
    code, said = typed("move acme --cancel")
    assert (code, said) == (0, "tenant acme: the move is being taken back\n")
    with moving(cells):
        deadline = time.monotonic() + 10
        while cells.move is not None:
            assert time.monotonic() < deadline
            time.sleep(0.05)
    assert cells.placement.weights == {A: 1.0}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("move nobody --to cell-b", "There is no tenant 'nobody'."),
        (
            "move acme --to cell-z",
            "There is no cell 'cell-z'. Known cells: cell-a, cell-b, cell-c.",
        ),
        ("move acme --to cell-a", "The tenant 'acme' is there already."),
        ("move acme --to cell-c", "The cell 'cell-c' is being drained: it takes no tenants."),
        ("move acme --cancel", "The tenant 'acme' is not being moved."),
        ("move acme", "Give either --to or --cancel."),
        ("move acme --to cell-b --cancel", "Give either --to or --cancel."),
        ("move acme --to cell-b=x", "'x' is no weight"),
        ("spread acme --over cell-b,cell-b", "cell-b is named twice"),
    ],
)
def test_what_cannot_be_done_is_said(cells: MovingCells, line: str, message: str) -> None:
    cells.set_state("cell-c", "draining")
    code, said = typed(line)
    cells.set_state("cell-c", "open")
    assert code != 0
    assert message in said
    assert cells.move is None


def test_a_move_that_is_under_way_is_not_replaced(cells: MovingCells) -> None:
    assert typed("move acme --to cell-b")[0] == 0
    code, said = typed("move acme --to cell-c")
    assert code == 1
    assert "is being moved: wait for it, or cancel it" in said


def test_moves_that_are_under_way_are_listed(cells: MovingCells) -> None:
    typed("move acme --to cell-b")
    code, said = typed("moves")
    assert code == 0, said
    titles, line = said.splitlines()
    assert titles.split() == ["TENANT", "TO", "STEP", "FOR", "JOBS", "ERROR"]
    assert line.split()[:6] == ["acme", "cell-b", "prepare,", "waits", "for", "a"]
    with moving(cells):
        wait_for(lambda: len(typed("moves")[1].splitlines()) == 1)
