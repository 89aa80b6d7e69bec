"""Somebody holds the lock of one job's row: nothing else of its worker waits for that."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import Engine

from models.settings import DatabaseSettings
from models.store.session import open_engine
from tasks.worker.pipeline import execute_claim
from tests.support.database_fixture import DatabaseFixture
from tests.support.locks import held_lock
from tests.support.one_worker import OneWorker, one_worker
from tests.support.waiting import wait_for

#: What a statement gets; enough for the quick ones on a busy machine.
SECONDS = 1.0
LOCK = "SELECT FROM jobs WHERE id = %s FOR UPDATE"


@pytest.fixture
def one(database_url: str, engine: Engine) -> Iterator[OneWorker]:
    settings = DatabaseSettings(database_url=database_url, db_statement_seconds=SECONDS)
    impatient = open_engine(settings)
    with one_worker(DatabaseFixture(impatient)) as made:
        yield made
    impatient.dispose()
    open_engine(DatabaseSettings()).dispose()  # how long psycopg2 waits is the process's, not ours


def status(one: OneWorker, job_id: str) -> str:
    return str(one.database.job(job_id).status)


def test_locked_row_holds_up_no_other_claim(one: OneWorker) -> None:
    refs = one.refs(4)
    locked, *others = refs
    with held_lock(one.database, LOCK, locked.id):
        messages = [(locked, others[0]), (others[1],), (others[2],)]
        runs = [threading.Thread(target=one.execute, args=(message,)) for message in messages]
        runs[0].start()
        one.database.wait_until_waiting()
        for run in runs[1:]:
            run.start()
        for run in runs:
            run.join(20)
        assert not any(run.is_alive() for run in runs)
        one.flush()
        assert [status(one, ref.id) for ref in refs] == ["dispatched", *["succeeded"] * 3]
    one.execute((locked,))
    one.flush()
    assert status(one, locked.id) == "succeeded", "its message comes again"


def test_locked_row_is_waited_for_once(one: OneWorker) -> None:
    (locked,) = one.refs(1)
    assert locked.lease == 1, "it might be a job whose row is not there yet"
    claim, asked = one.worker.slots._claims._write, []

    def count(messages: Any) -> Any:
        asked.append(messages)
        return claim(messages)

    one.worker.slots._claims._write = count
    with held_lock(one.database, LOCK, locked.id):
        one.execute((locked,))
    assert len(asked) == 1, "each further look holds up the claims of this worker"


def test_locked_row_holds_up_no_other_ending_and_its_own_is_not_lost(one: OneWorker) -> None:
    first, second, *more = one.refs(4)
    claims = one.worker.slots.claim((first, second, *more))
    with held_lock(one.database, LOCK, first.id):
        execute_claim(claims[0], one.worker)
        one.database.wait_until_waiting()
        execute_claim(claims[1], one.worker)
        wait_for(lambda: status(one, second.id) == "succeeded")
        took = []
        for claim in claims[2:]:  # of which one may be slow on a busy machine
            began = time.monotonic()
            execute_claim(claim, one.worker)
            wait_for(lambda claim=claim: status(one, claim.ref.id) == "succeeded")  # type: ignore[misc]
            took.append(time.monotonic() - began)
        assert min(took) < SECONDS, "the lock is not waited for again"
        assert status(one, first.id) == "running"
    wait_for(lambda: status(one, first.id) == "succeeded")


def test_locked_row_holds_up_only_its_own_checkpoint(one: OneWorker) -> None:
    first, second = one.refs(2)
    locked = threading.Event()

    def act(ctx: Any, payload: Any) -> str:
        locked.wait(10)
        ctx.checkpoint({"done": 1})
        return "done"

    one.act = act
    run = threading.Thread(target=one.execute, args=((first, second),))
    run.start()
    wait_for(lambda: one.worker.slots.busy == 2)
    with held_lock(one.database, LOCK, first.id):
        locked.set()
        wait_for(lambda: status(one, second.id) == "succeeded")
        assert status(one, first.id) == "running"
    wait_for(lambda: status(one, first.id) == "succeeded")
    run.join(10)


def test_worker_that_stops_writes_what_is_behind_a_locked_row(one: OneWorker) -> None:
    first, second = one.refs(2)
    claims = one.worker.slots.claim((first, second))
    with held_lock(one.database, LOCK, first.id):
        for claim in claims:
            execute_claim(claim, one.worker)
        assert not one.worker.ledger.close(8.0), "one result is not written"
        assert status(one, second.id) == "succeeded"
        assert status(one, first.id) == "running", "the reaper finds it"
