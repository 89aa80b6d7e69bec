"""A worker that is given jobs: when it offers, what it hears, and what it hands back."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest

from models import wakeups
from models.jobs.admit_alone import admit_alone
from models.jobs.cancel import cancel
from models.jobs.claim import JobRef
from models.jobs.ids import new_id
from models.jobs.offer import GivenJob, channel_of
from models.jobs.submission import Admitted, Submission, SubmissionGroup
from models.presence import Presence, announce
from models.store.clock import DATABASE_CLOCK
from tasks.worker import offers as offers_module
from tasks.worker.offers import Offers
from tests.support.database_fixture import DatabaseFixture
from tests.support.one_worker import OneWorker, one_worker
from tests.support.waiting import wait_for

LISTENERS = """
    SELECT pid FROM pg_stat_activity
    WHERE query LIKE 'LISTEN fairline%%' AND datname = current_database()
"""


class Offering:
    """A worker and its offers."""

    def __init__(self, one: OneWorker, pools: Sequence[str] = ("short",)) -> None:
        self.one = one
        self.database = one.database
        self.ran: list[str] = []
        self.go_on = threading.Event()
        self.go_on.set()
        self.delivered: list[GivenJob] = []
        self.delivers = True
        one.act = self._run
        self.offers = Offers(one.worker, pools, self._deliver)

    def _run(self, ctx: Any, payload: Any) -> Any:
        self.ran.append(ctx.job_id)
        self.go_on.wait(20)
        return payload

    def _deliver(self, job: GivenJob) -> None:
        self.delivered.append(job)
        if self.delivers:
            self.one.helpers.submit(self.one.execute, (job.ref,))

    def admit(self, **fields: Any) -> Admitted:
        values = {"tenant_id": 1, "type": "echo", "pool": "short", "payload": '"hello"', **fields}
        entry = SubmissionGroup((Submission(id=new_id(), **values),))
        return admit_alone(self.database.engine, entry, True, True)

    def standing(self) -> list[str]:
        """Who offers to run a job."""
        offers: list[str] = self.database.query("SELECT offers FROM express_lanes")[0][0]
        return [each.split()[0] for each in offers]

    def offered(self) -> int:
        """Jobs that the worker would run."""
        offers: list[str] = self.database.query("SELECT offers FROM express_lanes")[0][0]
        return sum(int(each.split()[2]) for each in offers)

    def await_offer(self) -> None:
        wait_for(lambda: self.standing() == ["w1"])

    def status(self, job: Admitted | str) -> str:
        job_id = job if isinstance(job, str) else job.ids[0]
        return str(self.database.job(job_id).status)

    def await_status(self, job: Admitted, status: str) -> None:
        wait_for(lambda: self.status(job) == status)


@pytest.fixture
def offering(database: DatabaseFixture) -> Iterator[Offering]:
    database.execute("INSERT INTO express_lanes (pool, credit) VALUES ('short', 1000)")
    with one_worker(database, slots=2) as one:
        one.worker.start()
        one.flush()
        made = Offering(one)
        yield made
        made.go_on.set()
        made.offers.close()


def test_given_jobs_run_and_the_worker_offers_again(offering: Offering) -> None:
    offering.offers.start()
    for n in range(3):
        offering.await_offer()
        job = offering.admit(payload=f'"{n}"')
        assert job.given
        offering.await_status(job, "succeeded")
        row = offering.database.job(job.ids[0])
        assert (row.result, row.lease, row.crashes) == (str(n), 1, 0)
    assert len(offering.ran) == 3
    assert all(job.claim is not None for job in offering.delivered)


def test_a_worker_offers_to_run_as_many_as_it_has_free_slots(offering: Offering) -> None:
    offering.offers.start()
    wait_for(lambda: offering.offered() == 2)
    offering.go_on.clear()
    first = offering.admit()
    assert first.given and offering.offered() == 1
    wait_for(lambda: len(offering.ran) == 1)
    second = offering.admit()
    assert second.given and not offering.admit().given
    wait_for(lambda: len(offering.ran) == 2)
    offering.go_on.set()
    for job in (first, second):
        offering.await_status(job, "succeeded")
    wait_for(lambda: offering.offered() == 2)


def test_a_worker_that_runs_something_is_given_jobs_for_its_other_slots(offering: Offering) -> None:
    offering.go_on.clear()
    offering.one.helpers.submit(offering.one.execute, (offering.one.refs(1)[0],))
    wait_for(lambda: len(offering.ran) == 1)
    offering.offers.start()
    wait_for(lambda: offering.offered() == 1)
    job = offering.admit()
    assert job.given
    wait_for(lambda: len(offering.ran) == 2)
    assert offering.status(job) == "running"
    time.sleep(0.2)
    assert offering.standing() == []


def test_nothing_is_offered_that_would_not_be_heard(
    offering: Offering, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As behind a pooler."""
    monkeypatch.setattr(offers_module, "probe", lambda *_: None)
    offering.offers.start()
    wait_for(lambda: offering.offers._listener.listening)
    time.sleep(0.3)
    assert offering.standing() == []


def test_the_first_lane_is_waited_for(offering: Offering, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offers_module, "RETRY_SECONDS", 0.05)
    offering.database.execute("DELETE FROM express_lanes")
    offering.offers.start()
    time.sleep(0.3)
    offering.database.execute("INSERT INTO express_lanes (pool, credit) VALUES ('short', 1000)")
    offering.await_offer()


def test_offers_are_taken_back_with_the_last_slot_and_made_again_when_idle(
    offering: Offering,
) -> None:
    offering.offers.start()
    offering.await_offer()
    offering.go_on.clear()
    refs = offering.one.refs(2)
    for ref in refs:
        offering.one.helpers.submit(offering.one.execute, (ref,))
    wait_for(lambda: offering.standing() == [])
    assert not offering.admit().given
    offering.go_on.set()
    offering.await_offer()


def test_while_claims_wait_for_a_slot_nothing_is_offered(
    offering: Offering, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As while there is a queue: each slot is free for a moment, again and again."""
    written: list[int] = []
    offer = offers_module.offer

    def count(*arguments: Any) -> bool:
        written.append(arguments[3])
        return offer(*arguments)

    monkeypatch.setattr(offers_module, "offer", count)
    offering.go_on.clear()
    refs = offering.one.refs(30)
    with ThreadPoolExecutor(6) as messages:
        running = [messages.submit(offering.one.execute, (ref,)) for ref in refs]
        wait_for(lambda: offering.one.worker.slots.held_count > 2)
        offering.offers.start()
        wait_for(lambda: offering.offers._hears)
        offering.go_on.set()
        for run in running:
            run.result(30)
    offering.await_offer()
    assert 1 <= len(written) <= 4, "when the last of them have ended"


def test_a_large_job_leaves_no_offer_of_a_full_worker(database: DatabaseFixture) -> None:
    """Its message does not say of which pool it is."""
    pools = ["medium", "short"]
    for pool in pools:
        database.execute("INSERT INTO express_lanes (pool, credit) VALUES (%s, 1000)", pool)
    with one_worker(database, slots=1) as one:
        one.worker.start()
        one.flush()
        offering = Offering(one, pools)
        offering.offers.start()
        entries = "SELECT 1 FROM express_lanes WHERE offers <> '{}'"
        wait_for(lambda: len(database.query(entries)) == 2)
        offering.go_on.clear()
        assert offering.admit(payload=json.dumps("x" * 20_000)).given
        wait_for(lambda: database.query(entries) == [])
        offering.go_on.set()
        wait_for(lambda: len(database.query(entries)) == 2)
        offering.offers.close()


def test_what_was_given_while_nobody_listened_is_found(
    offering: Offering, monkeypatch: pytest.MonkeyPatch
) -> None:
    offering.offers.start()
    offering.await_offer()
    heard = threading.Event()
    monkeypatch.setattr(offering.offers._listener, "_listen", refuse_until(heard, offering))
    # That of the test before may not have ended yet.
    wait_for(lambda: len(offering.database.query(LISTENERS)) == 1)
    [listener] = offering.database.query(LISTENERS)
    offering.database.execute("SELECT pg_terminate_backend(%s)", listener.pid)
    wait_for(lambda: not offering.offers._listener.listening)
    job = offering.admit()
    assert job.given
    time.sleep(0.2)
    assert offering.ran == []
    heard.set()
    offering.await_status(job, "succeeded")
    assert offering.ran == list(job.ids)
    offering.await_offer()


def refuse_until(heard: threading.Event, offering: Offering) -> Any:
    """A database that lets nobody listen until then."""
    listen = type(offering.offers._listener)._listen

    def attempt() -> None:
        heard.wait(20)
        listen(offering.offers._listener)

    return attempt


def test_a_job_that_is_found_and_told_begins_once(
    offering: Offering, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was given after the worker had begun to listen, and before it looked at its rows."""
    offering.offers.start()
    offering.await_offer()
    unheard: list[GivenJob] = []
    monkeypatch.setattr(offering.offers, "_accept", unheard.extend)
    job = offering.admit(payload='"once"')
    assert job.given
    wait_for(lambda: len(unheard) == 1)
    monkeypatch.undo()
    row = offering.database.job(job.ids[0])
    told = [str(row.id), "echo", 1, "short", None, row.created_at.isoformat(), "", None, "once"]
    offering.offers._heard(())
    offering.offers._heard([json.dumps(told)])
    offering.await_status(job, "succeeded")
    offering.offers._heard([json.dumps(told)])
    time.sleep(0.2)
    assert offering.ran == list(job.ids)


def test_a_connection_that_is_deaf_is_replaced(
    offering: Offering, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one to a server that was frozen, beside a pool that has gone on to another one."""
    monkeypatch.setattr(wakeups, "SILENCE_SECONDS", 0.1)
    monkeypatch.setattr(wakeups, "RETRY_SECONDS", 0.1)
    hear = offering.offers._listener._heard
    deaf = threading.Event()

    def hear_little(messages: Any) -> None:
        if not (messages and deaf.is_set()):
            hear(messages)

    monkeypatch.setattr(offering.offers._listener, "_heard", hear_little)
    offering.offers.start()
    offering.await_offer()
    deaf.set()
    job = offering.admit()
    assert job.given
    offering.await_status(job, "succeeded")
    assert offering.delivered[-1].claim is None, "it was found by its row"
    deaf.clear()
    offering.await_offer()


def test_a_message_that_is_none_ends_nothing(offering: Offering) -> None:
    offering.offers.start()
    offering.await_offer()
    offering.database.execute("SELECT pg_notify(%s, 'nonsense')", channel_of("w1"))
    time.sleep(1.5)
    assert offering.offers._listener.is_alive()
    offering.await_offer()
    job = offering.admit()
    offering.await_status(job, "succeeded")


def test_a_message_that_comes_late_runs_only_what_is_still_ours(
    offering: Offering, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(offers_module, "LATE", timedelta(seconds=-1))
    offering.offers.start()
    offering.await_offer()
    ours = offering.admit()
    offering.await_status(ours, "succeeded")
    assert offering.delivered[-1].claim is not None, "it was in the message"
    offering.await_offer()
    # Reaped while the worker stood still: it hears of it when it is somebody else's.
    offering.delivers = False
    lost = offering.admit()
    assert lost.given
    wait_for(lambda: len(offering.delivered) == 2)
    offering.database.execute("UPDATE jobs SET lease = 2, worker = 'w9' WHERE id = %s", lost.ids[0])
    offering.one.execute((offering.delivered[-1].ref,))
    assert offering.ran == list(ours.ids)
    assert offering.database.job(lost.ids[0]).worker == "w9"


@pytest.mark.parametrize("reported", [False, True])
def test_a_worker_that_was_silent_asks_the_row_of_a_message_that_is_not_late(
    offering: Offering, reported: bool
) -> None:
    """Frozen just before it was given the job, and lost just after."""
    offering.delivers = False
    offering.offers.start()
    offering.await_offer()
    heartbeat = offering.one.worker.heartbeat
    if reported:  # when it went on, before it read what it was told
        heartbeat.silent_until = DATABASE_CLOCK.now() + timedelta(seconds=60)
    else:
        heartbeat.silent_seconds = lambda: 7.0  # type: ignore[method-assign]
    lost = offering.admit()
    assert lost.given
    wait_for(lambda: len(offering.delivered) == 1)
    offering.database.execute("UPDATE jobs SET lease = 2, worker = 'w9' WHERE id = %s", lost.ids[0])
    offering.one.execute((offering.delivered[-1].ref,))
    assert offering.ran == []


def test_what_comes_by_message_beside_given_jobs_is_handed_back_soon(offering: Offering) -> None:
    """The broker takes the worker for free: it sends as many jobs again as it was given."""
    offering.go_on.clear()
    offering.offers.start()
    wait_for(lambda: offering.offered() == 2)
    given = [offering.admit(), offering.admit()]
    assert all(job.given for job in given)
    wait_for(lambda: len(offering.ran) == 2)
    [ref] = offering.one.refs(1)
    with ThreadPoolExecutor(1) as messages:
        messages.submit(offering.one.execute, (ref,))
        wait_for(offering.one.worker.slots.any_waiting)
        # Another worker may have a free slot; a lease is ten seconds.
        wait_for(lambda: offering.status(ref.id) == "queued", 8)
        offering.go_on.set()


def test_a_large_payload_is_read_from_the_row(offering: Offering) -> None:
    offering.offers.start()
    offering.await_offer()
    text = "x" * 20_000
    job = offering.admit(payload=f'"{text}"')
    assert job.given
    offering.await_status(job, "succeeded")
    assert offering.database.job(job.ids[0]).result == text
    assert offering.delivered[-1].claim is None


def test_a_worker_that_drains_hands_back_what_it_is_given(offering: Offering) -> None:
    offering.offers.start()
    offering.await_offer()
    offering.one.worker.slots.note_drain()  # as a signal does; its offer stands for a moment
    job = offering.admit()
    assert job.given
    offering.await_status(job, "queued")
    row = offering.database.job(job.ids[0])
    assert (row.attempt, row.crashes, offering.ran) == (0, 0, [])
    offering.one.worker.slots.drain()
    wait_for(lambda: offering.standing() == [])


def test_a_worker_that_stops_leaves_neither_offer_nor_job(offering: Offering) -> None:
    offering.offers.start()
    offering.await_offer()
    offering.offers._listener.close()  # its last message is not heard
    job = offering.admit()
    assert job.given
    offering.one.worker.slots.note_drain()
    offering.offers.close()
    offering.one.flush()
    assert offering.status(job) == "queued"
    assert offering.standing() == []
    assert not offering.admit().given


def test_a_job_that_does_not_begin_is_handed_back(offering: Offering) -> None:
    """Celery could not start its task."""
    offering.delivers = False
    offering.offers.start()
    offering.await_offer()
    job = offering.admit()
    assert job.given
    offering.await_status(job, "queued")
    assert offering.ran == []


def test_a_job_is_cancelled_that_was_given_and_not_heard_of(
    offering: Offering, monkeypatch: pytest.MonkeyPatch
) -> None:
    unheard: list[GivenJob] = []
    monkeypatch.setattr(offering.offers, "_accept", unheard.extend)
    offering.offers.start()
    offering.await_offer()
    job = offering.admit()
    assert job.given
    wait_for(lambda: len(unheard) == 1)
    found = cancel(offering.database.engine, 1, job.ids[0])
    assert found is not None and found.requested_at is not None
    assert found.status == "running", "it may have begun"
    monkeypatch.undo()
    offering.offers._accept(offering.offers._unknown())
    offering.await_status(job, "cancelled")
    assert offering.ran == []


def test_an_offer_that_was_dropped_is_made_again(
    offering: Offering, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(offers_module, "STALE_SECONDS", 0.1)
    offering.offers.start()
    offering.await_offer()
    offering.database.execute("UPDATE processes SET heartbeat_at = now() - interval '1 minute'")
    assert not offering.admit().given and offering.standing() == []
    announce(offering.database.engine, Presence("w1", "worker", ["short"], slots=2))
    time.sleep(0.2)
    [ref] = offering.one.refs(1)
    offering.one.execute((JobRef(ref.id, ref.lease),))
    offering.await_offer()
