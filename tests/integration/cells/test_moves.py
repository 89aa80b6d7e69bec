"""A tenant moves to another cell with everything it has: nothing is lost, nothing is there twice.

Every step is made twice, each time by a runner that takes the move over and is then thrown away.
"""

from __future__ import annotations

import threading

import pytest

from models.cells.fences import StaleRunner
from models.cells.moves import MoveLost, MoveStep, take_move
from models.encryption.key_ring import ContentKind, Place
from models.encryption.values import decrypt_value
from models.jobs.admit import admit_group
from models.jobs.claim import JobRef
from models.jobs.ids import new_id
from models.jobs.submission import Submission, SubmissionGroup, TenantAway
from tests.support.encryption_keys import encrypting, new_key
from tests.support.moved_tenant import add_rows_everywhere
from tests.support.moving_cells import DEAD, RETRY, A, B, C, MovingCells
from tests.support.waiting import wait_for


@pytest.fixture
def cells(counted_cells: MovingCells) -> MovingCells:
    return counted_cells


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


def test_a_move_whose_runner_died_before_the_clock_was_set_back_goes_on(
    cells: MovingCells,
) -> None:
    cells.admitted(A)
    cells.request(b=1)
    cells.runner()
    for left, goes_on in ((60, False), (7_200, True)):
        lease = "UPDATE moves SET lease_expires_at = now() + make_interval(secs => %(left)s)"
        cells.execute(lease, left=left)
        assert (take_move(cells.registry, "next") is not None) == goes_on


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


def test_what_is_encrypted_is_readable_after_a_move(cells: MovingCells) -> None:
    with encrypting(new_key("k1")):
        job_id = cells.admitted(A, payload='{"secret": "squirrel"}')
        cells.run(b=1)
        row = cells.cells[B].job(job_id)
        assert "squirrel" not in str(row.payload)
        place = Place(cells.tenant_id, job_id, ContentKind.PAYLOAD)
        assert decrypt_value(row.payload, place) == {"secret": "squirrel"}
