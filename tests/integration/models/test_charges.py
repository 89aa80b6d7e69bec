"""Whoever ends a run, the tenant pays for the time that it took: on the job and on the bill."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
from sqlalchemy import Engine

from app.scheduler.maintenance.reaper import Reaper
from models.jobs.cancel import cancel
from models.jobs.claim import Claim
from models.jobs.heartbeat import RunReport, report
from models.jobs.settle import Ending
from models.jobs.states import JobStatus
from models.presence import Presence, announce
from tasks.context import JobContext
from tasks.errors import TimeLimit
from tasks.watchdog.emergency_write import connect_arguments, write_now
from tasks.watchdog.lost_runs import expire_lost, settle_overdue
from tasks.watchdog.watchdog import Watchdog
from tasks.worker.pipeline import execute_claim
from tests.support.database_fixture import DatabaseFixture
from tests.support.one_worker import one_worker

READ_BILL = """
    SELECT sum(jobs)::int, sum(runs)::int, sum(slot_seconds)::float8, sum(slice_seconds)::float8,
           sum(tokens_in)::int, sum(tokens_out)::int
    FROM usage
"""


@pytest.fixture
def database(engine: Engine) -> DatabaseFixture:
    return DatabaseFixture(engine)


def bill(database: DatabaseFixture) -> tuple[Any, ...]:
    """Jobs, runs, slot-seconds, those in slices, tokens in and out."""
    return tuple(database.query(READ_BILL)[0])


def lose(database: DatabaseFixture, claim: Claim, ran: str, silent: str = "1 second") -> None:
    """As if the run had begun so long before its last heartbeat, which is a lease ago."""
    database.execute(
        "UPDATE jobs SET lease_expires_at = now() - %s::interval,"
        " started_at = now() - %s::interval - interval '30 seconds' - %s::interval WHERE id = %s",
        silent,
        silent,
        ran,
        claim.ref.id,
    )
    assert Reaper(database.engine, database.leader, database.types).run_once(0.0) == 1


def test_a_lost_run_is_charged_up_to_its_last_heartbeat(database: DatabaseFixture) -> None:
    claim = database.start()
    database.execute("UPDATE jobs SET slice = 'free'")
    lose(database, claim, "7.5 seconds", silent="1 hour")
    job = database.job(claim.ref.id)
    assert (job.status, job.crashes, job.slot_seconds) == ("queued", 1, 7.5)
    assert bill(database) == (0, 1, 7.5, 7.5, 0, 0)


def test_a_run_that_was_lost_before_its_first_heartbeat_costs_nothing(
    database: DatabaseFixture,
) -> None:
    claim = database.start()
    lose(database, claim, "-3 seconds")
    assert bill(database) == (0, 1, 0.0, 0.0, 0, 0)


def test_tokens_that_a_lost_run_had_reported_are_charged_once(database: DatabaseFixture) -> None:
    began, go_on = threading.Event(), threading.Event()

    def act(ctx: JobContext, payload: Any) -> None:
        ctx.progress(1, 2)
        ctx.charge_tokens(900, 500)
        ctx.charge_tokens(100, 0)
        began.set()
        go_on.wait(20)

    with one_worker(database) as one:
        one.act = act
        [ref] = one.refs(1)
        run = threading.Thread(target=one.execute, args=((ref,),))
        run.start()
        assert began.wait(10)
        one.flush()
        assert database.job(ref.id).progress == {"done": 1, "total": 2}
        database.execute("DELETE FROM processes")
        database.expire_leases()
        reaper = Reaper(database.engine, database.leader, database.types)
        assert reaper.run_once(0.0) == 1
        assert bill(database)[-2:] == (1000, 500)
        go_on.set()
        run.join(10)
        one.flush()
    # Nor does the next run pay for them, which reports nothing before it is lost.
    (dispatch,) = database.dispatch("short")
    (claim,) = database.claim(ref._replace(lease=dispatch.lease))
    lose(database, claim, "1 second")
    assert bill(database)[-2:] == (1000, 500)


def test_tokens_of_a_run_that_its_parent_ends_are_charged(database: DatabaseFixture) -> None:
    first, second = database.start(), database.start()
    announce(database.engine, Presence("w1", "worker", parent="its parent"))
    report(database.engine, "w1", [RunReport(first.ref, None, 30, 20)])
    report(database.engine, "w1", [RunReport(second.ref, '{"done": 1}', 7, 5)])
    database.execute("UPDATE jobs SET started_at = now() - interval '1 hour'")
    database.execute("UPDATE jobs SET waiting_lease = lease WHERE id = %s", second.ref.id)
    url = database.engine.url.render_as_string(hide_password=False)
    assert settle_overdue(url, database.types, "its parent", [first.ref, second.ref]) == 2
    assert bill(database)[-2:] == (30, 20), "the second had not begun"


def test_a_job_that_the_reaper_ends_is_counted_once(database: DatabaseFixture) -> None:
    claim = database.start()
    database.execute("UPDATE jobs SET crashes = 4")
    lose(database, claim, "2 seconds")
    assert database.job(claim.ref.id).status == "dead"
    assert bill(database) == (1, 1, 2.0, 0.0, 0, 0)
    cancelled = database.start()
    database.execute("UPDATE jobs SET cancel_requested_at = now() WHERE id = %s", cancelled.ref.id)
    lose(database, cancelled, "3 seconds")
    assert bill(database) == (2, 2, 5.0, 0.0, 0, 0)


@pytest.mark.parametrize("cancelled", [True, False])
def test_what_never_began_costs_nothing(database: DatabaseFixture, cancelled: bool) -> None:
    claim = database.start()
    database.execute("UPDATE jobs SET waiting_lease = lease")
    if cancelled:
        database.execute("UPDATE jobs SET cancel_requested_at = now()")
    lose(database, claim, "1 minute")
    assert database.job(claim.ref.id).slot_seconds == 0
    database.submit()
    database.dispatch()
    database.expire_leases()
    Reaper(database.engine, database.leader, database.types).run_once(0.0)
    assert not database.query("SELECT 1 FROM usage")


def test_a_forked_process_that_was_seen_to_end_is_charged_until_then(
    database: DatabaseFixture,
) -> None:
    claim = database.start()
    announce(database.engine, Presence("w1", "worker", parent="its parent"))
    database.execute("UPDATE jobs SET started_at = now() - interval '4 seconds'")
    url = database.engine.url.render_as_string(hide_password=False)
    expire_lost(url, "its parent", [claim.ref])
    assert Reaper(database.engine, database.leader, database.types).run_once(0.0) == 1
    job = database.job(claim.ref.id)
    assert 4.0 <= job.slot_seconds < 9.0, "less than a lease, and paid all the same"
    assert bill(database)[2] == job.slot_seconds
    # That process was not the one of the next run, which began later.
    database.execute("UPDATE jobs SET lost_at = lost_at - interval '1 hour'")
    (dispatch,) = database.dispatch()
    (again,) = database.claim(claim.ref._replace(lease=dispatch.lease))
    lose(database, again, "1 second")
    assert database.job(claim.ref.id).slot_seconds == pytest.approx(job.slot_seconds + 1.0)


def test_a_run_that_a_drain_ends_at_a_checkpoint_is_charged_and_goes_on(
    database: DatabaseFixture,
) -> None:
    def act(ctx: JobContext, payload: Any) -> None:
        ctx.charge_tokens(11, 7)
        time.sleep(0.2)
        one.worker.slots.note_drain()
        ctx.checkpoint({"at": 1})

    with one_worker(database) as one:
        one.act = act
        [ref] = one.refs(1)
        one.execute((ref,))
        one.flush()
    job = database.job(ref.id)
    assert (job.status, job.attempt, job.deferrals) == ("queued", 0, 1)
    assert 0.2 <= job.slot_seconds < 5
    assert bill(database) == (0, 0, job.slot_seconds, 0.0, 11, 7)
    (dispatch,) = database.dispatch("short")
    (claim,) = database.claim(ref._replace(lease=dispatch.lease))
    assert database.settle(claim.ref, Ending(JobStatus.SUCCEEDED, 1, result="1"), 3.0)
    assert bill(database)[:2] == (1, 1), "one job, one run that came to an end"
    assert database.job(ref.id).slot_seconds == pytest.approx(bill(database)[2])


@pytest.mark.parametrize("slot", [True, False])
def test_claim_that_is_cancelled_before_it_begins_is_no_run(
    database: DatabaseFixture, slot: bool
) -> None:
    with one_worker(database) as one:
        one.act = lambda ctx, payload: pytest.fail("it was cancelled")
        [claim] = one.worker.slots.claim(one.refs(1))
        cancel(database.engine, 1, claim.ref.id)
        if slot:
            held = one.worker.slots.find(claim.ref)
            assert held is not None
            held.cancelled = time.monotonic()
            execute_claim(claim, one.worker)
        else:
            one.worker.heartbeat._ledger = one.worker.ledger
            one.flush()
        one.flush()
    assert database.job(claim.ref.id).status == "cancelled"
    assert not database.query("SELECT FROM usage UNION ALL SELECT FROM attempts")


def test_run_that_is_handed_back_and_then_cancelled_is_one(database: DatabaseFixture) -> None:
    claim = database.start()
    cancel(database.engine, 1, claim.ref.id)
    assert database.settle(claim.ref, Ending(JobStatus.QUEUED, deferrals=1), 2.0)
    assert database.job(claim.ref.id).status == "cancelled"
    assert bill(database) == (1, 1, 2.0, 0.0, 0, 0)
    assert len(database.query("SELECT FROM attempts")) == 1


def test_neighbours_that_are_handed_back_pay_for_what_they_used(
    database: DatabaseFixture,
) -> None:
    with one_worker(database) as one:
        slots = one.worker.slots
        claims = slots.claim(one.refs(3))
        guilty, running = slots.begin(claims[0]), slots.begin(claims[1])
        assert guilty is not None and running is not None and running.started is not None
        running.started -= 4.0
        running.tokens_in, running.tokens_out = 5, 6
        statements = Watchdog(one.worker, ["short"], 5.0)._final_statements(
            [(guilty, TimeLimit("too long"))]
        )
        write_now(connect_arguments(database.engine.url), statements)
    rows = [database.job(claim.ref.id) for claim in claims]
    assert [row.status for row in rows] == ["scheduled", "queued", "queued"]
    assert [row.deferrals for row in rows] == [0, 1, 0]
    assert 4.0 <= rows[1].slot_seconds < 9.0 and rows[2].slot_seconds == 0.0
    jobs, runs, seconds, _, *tokens = bill(database)
    assert (jobs, runs, tokens) == (0, 1, [5, 6])
    assert seconds == pytest.approx(sum(row.slot_seconds for row in rows))
