"""A tenant moves to another cell with everything it has: nothing is lost, nothing is there twice.

Every step is made twice, each time by a runner that takes the move over and is then thrown away.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest
from sqlalchemy import Connection, Engine

from app.scheduler.maintenance.eraser import Eraser
from app.scheduler.maintenance.mover import Mover
from app.scheduler.maintenance.tenant_remover import TenantRemover
from app.tenants.suspension import delete_tenant, suspend_tenant
from models.blobs import open_blobs
from models.cells import row_mover
from models.cells.away import SET_AWAY
from models.cells.fences import StaleRunner
from models.cells.moves import (
    MoveLost,
    MoveRefused,
    MoveStep,
    cancel_move,
    read_move,
    request_move,
)
from models.cells.tenant_rows import CannotMove
from models.encryption.key_ring import ContentKind, Place
from models.encryption.values import decrypt_value
from models.jobs.admit import admit_group
from models.jobs.cancel import cancel
from models.jobs.claim import JobRef
from models.jobs.discard import discard_dead
from models.jobs.erase import request_erasure
from models.jobs.ids import new_id
from models.jobs.replay import replay_dead
from models.jobs.submission import Submission, SubmissionGroup, TenantAway
from models.jobs.transfer import JobRows, JobTables, put_jobs
from models.store.errors import StateStoreError, StateStoreUnavailable
from tests.support.database_fixture import DatabaseFixture
from tests.support.encryption_keys import encrypting, new_key
from tests.support.moved_tenant import LATER, add_rows_everywhere
from tests.support.moving_cells import (
    DEAD,
    END_IDLE,
    RETRY,
    A,
    B,
    C,
    MovingCells,
)
from tests.support.waiting import wait_for


@pytest.fixture
def cells(moved_cells: MovingCells) -> Iterator[MovingCells]:
    yield moved_cells
    assert not moved_cells.miscounted()


def test_a_tenant_moves_with_everything_it_has(cells: MovingCells) -> None:
    made = add_rows_everywhere(cells)
    before = {str(row.id): row for row in cells.cells[A].query("SELECT * FROM jobs")}
    used, counts, all_counts = cells.usage(), cells.counts(), cells.counts(0)
    cells.request(b=1)
    cells.run_to(MoveStep.TRANSFER)
    assert cells.placement.weights == {A: 0.0, B: 1.0}
    for _ in range(3):
        assert not cells.turn(), "a job runs, which is waited for"
    assert cells.cell_of(made["running"]) == A
    assert {cells.cell_of(made[name]) for name in made.keys() - {"running"}} == {B}
    running = JobRef(made["running"], cells.cells[A].job(made["running"]).lease)
    assert cells.cells[A].settle(running, DEAD, run_seconds=2.0)
    cells.run_to(None)
    assert cells.placement.weights == {B: 1.0}
    assert cells.left_in(A) == {}
    after = {str(row.id): row for row in cells.cells[B].query("SELECT * FROM jobs")}
    assert after.keys() == before.keys()
    for job_id in before.keys() - {made["running"]}:
        moved = before[job_id]._asdict() | {"ended_xid": after[job_id].ended_xid}
        assert after[job_id]._asdict() == moved
    assert after[made["running"]].status == "dead"
    jobs, runs, seconds = used
    assert cells.usage() == (jobs + 1, runs + 1, seconds + 2)
    assert cells.counts() == {**counts, "dead": counts["dead"] + 1}
    assert cells.counts(0) == {**all_counts, "dead": all_counts["dead"] + 1}


def test_other_rows_go_along_once(cells: MovingCells) -> None:
    add_rows_everywhere(cells)
    cells.cells[A].execute("DELETE FROM jobs WHERE status = 'running'")
    tables = {
        **dict.fromkeys(("applications", "attempts", "run_logs", "checkpoints"), "true"),
        **dict.fromkeys(("schedules", "replays", "erasures", "tenant_limits"), "true"),
        "events": "kind LIKE 'circuit%%'",
        "idempotency_keys": "true",
        "api_keys": "true",
        "tenants": "name = 'acme'",
        "refusals": "true",
        "tallies": "kind = 'submission'",
    }

    def count(cell: str) -> dict[str, int]:
        return {
            table: cells.cells[cell]
            .query(f"SELECT count(*) AS rows FROM {table} WHERE {which}")[0]
            .rows
            for table, which in tables.items()
        }

    before = count(A)
    assert all(before.values()), f"not every table has rows: {before}"
    cells.request(b=1)
    cells.run_to(None)
    assert count(B) == before
    assert sum(count(A).values()) == 0
    assert cells.cells[B].query("SELECT refused FROM refusals")[0].refused == 5
    assert cells.cells[B].query("SELECT total FROM tallies")[0].total == 11
    [young, old] = cells.cells[B].query(
        "SELECT xid::text::bigint AS xid FROM events WHERE kind LIKE 'circuit%%' ORDER BY at DESC"
    )
    assert young.xid > old.xid == 1, "an old event is reported again"
    [erasure] = cells.cells[B].query("SELECT due_at FROM erasures")
    assert erasure.due_at is not None, "nobody looks whether its job came along"
    assert not cells.cells[B].query("SELECT FROM transfer_marks WHERE mark LIKE 'moved/%%'")


def test_a_job_that_is_retried_after_the_flip_follows(cells: MovingCells) -> None:
    ref = cells.start(A)
    cells.request(b=1)
    cells.run_to(MoveStep.TRANSFER)
    assert not cells.turn()
    assert cells.cells[A].settle(ref, RETRY)
    cells.finish()
    row = cells.cells[B].job(ref.id)
    assert (row.status, row.attempt, row.lease) == ("scheduled", 1, ref.lease)
    assert not cells.cells[A].claim(ref), "a late message finds the job that left"


def test_a_message_of_a_job_that_left_runs_nothing(cells: MovingCells) -> None:
    cells.admitted(A)
    [dispatch] = cells.cells[A].dispatch()
    cells.cells[A].expire_leases()
    cells.cells[A].execute("UPDATE jobs SET status = 'queued', lease_expires_at = NULL")
    cells.run(b=1)
    assert cells.cell_of(dispatch.id) == B
    assert not cells.cells[A].claim(JobRef(dispatch.id, dispatch.lease))
    assert cells.cells[B].job(dispatch.id).status == "queued"


def test_nothing_is_dispatched_where_a_tenant_leaves(cells: MovingCells) -> None:
    job_id = cells.admitted(A)
    cells.request(b=1)
    cells.run_to(MoveStep.KEYS)
    assert cells.cells[A].dispatch() == []
    cells.finish()
    assert [one.id for one in cells.cells[B].dispatch()] == [job_id]


def test_a_late_admission_is_waited_for_and_goes_along(cells: MovingCells) -> None:
    """The statement began before the cell was closed, and is committed afterwards."""
    source, job = cells.cells[A], Submission(new_id(), cells.tenant_id, "echo", "medium", "{}")
    source.execute("CREATE TABLE held (one int PRIMARY KEY); INSERT INTO held VALUES (1)")
    source.execute(
        """CREATE FUNCTION hold() RETURNS trigger LANGUAGE plpgsql AS $$
           BEGIN UPDATE held SET one = one; RETURN NEW; END $$;
           CREATE TRIGGER hold BEFORE INSERT ON jobs FOR EACH ROW EXECUTE FUNCTION hold()"""
    )
    cells.request(b=1)
    cells.run_to(MoveStep.CLOSE)
    with source.engine.connect() as connection:
        held = connection.execution_options(isolation_level="READ COMMITTED")
        with held.begin():
            held.exec_driver_sql("UPDATE held SET one = one")
            late = threading.Thread(
                target=admit_group, args=(source.engine, [SubmissionGroup((job,))], False)
            )
            late.start()
            source.wait_until_waiting()
            closing = threading.Thread(target=cells.turn)
            closing.start()
            wait_for(lambda: bool(source.query("SELECT FROM away_tenants WHERE away")))
            assert isinstance(cells.submit(A), TenantAway), "the cell is closed"
            assert cells.move is not None
            assert cells.move.step is MoveStep.CLOSE, "the late one was not waited for"
    late.join()
    closing.join()
    source.execute("DROP FUNCTION hold CASCADE; DROP TABLE held")
    cells.finish()
    assert cells.cell_of(job.id) == B


def test_a_key_gives_one_job_before_during_and_after_a_move(cells: MovingCells) -> None:
    first = cells.admitted(A, "before")
    cells.request(b=1)
    cells.run_to(MoveStep.CLOSE)
    between = cells.admitted(A, "between")
    cells.run_to(MoveStep.KEYS)
    assert isinstance(cells.submit(A, "during"), TenantAway)
    assert isinstance(cells.submit(B, "during"), TenantAway)
    cells.run_to(MoveStep.TRANSFER)
    during = cells.admitted(B, "during")
    for key, job_id in (("before", first), ("between", between), ("during", during)):
        assert isinstance(cells.submit(A, key), TenantAway)
        assert cells.admitted(B, key) == job_id
    cells.finish()
    for key, job_id in (("before", first), ("between", between), ("during", during)):
        assert isinstance(cells.submit(A, key), TenantAway)
        assert cells.admitted(B, key) == job_id
    assert len(cells.jobs()) == 3


def test_a_tenant_moves_there_and_back(cells: MovingCells) -> None:
    cells.ended(A)
    job_id = cells.admitted(A, "once")
    used, counts = cells.usage(), cells.counts()
    for _ in range(2):
        cells.run(b=1)
        cells.run(a=1)
    assert cells.placement.weights == {A: 1.0}
    assert cells.admitted(A, "once") == job_id
    assert (cells.usage(), cells.counts()) == (used, counts)
    assert cells.left_in(B) == {}


def test_a_runner_that_was_replaced_writes_nothing(cells: MovingCells) -> None:
    cells.admitted(A)
    cells.request(b=1)
    stale = []
    while cells.move is not None:
        stale.append(cells.runner())
        cells.turn()
    before = cells.jobs(), cells.placement, cells.left_in(A)
    for runner in stale:
        with pytest.raises((StaleRunner, MoveLost)):
            runner.run_once()
    assert (cells.jobs(), cells.placement, cells.left_in(A)) == before
    assert not isinstance(cells.submit(B), TenantAway), "a late runner has closed the cell"


def crash_between_commits(cells: MovingCells, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a runner die when the other cell has the jobs, before the source has deleted them."""

    def put_and_die(connection: Connection, rows: JobRows, tables: JobTables) -> None:
        put_jobs(connection, rows, tables)
        cells.cells[A].query(END_IDLE)

    with monkeypatch.context() as patch:
        patch.setattr(row_mover, "put_jobs", put_and_die)
        with pytest.raises(StateStoreError):
            cells.turn()


def in_both(cells: MovingCells, monkeypatch: pytest.MonkeyPatch) -> None:
    """All jobs are in both cells."""
    cells.request(b=1)
    cells.run_to(MoveStep.TRANSFER)
    crash_between_commits(cells, monkeypatch)
    assert {tuple(sorted(cell for cell, _ in where)) for where in cells.jobs().values()} == {(A, B)}


def test_a_job_in_both_cells_is_dispatched_in_one(
    cells: MovingCells, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = cells.admitted(A)
    in_both(cells, monkeypatch)
    assert cells.cells[A].dispatch() == []
    [dispatch] = cells.cells[B].dispatch()
    [claim] = cells.cells[B].claim(JobRef(dispatch.id, dispatch.lease))
    cells.finish()
    assert cells.cell_of(job_id) == B
    assert cells.cells[B].job(job_id).status == "running"
    assert cells.cells[B].settle(claim.ref, DEAD)


def test_what_is_changed_in_the_cell_that_is_left_is_not_forgotten(
    cells: MovingCells, monkeypatch: pytest.MonkeyPatch
) -> None:
    replayed, discarded = cells.ended(A, DEAD), cells.ended(A, DEAD)
    cancelled = cells.admitted(A, execute_at=LATER)
    in_both(cells, monkeypatch)
    source = cells.cells[A].engine
    assert cancel(source, cells.tenant_id, cancelled) is not None
    assert replay_dead(source, cells.tenant_id, [replayed]) == [replayed]
    assert discard_dead(source, cells.tenant_id, [discarded]) == [discarded]
    cells.finish()
    states = {job_id: status for job_id, [(_, status)] in cells.jobs().items()}
    assert states == {cancelled: "cancelled", replayed: "queued", discarded: "cancelled"}


def test_what_was_erased_does_not_come_back(
    cells: MovingCells, monkeypatch: pytest.MonkeyPatch
) -> None:
    erased = cells.cells[A].submit_application(tenant_id=cells.tenant_id)
    kept = cells.cells[A].submit_application(tenant_id=cells.tenant_id)
    in_both(cells, monkeypatch)
    state = request_erasure(cells.cells[B].engine, cells.tenant_id, erased)
    assert state is not None
    cells.finish()
    assert set(cells.jobs()) == {kept}
    assert [row.id for row in cells.cells[B].query("SELECT id::text FROM applications")] == [kept]


def test_an_erasure_finds_what_had_left(cells: MovingCells) -> None:
    """Requested in the cell that the job has left: the other one carries it out."""
    job_id = cells.cells[A].submit_application(tenant_id=cells.tenant_id)
    copy_id = cells.cells[A].submit_application(tenant_id=cells.tenant_id, resubmitted_from=job_id)
    cells.request(b=1)
    cells.run_to(MoveStep.TRANSFER)
    cells.cells[A].execute(
        "INSERT INTO erasures (id, tenant_id, erased_at, due_at) VALUES (%s, %s, now(), NULL)",
        job_id,
        cells.tenant_id,
    )
    cells.finish()
    target: DatabaseFixture = cells.cells[B]
    eraser = Eraser(target.engine, target.leader, open_blobs("/nonexistent"))
    for now in range(3):
        eraser.run_once(float(now))
    assert job_id not in cells.jobs()
    assert copy_id not in cells.jobs(), "what was made of it is left"


def test_a_tenant_is_spread_and_gathered(cells: MovingCells) -> None:
    cells.ended(A)
    jobs = [cells.admitted(A, f"key {number}") for number in range(20)]
    used, counts = cells.usage(), cells.counts()
    cells.cells[A].execute(
        """INSERT INTO schedules (id, tenant_id, name, cron, timezone, overlap, catch_up, type,
                                  payload)
           VALUES (%s, %s, 'nightly', '0 3 * * *', 'UTC', 'allow', 'none', 'echo', '{}')""",
        new_id(),
        cells.tenant_id,
    )
    old = cells.placement.version
    cells.request(a=1, b=2, c=1)
    cells.run_to(MoveStep.KEYS)
    assert not isinstance(cells.submit(A), TenantAway), "jobs without a key are admitted"
    assert isinstance(cells.submit(A, "new"), TenantAway), "the key may belong elsewhere soon"
    cells.run_to(None)
    assert cells.placement.weights == {A: 1.0, B: 2.0, C: 1.0}
    shares = [cell.query("SELECT share FROM tenants")[0].share for cell in cells.cells.values()]
    assert shares == [0.25, 0.5, 0.25]
    assert {cell for [(cell, _)] in cells.jobs().values()} == {A}
    for name in (A, B, C):
        assert cells.admitted(name, "key 7") == jobs[7]
    assert cells.placement.version > old
    spread = [cells.admitted(name) for name in (A, B, C) for _ in range(10)]
    cells.request(b=1, c=1)
    cells.run_to(None)
    assert {cell for [(cell, _)] in cells.jobs().values()} == {B, C}
    assert cells.cells[B].query("SELECT name FROM schedules")[0].name == "nightly"
    assert not cells.cells[C].query("SELECT name FROM schedules")
    cells.run(a=1)
    assert cells.cells[A].query("SELECT name FROM schedules")[0].name == "nightly"
    assert {cell for [(cell, _)] in cells.jobs().values()} == {A}
    assert {*jobs, *spread} < set(cells.jobs())
    assert cells.admitted(A, "key 7") == jobs[7]
    assert cells.cells[A].query("SELECT share FROM tenants")[0].share == 1.0
    assert cells.usage() == used
    assert cells.counts()["succeeded"] == counts["succeeded"]
    assert (cells.left_in(B), cells.left_in(C)) == ({}, {})


def test_a_move_is_taken_back(cells: MovingCells) -> None:
    job_id = cells.admitted(A, "kept")
    cells.request(b=1)
    cells.run_to(MoveStep.FLIP)
    assert isinstance(cells.submit(A), TenantAway)
    cancel_move(cells.registry, "acme")
    cells.finish()
    assert cells.placement.weights == {A: 1.0}
    assert cells.admitted(A, "kept") == job_id
    assert [one.id for one in cells.cells[A].dispatch()] == [job_id]
    assert cells.left_in(B) == {}
    with pytest.raises(MoveRefused, match="not being moved"):
        cancel_move(cells.registry, "acme")


def test_a_move_is_taken_back_when_the_other_cell_is_away(
    cells: MovingCells, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tenant is not refused any longer, although nobody can tidy up there."""
    cells.request(b=1)
    cells.run_to(MoveStep.KEYS)
    engine = cells.databases.engine

    def away(cell: str) -> Engine:
        if cell == B:
            raise StateStoreUnavailable("away")
        return engine(cell)

    mover = Mover(cells.databases, "mover")
    with monkeypatch.context() as patch:
        patch.setattr(cells.databases, "engine", away)
        cells.execute("UPDATE moves SET lease_expires_at = to_timestamp(0)")
        mover.run_once(time.monotonic())
        assert (cells.step, cells.error) == (MoveStep.KEYS, "away")
        cells.execute("UPDATE moves SET changed_at = now() - interval '1 minute'")
        for later in (10, 20):
            mover.run_once(time.monotonic() + later)
        assert cells.step is MoveStep.UNDO
        assert not isinstance(cells.submit(A, "again"), TenantAway)
    cells.finish()
    assert cells.left_in(B) == {}


def test_a_move_is_not_taken_back_once_new_jobs_go_there(cells: MovingCells) -> None:
    cells.request(b=1)
    cells.run_to(MoveStep.OPEN)
    with pytest.raises(MoveRefused, match="already"):
        cancel_move(cells.registry, "acme")
    cells.finish()


def test_a_suspended_tenant_moves_and_stays_suspended(cells: MovingCells) -> None:
    cells.admitted(A)
    cells.request(b=1)
    cells.run_to(MoveStep.KEYS)
    suspend_tenant(cells.cells[A].engine, "acme")
    cells.finish()
    [row] = cells.cells[B].query("SELECT suspended_at FROM tenants WHERE name = 'acme'")
    assert row.suspended_at is not None


def test_what_an_operator_changes_while_the_placement_changes_is_kept(cells: MovingCells) -> None:
    cells.request(b=1)
    cells.run_to(MoveStep.OPEN)
    cells.cells[A].execute(
        "UPDATE tenants SET weight = 7, changed_at = clock_timestamp() WHERE name = 'acme'"
    )
    cells.finish()
    assert cells.cells[B].query("SELECT weight FROM tenants WHERE name = 'acme'")[0].weight == 7


def test_a_tenant_that_is_deleted_before_the_flip_is_not_moved(cells: MovingCells) -> None:
    cells.request(b=1)
    cells.run_to(MoveStep.KEYS)
    delete_tenant(cells.cells[A].engine, "acme")
    cells.finish()
    assert cells.placement.weights == {A: 1.0}
    assert cells.left_in(B) == {}


def test_a_tenant_that_is_deleted_after_the_flip_is_removed_everywhere(cells: MovingCells) -> None:
    for _ in range(3):
        cells.admitted(A)
    cells.request(b=1)
    cells.run_to(MoveStep.TRANSFER)
    cells.admitted(B)
    delete_tenant(cells.cells[A].engine, "acme")
    assert not cells.turn()
    removers = [
        TenantRemover(cell.engine, cell.leader, open_blobs("/nonexistent"))
        for cell in cells.cells.values()
    ]
    for cell in cells.cells.values():
        cell.execute("UPDATE tenants SET deleted_at = deleted_at - interval '1 hour'")
    for now in range(6):
        for remover in removers:
            remover.run_once(float(now))
    cells.finish()
    assert cells.jobs() == {}
    assert not [cell for cell in cells.cells if cells.left_in(cell)]
    assert not cells.cells[A].query("SELECT FROM tenants WHERE name = 'acme'")


def test_what_is_encrypted_is_readable_after_a_move(cells: MovingCells) -> None:
    with encrypting(new_key("k1")):
        job_id = cells.admitted(A, payload='{"secret": "squirrel"}')
        cells.run(b=1)
        row = cells.cells[B].job(job_id)
        assert "squirrel" not in str(row.payload)
        place = Place(cells.tenant_id, job_id, ContentKind.PAYLOAD)
        assert decrypt_value(row.payload, place) == {"secret": "squirrel"}


def test_a_move_waits_for_cells_of_the_same_schema(cells: MovingCells) -> None:
    cells.cells[B].execute("UPDATE alembic_version SET version_num = '0000'")
    cells.request(b=1)
    try:
        with pytest.raises(CannotMove, match="migrate all cells"):
            cells.turn()
    finally:
        cells.cells[B].execute(
            "UPDATE alembic_version SET version_num = %s",
            cells.cells[A].query("SELECT version_num FROM alembic_version")[0].version_num,
        )
    assert cells.left_in(B) == {}


def test_a_cell_with_a_later_placement_is_not_closed(cells: MovingCells) -> None:
    cells.cells[A].query(
        SET_AWAY.replace("%(tenant_id)s", str(cells.tenant_id))
        .replace("%(away)s", "false")
        .replace("%(version)s", str(cells.placement.version + 1000))
    )
    cells.request(b=1)
    cells.turn()
    with pytest.raises(CannotMove, match="later placement"):
        cells.turn()


def test_what_cannot_be_moved_is_refused(cells: MovingCells) -> None:
    registry = cells.registry
    with pytest.raises(MoveRefused, match="no tenant 'nobody'"):
        request_move(registry, "nobody", {B: 1.0})
    with pytest.raises(MoveRefused, match="no cell 'cell-z'"):
        request_move(registry, "acme", {"cell-z": 1.0})
    with pytest.raises(MoveRefused, match="there already"):
        request_move(registry, "acme", {A: 1.0})
    cells.request(b=1)
    with pytest.raises(MoveRefused, match="is being moved"):
        request_move(registry, "acme", {C: 1.0})
    cells.finish()
    assert read_move(registry, "acme") is None
