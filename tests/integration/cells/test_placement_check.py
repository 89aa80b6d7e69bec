"""A cell does nothing for tenants that live elsewhere, and gives them what it has of theirs."""

from __future__ import annotations

import logging

import pytest

from app.scheduler.maintenance.placement_check import (
    AfterCheck,
    PlacementCheck,
    TenantCopier,
    forget_placement,
)
from app.scheduler.maintenance.tenant_remover import TenantRemover
from app.tenants.changes import create_tenant
from app.tenants.suspension import delete_tenant
from app.tenants.terms import Change
from models.blobs import open_blobs
from models.cells.away import read_away
from models.cells.copies import install_copy, read_copy
from models.cells.moves import MoveStep
from models.cells.placements import place_tenant, read_placement, remove_placement
from models.cells.tenant_rows import CannotMove
from models.jobs.submission import TenantAway
from models.store.errors import StateStoreUnavailable
from models.store.session import transaction
from tests.support.moving_cells import A, B, C, MovingCells


@pytest.fixture
def cells(moved_cells: MovingCells) -> MovingCells:
    return moved_cells


def check_of(cells: MovingCells, cell: str) -> PlacementCheck:
    of = cells.cells[cell]
    return PlacementCheck(cells.databases.engine(cell), of.leader, cells.databases)


def promote(cells: MovingCells) -> None:
    """The tenant lives in the second cell now, by the copy of the registry."""
    copier = TenantCopier(cells.databases.engine(A), cells.cells[A].leader, cells.databases)
    assert copier.run_once(0.0) >= 1
    assert copier.run_once(1.0) == 0, "nothing has changed"
    copy = read_copy(cells.registry, "acme")
    assert copy is not None
    assert copy.cell == A
    with transaction(cells.databases.engine(B)) as connection:
        install_copy(connection, copy)
    cells.execute("UPDATE placements SET cells = '{\"cell-b\": 1}', version = version + 1")


def test_a_cell_that_was_replaced_gives_what_it_has_to_the_other_one(cells: MovingCells) -> None:
    job_id = cells.admitted(A, "before the outage")
    promote(cells)
    assert cells.admitted(B, "after it") != job_id
    check = check_of(cells, A)
    assert check.run_once(0.0) == 2
    assert isinstance(cells.submit(A), TenantAway)
    assert cells.cells[A].dispatch() == []
    assert check.run_once(1.0) == 0
    assert cells.move is not None
    cells.finish()
    assert cells.cell_of(job_id) == B
    assert cells.admitted(B, "before the outage") == job_id
    assert cells.left_in(A) == {}


def test_a_cell_that_is_away_is_asked_once_and_not_for_every_tenant(
    cells: MovingCells, monkeypatch: pytest.MonkeyPatch
) -> None:
    cells.place("second")
    cells.execute("UPDATE placements SET cells = '{\"cell-b\": 1}', version = version + 1")
    asked: list[str] = []

    def away(_: object, tenant: str) -> None:
        asked.append(tenant)
        raise StateStoreUnavailable("away")

    monkeypatch.setattr("app.scheduler.maintenance.placement_check.find_tenant", away)
    check = check_of(cells, A)
    for checks in (1, 2):
        check.checked = None  # all of them
        check.run_once(0.0)
        assert len(asked) == checks


def test_a_check_asks_the_database_that_a_cell_has_by_now(cells: MovingCells) -> None:
    """A standby was promoted, and the former primary still answers."""
    own = cells.cells[A]
    with cells.knowing_former(B, C) as databases:
        check = PlacementCheck(own.engine, own.leader, databases)
        check.run_once(0.0)
    with cells.knowing_former(B, C) as databases:
        check._databases = databases
        promote(cells)
        check.run_once(1.0)
    assert cells.move is not None


def test_a_cell_that_nobody_empties_any_more_is_emptied(cells: MovingCells) -> None:
    """The cell that the tenant was moving to was lost, and with it the move ended."""
    job_id = cells.admitted(A)
    promote(cells)
    cells.execute('UPDATE placements SET cells = \'{"cell-a": 0, "cell-b": 1}\'')
    check_of(cells, A).run_once(0.0)
    assert cells.move is not None
    cells.finish()
    assert cells.cell_of(job_id) == B
    assert cells.placement.weights == {B: 1.0}
    assert cells.left_in(A) == {}


def test_a_tenant_that_was_deleted_while_its_cell_was_away_stays_deleted(
    cells: MovingCells,
) -> None:
    cells.admitted(A)
    cells.place("other", B)
    cells.execute("DELETE FROM placements WHERE tenant = 'acme'")
    check = check_of(cells, A)
    assert check.run_once(0.0) == 1
    assert isinstance(cells.submit(A), TenantAway)
    assert cells.cells[A].dispatch() == []
    assert check.run_once(100.0) == 0
    with transaction(cells.registry) as connection:
        place_tenant(connection, "acme", {A: 1.0})
    assert check.run_once(101.0) == 1, "an operator has placed it"
    assert not isinstance(cells.submit(A), TenantAway)


def test_another_tenant_of_the_same_name_is_not_mixed_with_it(cells: MovingCells) -> None:
    """A database was added that had tenants of its own."""
    create_tenant(cells.cells[B].engine, "acme", Change({}))
    check_of(cells, B).run_once(0.0)
    assert cells.move is None
    assert [row.tenant_id for row in read_away(cells.cells[B].engine)] != [cells.tenant_id]
    cells.request(b=1)
    with pytest.raises(CannotMove):
        cells.turn()
    assert not isinstance(cells.submit(A), TenantAway)


def test_a_tenant_that_is_placed_here_again_is_admitted_for(cells: MovingCells) -> None:
    promote(cells)
    check_of(cells, A).run_once(0.0)
    assert isinstance(cells.submit(A), TenantAway)
    cells.execute("DELETE FROM moves")
    cells.execute("UPDATE placements SET cells = '{\"cell-a\": 1}', version = version + 1")
    assert check_of(cells, A).run_once(1.0) == 1
    assert not isinstance(cells.submit(A), TenantAway)


#: As docs/operations.md says.
PLACE_AGAIN = """
    UPDATE placements SET cells = '{"cell-b": 1}', changed_at = now(),
        version = extract(epoch FROM now()) * 1000000
    WHERE tenant = 'acme'
"""


def errors(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [one.getMessage() for one in caplog.records if one.levelno >= logging.WARNING]


def test_a_registry_from_before_a_move_takes_nobody_out_of_service(
    cells: MovingCells, caplog: pytest.LogCaptureFixture
) -> None:
    before = cells.placement
    cells.run(b=1)
    cells.execute(
        "UPDATE placements SET cells = '{\"cell-a\": 1}', version = %(version)s",
        version=before.version,
    )
    caplog.clear()
    check = check_of(cells, B)
    assert [check.run_once(now) for now in (0.0, 1.0, 100.0)] == [0, 0, 0]
    assert check_of(cells, A).run_once(0.0) == 0
    assert cells.move is None
    [line] = errors(caplog)
    assert "acme is in cell-b" in line and "places it in cell-a" in line
    job_id = cells.admitted(B)
    assert [one.id for one in cells.cells[B].dispatch()] == [job_id]
    cells.execute(PLACE_AGAIN)
    assert check.run_once(101.0) == 0
    assert cells.placement.weights == {B: 1.0}
    assert cells.admitted(B, "with a key")
    assert len(errors(caplog)) == 1


@pytest.mark.parametrize("placed", ['{"cell-x": 1}', '{"cell-b": 0}'])
def test_a_placement_that_makes_no_sense_stops_no_check(cells: MovingCells, placed: str) -> None:
    """A cell that nobody knows, or none that admits jobs."""
    cells.admitted(A)
    cells.execute("UPDATE placements SET cells = %(cells)s, version = version + 1", cells=placed)
    check = check_of(cells, A)
    assert check.run_once(0.0) == 1
    assert isinstance(cells.submit(A), TenantAway)
    assert check.checked is not None and cells.move is None


def test_nothing_is_moved_to_several_cells_of_which_one_does_not_have_the_tenant(
    cells: MovingCells, caplog: pytest.LogCaptureFixture
) -> None:
    """The registry is from before the tenant was spread over other cells."""
    before = cells.placement
    cells.run(a=1, b=1)
    cells.execute(
        'UPDATE placements SET cells = \'{"cell-a": 1, "cell-c": 1}\', version = %(version)s',
        version=before.version,
    )
    caplog.clear()
    check = check_of(cells, B)
    assert [check.run_once(now) for now in (0.0, 100.0)] == [0, 0]
    assert cells.move is None and not isinstance(cells.submit(B), TenantAway)
    [line] = errors(caplog)
    assert "acme is in cell-b" in line and "places it in cell-c" in line


def test_a_tenant_that_was_deleted_where_it_lived_is_sent_away(
    cells: MovingCells, caplog: pytest.LogCaptureFixture
) -> None:
    """While this cell was away; its placement was left in the registry."""
    cells.admitted(A)
    promote(cells)
    delete_tenant(cells.cells[B].engine, "acme")
    cells.cells[B].execute("UPDATE tenants SET deleted_at = '2020-01-01'")
    remover = TenantRemover(
        cells.databases.engine(B), cells.cells[B].leader, open_blobs("/nonexistent")
    )
    remover.run_once(0.0)
    assert not cells.cells[B].query("SELECT FROM tenants")
    assert check_of(cells, A).run_once(0.0) == 1
    assert isinstance(cells.submit(A), TenantAway)
    assert cells.move is None
    assert "sent away here" in errors(caplog)[0]


def test_a_later_placement_that_a_cell_knows_is_not_reported_as_replaced(
    cells: MovingCells, caplog: pytest.LogCaptureFixture
) -> None:
    """The registry was restored while the tenant moved here; the other cell has it still."""
    before = cells.placement
    job_id = cells.admitted(A)
    cells.request(b=1)
    cells.run_to(MoveStep.TRANSFER)
    cells.execute("DELETE FROM moves")
    cells.execute(
        "UPDATE placements SET cells = '{\"cell-a\": 1}', version = %(version)s",
        version=before.version,
    )
    caplog.clear()
    assert check_of(cells, B).run_once(0.0) == 1, "it is moved back"
    assert errors(caplog) == []
    assert not isinstance(cells.submit(B), TenantAway)
    cells.finish()
    assert cells.cell_of(job_id) == A
    assert {cell for [(cell, _)] in cells.jobs().values()} == {A}


def test_a_cell_that_is_being_prepared_is_left_alone(cells: MovingCells) -> None:
    cells.request(b=1)
    cells.turn()
    assert check_of(cells, B).run_once(0.0) == 0
    assert isinstance(cells.submit(B), TenantAway)
    cells.finish()
    assert cells.placement.weights == {B: 1.0}


def test_a_leader_dispatches_after_its_first_check(cells: MovingCells) -> None:
    class Counting:
        runs = 0

        def run_once(self, now: float) -> int:
            self.runs += 1
            return 1

    check, role, leader = check_of(cells, A), Counting(), cells.cells[A].leader
    waiting = AfterCheck(role, check, leader)
    assert (waiting.run_once(0.0), waiting.run_once(4.0)) == (0, 0)
    check.run_once(4.0)
    assert waiting.run_once(4.1) == 1
    leader.epoch = 12345
    assert waiting.run_once(5.0) == 0, "another leader"
    assert waiting.run_once(10.1) == 1, "the registry does not answer"


def test_a_tenant_that_is_gone_is_placed_nowhere(cells: MovingCells) -> None:
    forget_placement(cells.databases, "acme")
    assert read_placement(cells.registry, "acme") is not None
    cells.cells[A].execute("DELETE FROM api_keys; DELETE FROM tenants WHERE name = 'acme'")
    first = cells.placement
    with transaction(cells.registry) as connection:
        place_tenant(connection, "acme", {A: 1.0})
    forget_placement(cells.databases, "acme")
    assert cells.placement.version > first.version, "it is about to be created again"
    assert not remove_placement(cells.registry, "acme", first.version)
    cells.execute("UPDATE placements SET changed_at = changed_at - interval '1 hour'")
    forget_placement(cells.databases, "acme")
    assert read_placement(cells.registry, "acme") is None
    with transaction(cells.registry) as connection:
        again = place_tenant(connection, "acme", {A: 1.0})
    assert again.version > first.version + 1, "caches would keep the earlier one's"
