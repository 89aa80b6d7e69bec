"""Claims that wait in a worker for a slot: begun or handed back, never both."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import Engine

from tasks.worker import slots as slots_module
from tasks.worker.held import Held
from tasks.worker.pipeline import execute_claim
from tests.support.database_fixture import DatabaseFixture
from tests.support.one_worker import OneWorker, one_worker
from tests.support.waiting import wait_for


@pytest.fixture
def one(engine: Engine) -> Iterator[OneWorker]:
    with one_worker(DatabaseFixture(engine), slots=8) as made:
        yield made


class Interrupted:
    """A held claim whose run begins, if it can, while the heartbeat looks at it."""

    def __init__(self, held: Held, run: threading.Thread) -> None:
        vars(self).update(_held=held, _run=run)

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._held, name)
        if name == "lost" and not self._run.ident:
            self._run.start()
            self._run.join(0.3)
        return value

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._held, name, value)


def test_a_claim_that_begins_while_a_drain_looks_at_it_is_not_handed_back(
    one: OneWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    began, go_on, ran = threading.Event(), threading.Event(), []

    def act(ctx: Any, payload: Any) -> None:
        ran.append(ctx.job_id)
        began.set()
        go_on.wait(10)

    one.act = act
    slots = one.worker.slots
    [claim] = slots.claim(one.refs(1))
    run = threading.Thread(target=execute_claim, args=(claim, one.worker))
    monkeypatch.setattr(slots, "held", lambda: [Interrupted(slots._held[claim.ref], run)])
    slots.note_drain()
    one.worker.heartbeat._release_waiting(one.worker.ledger)
    monkeypatch.undo()
    began.wait(0.5)
    one.flush()
    handed_back = one.database.job(claim.ref.id).status == "queued"
    go_on.set()
    run.join(10)
    assert len(ran) + handed_back == 1, f"ran {len(ran)} times, handed back: {handed_back}"


def test_each_claim_has_one_fate_whatever_the_order_of_threads(
    one: OneWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Held, "waited_too_long", lambda held, now, shared_seconds=None: True)
    ran: list[str] = []
    one.act = lambda ctx, payload: ran.append(ctx.job_id)
    before, handed_back = sys.getswitchinterval(), []
    sys.setswitchinterval(1e-5)
    try:
        for _ in range(12):
            claims = one.worker.slots.claim(one.refs(8))
            together = threading.Barrier(len(claims) + 1, timeout=10)

            def begin(claim: Any, together: threading.Barrier = together) -> None:
                together.wait()
                execute_claim(claim, one.worker)

            runs = [threading.Thread(target=begin, args=(claim,)) for claim in claims]
            for run in runs:
                run.start()
            together.wait()
            taken = one.worker.slots.take_waiting()
            handed_back += [held.claim.ref.id for held in taken]
            for held in taken:
                one.worker.ledger.release(held.claim)
            for run in runs:
                run.join(10)
            one.flush()
            one.database.execute("DELETE FROM jobs WHERE status = 'queued'")
    finally:
        sys.setswitchinterval(before)
    assert len(ran) + len(handed_back) == 96
    assert not set(ran) & set(handed_back)
    assert one.worker.slots.held() == [] and one.worker.slots.busy == 0


def test_a_claim_that_does_not_begin_is_handed_back_and_runs_elsewhere(engine: Engine) -> None:
    database, blocked, go_on = DatabaseFixture(engine), threading.Event(), threading.Event()

    def block(ctx: Any, payload: Any) -> None:
        blocked.set()
        go_on.wait(20)

    with one_worker(database, slots=1) as stuck, one_worker(database, name="w2") as other:
        stuck.act = block
        [running] = stuck.refs(1)
        [waiting, fresh] = stuck.refs(2)
        threads = [
            threading.Thread(target=stuck.execute, args=((ref,),))
            for ref in (running, waiting, fresh)
        ]
        threads[0].start()
        assert blocked.wait(10)
        for thread in threads[1:]:
            thread.start()
        wait_for(lambda: len(stuck.worker.slots.held()) == 3)
        held = stuck.worker.slots.find(waiting)
        assert held is not None
        held.claimed -= 10.1  # the lease of the pool
        stuck.worker.start()
        wait_for(lambda: database.job(waiting.id).status == "queued")
        job = database.job(waiting.id)
        assert (job.attempt, job.crashes, job.deferrals, job.slot_seconds) == (0, 0, 0, 0)
        assert database.job(fresh.id).status == "running", "it may still wait"
        other.execute(other.dispatched(1))
        other.flush()
        assert (database.job(waiting.id).status, database.job(waiting.id).worker) == (
            "succeeded",
            "w2",
        )
        go_on.set()
        for thread in threads:
            thread.join(10)
        stuck.flush()
        rows = database.query("SELECT status::text, lease FROM jobs ORDER BY id")
        assert [tuple(row) for row in rows] == [
            ("succeeded", 1),
            ("succeeded", 2),
            ("succeeded", 1),
        ]


def test_jobs_of_a_shared_message_are_handed_back_when_longer_runs_take_all_slots(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slots_module, "STUCK_SECONDS", 0.2)
    database, blocked, go_on = DatabaseFixture(engine), threading.Event(), threading.Event()

    def block(ctx: Any, payload: Any) -> None:
        blocked.set()
        go_on.wait(20)

    with one_worker(database, slots=1) as stuck:
        stuck.act = block
        running, alone, *shared = stuck.refs(4)
        messages = ((running,), (alone,), tuple(shared))
        threads = [threading.Thread(target=stuck.execute, args=(refs,)) for refs in messages]
        threads[0].start()
        assert blocked.wait(10)
        for thread in threads[1:]:
            thread.start()
        wait_for(lambda: len(stuck.worker.slots.held()) == 4)
        stuck.worker.start()
        wait_for(lambda: all(database.job(ref.id).status == "queued" for ref in shared))
        assert database.job(alone.id).status == "running", "it may take as long as what it awaits"
        job = database.job(shared[0].id)
        assert (job.attempt, job.crashes, job.deferrals, job.slot_seconds) == (0, 0, 0, 0)
        go_on.set()
        for thread in threads:
            thread.join(10)
        stuck.flush()
        assert stuck.worker.slots.held() == []


def test_a_message_is_claimed_before_its_task_starts_and_once_if_it_comes_twice(
    one: OneWorker,
) -> None:
    ran: list[str] = []
    one.act = lambda ctx, payload: ran.append(ctx.job_id)
    message = one.refs(3)
    slots = one.worker.slots
    slots.claim_soon(message)
    wait_for(lambda: len(slots.held()) == 3)
    assert {one.database.job(ref.id).status for ref in message} == {"running"}
    slots.claim_soon(message)
    tasks = [threading.Thread(target=one.execute, args=(message,)) for _ in range(2)]
    for task in tasks:
        task.start()
    for task in tasks:
        task.join(10)
    one.flush()
    assert sorted(ran) == sorted(ref.id for ref in message)
    assert slots.held() == [] and not slots._soon


def test_what_was_claimed_for_a_task_that_never_starts_is_handed_back_by_a_drain(
    one: OneWorker,
) -> None:
    message = one.refs(2)
    one.worker.slots.claim_soon(message)
    wait_for(lambda: len(one.worker.slots.held()) == 2)
    one.worker.slots.drain()
    one.worker.slots.claim_soon(one.refs(1))
    one.worker.heartbeat._release_waiting(one.worker.ledger)
    one.flush()
    assert {one.database.job(ref.id).status for ref in message} == {"queued"}
    assert {one.database.job(ref.id).crashes for ref in message} == {0}
