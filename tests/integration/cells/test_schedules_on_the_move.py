"""A move brings schedules to the first cell before all jobs, and with what they wait for."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from sqlalchemy import Connection

from app.admission.submission_limits import SubmissionLimits
from app.admission.tenant_limits import TenantLimits
from app.scheduler.maintenance.placement_check import TenantCopier
from app.scheduler.maintenance.recurring_jobs import RecurringJobs
from app.stack.postgres import EmbeddedPostgres
from app.stack.services import Running
from models.cells import move_steps, row_mover
from models.cells.copies import read_copy
from models.cells.moved_rows import MOVED_SCHEDULES, put_moved_schedules
from models.cells.moves import Move, MoveStep
from models.cells.promotion import promote
from models.jobs.ids import new_id
from models.pools import POOLS
from models.store.errors import StateStoreError
from models.store.row_copies import TextRow
from tests.support.moving_cells import DONE, END_IDLE, A, B, C, MovingCells
from tests.support.several_cells import unreachable

PUT = """
    INSERT INTO schedules (id, tenant_id, name, cron, timezone, overlap, catch_up, type, payload,
                           next_at, last_job_id)
    VALUES (%s, %s, %s, '0 0 1 1 *', 'UTC', %s, 'one', 'echo', '{}', now(), %s)
"""
NAMES = "SELECT name FROM schedules WHERE tenant_id = %s ORDER BY name"
NO_SCHEDULES = MOVED_SCHEDULES._replace(condition="false")


@pytest.fixture
def cells(counted_cells: MovingCells) -> MovingCells:
    return counted_cells


def put(
    cells: MovingCells, cell: str, name: str, overlap: str = "allow", job_id: str | None = None
) -> str:
    """A schedule that is due, and the job of its last tick; its id."""
    schedule_id = new_id()
    cells.cells[cell].execute(PUT, schedule_id, cells.tenant_id, name, overlap, job_id)
    return schedule_id


def schedules(cells: MovingCells) -> dict[str, list[str]]:
    """Names of the schedules by cell."""
    found = {
        name: [row.name for row in cell.query(NAMES, cells.tenant_id)]
        for name, cell in cells.cells.items()
    }
    return {cell: names for cell, names in found.items() if names}


def tick(cells: MovingCells, cell: str) -> int:
    """Make the ticks of a cell that are due; how many became jobs."""
    database = cells.cells[cell]
    database.leader.run_once(0.0)
    made = "SELECT coalesce(sum(made), 0)::int AS made FROM schedules"
    [before] = database.query(made)
    limits = SubmissionLimits(per_second=0, burst=0, queue_depth=1_000_000)
    RecurringJobs(
        database.engine,
        database.leader,
        database.types,
        tuple(POOLS),
        TenantLimits(database.engine, limits),
    ).run_once(0.0)
    [after] = database.query(made)
    return int(after.made - before.made)


def waiting_job(cells: MovingCells, move: Move, target: str) -> str:
    """A job that waits in the first cell, and that the move would bring to that one by its id."""
    job_id = next(one for one in iter(new_id, None) if move.target(one) == target)
    return cells.admitted(A, id=job_id)


def waiting_job_in_closed_cell(cells: MovingCells, move: Move) -> str:
    """A job that waits in the first cell, put there after that was closed for the tenant."""
    cells.cells[A].execute("UPDATE away_tenants SET away = false")
    job_id = waiting_job(cells, move, C)
    cells.cells[A].execute("UPDATE away_tenants SET away = true")
    return job_id


def turn_to(cells: MovingCells, step: MoveStep) -> None:
    """Make the steps before this one."""
    while cells.step is not step:
        cells.turn()


def test_they_tick_in_the_new_cell_before_any_job_is_there(
    cells: MovingCells, monkeypatch: pytest.MonkeyPatch
) -> None:
    running, ended, queued = cells.start(A), cells.ended(A), cells.admitted(A)
    put(cells, A, "allow")
    put(cells, A, "idle", "skip", ended)
    put(cells, A, "busy", "skip", running.id)
    cells.request(b=1)
    cells.run_to(MoveStep.TRANSFER)
    assert tick(cells, A) == 0
    with monkeypatch.context() as patched:
        patched.setattr(move_steps, "TURN_SECONDS", 0.0)  # no time is left for jobs
        cells.turn()
    assert cells.cell_of(queued) == A
    assert schedules(cells) == {A: ["busy"], B: ["allow", "idle"]}
    assert tick(cells, B) == 2
    cells.turn()
    assert cells.cells[A].settle(running, DONE)
    cells.finish()
    assert schedules(cells) == {B: ["allow", "busy", "idle"]}
    assert tick(cells, B) == 1


def test_one_that_waits_for_a_waiting_job_goes_where_that_goes(cells: MovingCells) -> None:
    move = cells.request(b=1, c=1)
    last, other = waiting_job(cells, move, C), waiting_job(cells, move, C)
    put(cells, A, "often", "skip", last)
    cells.finish()
    assert (cells.cell_of(last), cells.cell_of(other)) == (B, C)
    assert schedules(cells) == {B: ["often"]}
    assert tick(cells, B) == 0, "the job of its last tick has not ended"
    cells.cells[B].execute("UPDATE jobs SET status = 'cancelled', finished_at = now()")
    cells.cells[B].execute("UPDATE schedules SET next_at = now()")
    assert tick(cells, B) == 1


@pytest.mark.parametrize(
    ("before", "after", "cell"),
    [("skip", "allow", B), ("allow", "skip", C)],
    ids=["waits no more", "waits from now on"],
)
def test_a_job_in_two_cells_stays_where_it_went_although_its_schedule_was_changed(
    cells: MovingCells, monkeypatch: pytest.MonkeyPatch, before: str, after: str, cell: str
) -> None:
    """It would come to a third one, and run in both."""
    move = cells.request(b=1, c=1)
    turn_to(cells, MoveStep.TRANSFER)
    last = waiting_job_in_closed_cell(cells, move)
    schedule_id = put(cells, A, "often", before, last)
    with monkeypatch.context() as patched:
        # As if it could not be moved, say because it was just created.
        patched.setattr(row_mover, "MOVED_SCHEDULES", NO_SCHEDULES)
        cells.crash_between_commits(monkeypatch)
        assert {name for name, _ in cells.jobs()[last]} == {A, cell}
        cells.cells[A].execute(
            "UPDATE schedules SET overlap = %s WHERE id = %s", after, schedule_id
        )
        cells.turn()
    cells.finish()
    assert cells.cell_of(last) == cell


def test_an_erasure_goes_where_its_job_went(
    cells: MovingCells, monkeypatch: pytest.MonkeyPatch
) -> None:
    move = cells.request(b=1, c=1)
    last = waiting_job(cells, move, C)
    put(cells, A, "often", "skip", last)
    turn_to(cells, MoveStep.TRANSFER)
    cells.crash_between_commits(monkeypatch)
    cells.cells[A].execute(
        "INSERT INTO erasures (id, tenant_id, erased_at, due_at) VALUES (%s, %s, now(), NULL)",
        last,
        cells.tenant_id,
    )
    cells.finish()
    assert cells.cell_of(last) == B
    assert [row.id for row in cells.cells[B].query("SELECT id::text FROM erasures")] == [last]


def test_a_cell_that_stays_keeps_one_that_waits_for_a_running_job(cells: MovingCells) -> None:
    cells.run(b=1)
    running = cells.start(B)
    put(cells, B, "busy", "skip", running.id)
    put(cells, B, "idle")
    cells.request(a=1, b=1)
    turn_to(cells, MoveStep.TRANSFER)
    assert schedules(cells) == {A: ["idle"], B: ["busy"]}
    assert not cells.turn()
    assert cells.submit(B).ids, "it admits jobs meanwhile"
    assert tick(cells, A) == 1
    assert tick(cells, B) == 0
    assert cells.cells[B].settle(running, DONE)
    cells.finish()
    assert schedules(cells) == {A: ["busy", "idle"]}
    assert cells.submit(B).ids


def test_a_cell_that_stays_does_not_keep_one_for_ever(
    cells: MovingCells, monkeypatch: pytest.MonkeyPatch
) -> None:
    cells.run(b=1)
    put(cells, B, "busy", "skip", cells.start(B).id)
    cells.request(a=1, b=1)
    turn_to(cells, MoveStep.TRANSFER)
    assert schedules(cells) == {B: ["busy"]}
    monkeypatch.setattr(move_steps, "LAST_JOB_SECONDS", 0.0)
    cells.finish()
    assert schedules(cells) == {A: ["busy"]}


def test_one_that_is_removed_after_a_crash_does_not_come_again(
    cells: MovingCells, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A runner died when it was in the new cell and still in the old one."""
    put(cells, A, "removed")
    put(cells, A, "kept")
    cells.request(b=1)
    turn_to(cells, MoveStep.TRANSFER)

    def put_and_die(connection: Connection, rows: Sequence[TextRow], prefix: str) -> None:
        put_moved_schedules(connection, rows, prefix)
        cells.cells[A].query(END_IDLE)

    with monkeypatch.context() as patched:
        dying = MOVED_SCHEDULES._replace(put=put_and_die)
        patched.setattr(row_mover, "MOVED_SCHEDULES", dying)
        with pytest.raises(StateStoreError):
            cells.turn()
    both = ["kept", "removed"]
    assert schedules(cells) == {A: both, B: both}
    cells.cells[B].execute("DELETE FROM schedules WHERE name = 'removed'")
    cells.finish()
    assert schedules(cells) == {B: ["kept"]}
    cells.run(a=1)
    cells.run(b=1)
    assert schedules(cells) == {B: ["kept"]}, "another move may bring it here again"


def test_a_cell_is_not_closed_while_the_first_one_is_away(
    cells: MovingCells, postgres: Running[EmbeddedPostgres]
) -> None:
    cells.run(b=1)
    running = cells.start(B)
    put(cells, B, "busy", "skip", running.id)
    cells.request(a=1, b=1)
    turn_to(cells, MoveStep.TRANSFER)
    runner = cells.runner()
    assert not runner.run_once()
    assert cells.cells[B].settle(running, DONE)
    with unreachable(postgres.service, cells.cells[A].engine), pytest.raises(StateStoreError):
        runner._give_schedules(B)
    assert cells.submit(B).ids
    cells.finish()
    assert schedules(cells) == {A: ["busy"]}


def test_the_copy_keeps_what_has_not_left_a_cell_that_is_lost(cells: MovingCells) -> None:
    running = cells.start(A)
    put(cells, A, "allow")
    put(cells, A, "busy", "skip", running.id)
    copy(cells, A)
    cells.request(b=1)
    turn_to(cells, MoveStep.TRANSFER)
    cells.turn()
    assert schedules(cells) == {A: ["busy"], B: ["allow"]}
    for _ in range(2):
        copy(cells, B)
        assert copied(cells) == ["allow", "busy"]
    assert promote(cells.databases, A, B).tenants == ["acme"]
    assert cells.placement.weights == {B: 1.0}
    assert schedules(cells)[B] == ["allow", "busy"]


def test_the_copy_forgets_what_was_removed_when_the_move_has_ended(cells: MovingCells) -> None:
    put(cells, A, "kept")
    put(cells, A, "removed")
    copy(cells, A)
    cells.run(b=1)
    cells.cells[B].execute("DELETE FROM schedules WHERE name = 'removed'")
    copy(cells, B)
    assert copied(cells) == ["kept"]


def copy(cells: MovingCells, cell: str) -> None:
    """What the scheduler of a cell does every few seconds."""
    database = cells.cells[cell]
    TenantCopier(database.engine, database.leader, cells.databases).run_once(0.0)


def copied(cells: MovingCells) -> list[str | None]:
    """Names of the schedules that the registry knows."""
    found = read_copy(cells.registry, "acme")
    assert found is not None
    return sorted(row["name"] for row in found.rows["schedules"])
