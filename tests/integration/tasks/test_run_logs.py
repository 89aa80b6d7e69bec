"""Log lines and tracebacks of runs: by attempt, under the lease, bounded, gone with the job."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from sqlalchemy import Engine

from app.scheduler.maintenance.reaper import Reaper
from app.scheduler.maintenance.retirer import Kept, Retirer
from models.blobs import open_blobs
from models.jobs.claim import JobRef
from models.jobs.replay import replay_dead
from models.jobs.run_logs import KEPT_RUNS, Logged, keep_logs, read_logs
from models.jobs.settle import PLAIN, Ending, Settlement, settle_group
from models.jobs.states import FailureClass, JobStatus
from models.store.session import transaction
from tasks.context import JobContext
from tasks.errors import Permanent, Snooze
from tests.support.database_fixture import DatabaseFixture
from tests.support.one_worker import OneWorker


@pytest.fixture
def database(engine: Engine) -> DatabaseFixture:
    return DatabaseFixture(engine)


def logs(database: DatabaseFixture, job_id: str) -> dict[int, Any]:
    with database.engine.connect() as connection:
        return read_logs(connection, job_id)


def messages(log: Any) -> list[str]:
    return [line["message"] for line in json.loads(log.log or "[]")]


def run_again(fixture: OneWorker) -> JobRef:
    """Run the one job that is scheduled; under which lease."""
    fixture.database.execute("UPDATE jobs SET status = 'queued', execute_at = NULL")
    (ref,) = fixture.dispatched(1)
    fixture.execute((ref,))
    fixture.flush()
    return ref


def test_every_attempt_keeps_its_lines_and_its_traceback(fixture: OneWorker) -> None:
    def act(ctx: JobContext, payload: Any) -> str:
        ctx.log("attempt %d begins", ctx.attempt)
        if ctx.attempt < 3:
            raise ValueError(f"number {ctx.attempt}")
        return "done"

    fixture.act = act
    (ref,) = fixture.refs(1)
    fixture.execute((ref,))
    fixture.flush()
    run_again(fixture)
    run_again(fixture)
    assert fixture.database.job(ref.id).status == "succeeded"
    kept = logs(fixture.database, ref.id)
    assert [messages(log) for log in kept.values()] == [
        [f"attempt {number} begins"] for number in (1, 2, 3)
    ]
    first, second, third = [log.traceback for log in kept.values()]
    assert first.endswith("ValueError: number 1") and second.endswith("ValueError: number 2")
    assert "in act" in first and "tasks/worker" not in first
    assert third is None


def test_a_run_that_logs_and_raises_nothing_writes_nothing_more(fixture: OneWorker) -> None:
    fixture.execute(fixture.refs(5))
    fixture.flush()
    assert not fixture.database.query("SELECT FROM run_logs")


def test_a_run_that_logs_without_end_keeps_its_newest_lines(fixture: OneWorker) -> None:
    def act(ctx: JobContext, payload: Any) -> None:
        for number in range(20_000):
            ctx.keep_line(20, f"{number} " + "x" * 5_000)

    fixture.act = act
    (ref,) = fixture.refs(1)
    fixture.execute((ref,))
    fixture.flush()
    (log,) = logs(fixture.database, ref.id).values()
    assert len(log.log) < 20_000 and messages(log)[-1].startswith("19999 ")
    assert log.dropped == 20_000 - len(messages(log))


def test_lines_of_a_run_that_is_lost_are_those_of_its_last_heartbeat(fixture: OneWorker) -> None:
    seen: list[Any] = []

    def act(ctx: JobContext, payload: Any) -> None:
        ctx.log("before the end")
        fixture.worker.ledger.post_beat().result(10)
        seen.append(logs(fixture.database, ctx.job_id))
        # Its worker is lost from here on, as far as the others know.
        fixture.database.execute("UPDATE jobs SET worker = 'lost'")
        fixture.database.expire_leases()
        reaper = Reaper(fixture.database.engine, fixture.database.leader, fixture.database.types)
        assert reaper.run_once(time.monotonic()) == 1
        ctx.log("never written")

    fixture.act = act
    (ref,) = fixture.refs(1)
    fixture.execute((ref,))
    fixture.flush()
    (while_running,), (log,) = seen[0].values(), logs(fixture.database, ref.id).values()
    assert messages(while_running) == messages(log) == ["before the end"]
    (attempt,) = fixture.database.query("SELECT * FROM attempts")
    assert (attempt.lease, attempt.error_class) == (ref.lease, "WORKER_CRASH")
    assert "was lost" in attempt.error_message


def test_lines_of_deferred_and_cancelled_runs_are_kept(fixture: OneWorker) -> None:
    def act(ctx: JobContext, payload: Any) -> None:
        ctx.log("not yet")
        raise Snooze(60.0)

    fixture.act = act
    (ref,) = fixture.refs(1)
    fixture.execute((ref,))
    fixture.flush()
    (log,) = logs(fixture.database, ref.id).values()
    assert messages(log) == ["not yet"] and log.traceback is None


def test_who_lost_the_lease_writes_no_log(database: DatabaseFixture) -> None:
    claim = database.start()
    said = Logged('[{"message": "mine"}]', 0, "mine")
    stale = JobRef(claim.ref.id, claim.ref.lease - 1)
    ending = Ending(JobStatus.DEAD, error_class=FailureClass.APP_ERROR)
    for ref, worker in ((stale, "w1"), (claim.ref, "w2")):
        assert keep_logs(database.engine, worker, [(ref, said)]) == set()
        late = [Settlement(ref, ending, 0.1, logged=said)]
        assert settle_group(database.engine, PLAIN, worker, late) == [False]
    assert not logs(database, claim.ref.id)
    assert keep_logs(database.engine, "w1", [(claim.ref, said)]) == {claim.ref}
    assert settle_group(
        database.engine, PLAIN, "w1", [Settlement(claim.ref, ending, 0.1, logged=said)]
    ) == [True]
    assert list(logs(database, claim.ref.id)) == [claim.ref.lease]


def test_a_locked_row_does_not_hold_up_the_logs_of_others(database: DatabaseFixture) -> None:
    first, second = database.start(), database.start()
    said = [(claim.ref, Logged("[]")) for claim in (first, second)]
    with transaction(database.engine) as other:
        other.exec_driver_sql("SELECT FROM jobs WHERE id = %s FOR UPDATE", (first.ref.id,))
        assert keep_logs(database.engine, "w1", said) == {second.ref}


def test_logs_survive_a_replay_and_go_with_the_job(fixture: OneWorker, tmp_path: Any) -> None:
    def act(ctx: JobContext, payload: Any) -> None:
        ctx.log("life %d", 1 if ctx.first_attempt else 2)
        raise Permanent("no")

    fixture.act = act
    (ref,) = fixture.refs(1)
    fixture.execute((ref,))
    fixture.flush()
    assert replay_dead(fixture.database.engine, 1, [ref.id]) == [ref.id]
    again = run_again(fixture)
    kept = logs(fixture.database, ref.id)
    assert list(kept) == [ref.lease, again.lease]
    assert [messages(log) for log in kept.values()] == [["life 1"], ["life 2"]]
    fixture.database.execute("UPDATE jobs SET finished_at = now() - interval '9 days'")
    old = "01900000-0000-7000-8000-000000000001"
    for table, column in (("jobs", "id"), ("attempts", "job_id"), ("run_logs", "job_id")):
        fixture.database.execute(f"UPDATE {table} SET {column} = %s", old)
    blobs = open_blobs(f"file://{tmp_path}")
    limits = Kept(finished=1.0, dead=1.0, events=1.0, keys=1.0)
    Retirer(fixture.database.engine, fixture.database.leader, blobs, limits).run_once(0.0)
    assert not fixture.database.query("SELECT FROM jobs")
    assert not fixture.database.query("SELECT FROM run_logs")


def test_a_job_keeps_the_logs_of_its_last_leases(database: DatabaseFixture) -> None:
    claim = database.start()
    for lease in range(1, 2 * KEPT_RUNS + 4):
        database.execute("UPDATE jobs SET lease = %s", lease)
        ref = JobRef(claim.ref.id, lease)
        assert keep_logs(database.engine, "w1", [(ref, Logged(f'["{lease}"]'))]) == {ref}
    assert list(logs(database, claim.ref.id)) == list(range(KEPT_RUNS + 4, 2 * KEPT_RUNS + 4))
