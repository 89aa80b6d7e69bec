"""The watchdog beside a hub that does not turn, without a worker process around it."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

import pytest
from sqlalchemy import Engine

from models.jobs.claim import JobRef
from models.presence import ALIVE
from models.store.session import transaction
from tasks.errors import TimeLimit
from tasks.watchdog import watchdog as watchdog_module
from tasks.watchdog.emergency_write import write_now
from tasks.watchdog.loop_monitor import LoopMonitor
from tasks.watchdog.watchdog import LATE_SECONDS, Watchdog
from tasks.worker.held import Held
from tests.support.database_fixture import DatabaseFixture
from tests.support.locks import held_lock
from tests.support.one_worker import OneWorker, one_worker
from tests.support.waiting import wait_for

LEFT = "SELECT extract(epoch FROM lease_expires_at - now())::float8 FROM jobs ORDER BY id"


class Starved(LoopMonitor):
    """A hub whose thread gets no processor: it is silent, and nothing of that counts."""

    def __init__(self, silent_since: float, blocker: Held) -> None:
        self.silent_since = silent_since
        self.silent_seconds = self.blocking_seconds = 0.0
        self.blocker = blocker

    def look(self, now: float, elapsed: float) -> None:
        pass


def test_the_leases_of_a_starved_process_are_kept_and_nobody_is_judged(engine: Engine) -> None:
    database = DatabaseFixture(engine)
    with one_worker(database) as process:
        claims = process.worker.slots.claim(process.refs(2))
        held = [process.worker.slots.begin(claim) for claim in claims]
        database.execute("UPDATE jobs SET lease_expires_at = now() + interval '4 seconds'")
        watchdog, now = Watchdog(process.worker, ["short"], 5.0), time.monotonic()
        watchdog._monitor = Starved(now - 1.0, held[0])
        watchdog.look(now, 0.0)
        assert all(left < 5 for (left,) in database.query(LEFT)), "too early to help"
        watchdog.look(now + 5.0, 0.0)
        assert all(left > 5 for (left,) in database.query(LEFT))
        assert watchdog._interrupted == {}


def test_the_presence_is_kept_while_the_heartbeat_is_held_up(engine: Engine) -> None:
    database = DatabaseFixture(engine)
    with one_worker(database) as process:
        process.flush()
        database.execute("UPDATE processes SET heartbeat_at = now() - interval '1 hour'")
        watchdog, now = Watchdog(process.worker, ["short"], 5.0), process.worker.heartbeat.announced
        watchdog.keep_present(now + 0.9 * LATE_SECONDS)
        assert process.worker.heartbeat.announced == now, "too early to help"
        with held_lock(database, "LOCK TABLE jobs IN ACCESS EXCLUSIVE MODE"):
            watchdog.keep_present(now + LATE_SECONDS)
            deadline = time.monotonic() + 10
            while process.worker.heartbeat.announced == now:
                assert time.monotonic() < deadline
                time.sleep(0.01)
        [row] = database.query(f"SELECT {ALIVE} AS alive FROM processes")
        assert row.alive


class Ending:
    """A process that its watchdog ends, up to the kill; its other threads go on until then."""

    def __init__(self, process: OneWorker, monkeypatch: pytest.MonkeyPatch) -> None:
        self.process = process
        self.aside = ThreadPoolExecutor(2)
        #: What happens between the emergency write and the kill.
        self.before_the_kill: Any = lambda: None
        self._watchdog = Watchdog(process.worker, ["short"], 5.0)

        def write_and_wait(*given: Any) -> Any:
            answers = write_now(*given)
            self.before_the_kill()
            return answers

        monkeypatch.setattr(watchdog_module, "write_now", write_and_wait)
        monkeypatch.setattr(watchdog_module, "kill_process", lambda *_: None)
        monkeypatch.setattr(watchdog_module, "raise_memory_limit", lambda: None)

    def end(self, guilty: Held) -> None:
        self._watchdog._kill_process_after_writing([(guilty, TimeLimit("on purpose"))])

    def claim(self, refs: tuple[JobRef, ...]) -> None:
        """Take a message, as any thread of the process may; the answer may never come."""
        wait([self.aside.submit(self.process.worker.slots.claim, refs)], timeout=0.5)


@pytest.fixture
def ending(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> Any:
    with one_worker(DatabaseFixture(engine)) as process:
        ending = Ending(process, monkeypatch)
        yield ending
    ending.aside.shutdown()


def test_process_that_is_ended_does_not_claim_again_what_it_handed_back(ending: Ending) -> None:
    process = ending.process
    guilty, innocent = (
        process.worker.slots.begin(one) for one in process.worker.slots.claim(process.refs(2))
    )
    # The scheduler and the broker are quick, and the process still takes messages.
    ending.before_the_kill = lambda: ending.claim(process.dispatched(1))
    ending.end(guilty)
    row = process.database.job(innocent.claim.ref.id)
    assert (row.status, row.lease, row.deferrals) == ("dispatched", 2, 1)
    assert process.database.job(guilty.claim.ref.id).status != "running"


def test_claim_on_its_way_while_its_process_is_ended_is_handed_back(
    ending: Ending, engine: Engine
) -> None:
    process = ending.process
    (guilty,) = (
        process.worker.slots.begin(one) for one in process.worker.slots.claim(process.refs(1))
    )
    (late,) = process.refs(1)
    with ThreadPoolExecutor(1) as watchdog:
        with transaction(engine) as locking:
            locking.exec_driver_sql("SELECT FROM jobs WHERE id = %s FOR UPDATE", (late.id,))
            ending.claim((late,))
            wait_for(lambda: late in process.worker.slots.unanswered())
            ended = watchdog.submit(ending.end, guilty)
            process.database.wait_until_waiting(2)
        ended.result(15)
    row = process.database.job(late.id)
    assert row.status == "queued", "else it waits for its lease to run out, and counts as lost"


def test_one_locked_row_does_not_keep_the_others_from_being_handed_back(
    ending: Ending, engine: Engine
) -> None:
    process = ending.process
    guilty, *innocent = (
        process.worker.slots.begin(one) for one in process.worker.slots.claim(process.refs(4))
    )
    (late,) = process.refs(1)
    with ThreadPoolExecutor(1) as watchdog, transaction(engine) as locking:
        locking.exec_driver_sql("SELECT FROM jobs WHERE id = %s FOR UPDATE", (late.id,))
        ending.claim((late,))
        wait_for(lambda: late in process.worker.slots.unanswered())
        watchdog.submit(ending.end, guilty)
        process.database.wait_until_waiting(2)  # the claim, and the last statement behind it
        rows = [process.database.job(held.claim.ref.id) for held in innocent]
    assert [(row.status, row.deferrals) for row in rows] == [("queued", 1)] * 3


def test_a_locked_row_of_another_run_does_not_keep_the_rest_from_being_handed_back(
    ending: Ending, engine: Engine
) -> None:
    process = ending.process
    guilty, locked, *innocent = (
        process.worker.slots.begin(one) for one in process.worker.slots.claim(process.refs(4))
    )
    process.flush()  # it has reported
    assert process.database.query("SELECT FROM processes WHERE name = 'w1'")
    with transaction(engine) as locking:
        lock = "SELECT FROM jobs WHERE id = %s FOR UPDATE"
        locking.exec_driver_sql(lock, (locked.claim.ref.id,))
        ending.end(guilty)
    statuses = [process.database.job(held.claim.ref.id).status for held in innocent]
    assert statuses == ["queued"] * 2
    assert process.database.job(guilty.claim.ref.id).status != "running"
    assert process.database.job(locked.claim.ref.id).status == "running", "the reaper finds it"
    # It has not left: a process that is silent is found sooner than one whose leases have to end.
    assert process.database.query("SELECT FROM processes WHERE name = 'w1'")


def test_a_process_that_hands_everything_back_leaves(ending: Ending) -> None:
    process = ending.process
    guilty, _ = (
        process.worker.slots.begin(one) for one in process.worker.slots.claim(process.refs(2))
    )
    process.flush()
    ending.end(guilty)
    assert not process.database.query("SELECT FROM processes WHERE name = 'w1'")
