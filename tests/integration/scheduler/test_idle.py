"""An idle scheduler asks little, and starts what comes as soon as a busy one."""

from __future__ import annotations

import math
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

import pytest
from celery import Celery
from sqlalchemy import event

from app.admission import Submission
from app.admission.admission import Admission
from app.config import Settings
from app.policy import idling, window
from app.scheduler import idle, role, service
from app.scheduler.dispatching import dispatcher
from app.scheduler.dispatching.pools import Pools
from app.scheduler.role import TimedRole, run_due
from models import wakeups
from models.job_counts import Drawn
from models.jobs.ids import new_id
from models.leadership import Leader
from models.presence import Presence, announce
from models.store.errors import StatementTooSlow
from models.store.session import transaction
from models.wakeups import (
    CHANNEL,
    SEND,
    SEND_IN_FLIGHT,
    WakeupListener,
    WakeupSender,
    wake_scheduler,
)
from tests.support.database_fixture import DatabaseFixture, FakePublisher
from tests.support.emptied import emptied
from tests.support.locks import held_lock
from tests.support.waiting import wait_for

LISTENERS = f"query = 'LISTEN {CHANNEL}' AND datname = current_database()"
#: No look by itself: what is seen was announced, or due.
NEVER = 3600.0


@pytest.fixture
def database(api_database: DatabaseFixture) -> DatabaseFixture:
    database = emptied(api_database)
    database.leader.resign()
    announce(database.engine, Presence("w1", "worker", ["medium"], slots=10))
    database.keep_present()
    return database


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> FakePublisher:
    broker = FakePublisher()
    monkeypatch.setattr(broker, "close", lambda: None, raising=False)
    monkeypatch.setattr(service, "Publisher", lambda *_: broker)
    return broker


@contextmanager
def running_scheduler(database: DatabaseFixture) -> Iterator[None]:
    scheduler = service.SchedulerService(database.engine, Celery(), Settings())
    stop = threading.Event()
    thread = threading.Thread(target=scheduler.run, args=(stop,))
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(60)
    assert not thread.is_alive()


@contextmanager
def idle_scheduler(
    database: DatabaseFixture, monkeypatch: pytest.MonkeyPatch, longest: float = NEVER
) -> Iterator[None]:
    """A scheduler that has put off its looks."""
    monkeypatch.setattr(idling, "EXPECTED_SECONDS", 0.3)
    monkeypatch.setattr(idling, "LONG_SECONDS", longest)
    put_off = threading.Event()
    fetch = idle.fetch

    def seen(*arguments: object) -> object:
        found = fetch(*arguments)  # type: ignore[arg-type]
        put_off.set()  # what comes now is not in it
        return found

    monkeypatch.setattr(idle, "fetch", seen)
    with running_scheduler(database):
        assert put_off.wait(60)
        time.sleep(0.2)
        yield


def test_an_idle_scheduler_asks_little(
    database: DatabaseFixture, broker: FakePublisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    with idle_scheduler(database, monkeypatch, longest=1.0):
        time.sleep(1.0)  # the first turns of housekeeping
        event.listen(
            database.engine, "before_cursor_execute", lambda *given: asked.append(given[2])
        )
        began = time.monotonic()
        time.sleep(3.0)
        counted, seconds = Counter(asked), time.monotonic() - began
    assert counted.total() < 30 * seconds, counted


def work_looks(database: DatabaseFixture, leader: Leader) -> idle.WorkLooks:
    """Of roles that found no job."""
    return idle.WorkLooks(
        database.engine,
        leader,
        [],
        lambda: math.inf,
        seen=Drawn,
        reach_broker=lambda _: True,
    )


@contextmanager
def pausing_scheduler(
    database: DatabaseFixture, monkeypatch: pytest.MonkeyPatch
) -> Iterator[list[str]]:
    """A scheduler whose roles look only if the state has changed; what it asks."""
    monkeypatch.setattr(idle, "MOST_PAUSES", NEVER)
    asked: list[str] = []
    with idle_scheduler(database, monkeypatch, longest=0.2):
        wait_for(lambda: credit(database) == 10, 30)
        time.sleep(1.0)
        event.listen(
            database.engine, "before_cursor_execute", lambda *given: asked.append(given[2])
        )
        yield asked


def test_while_nothing_changes_one_statement_looks_for_all_roles(
    database: DatabaseFixture, broker: FakePublisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pausing_scheduler(database, monkeypatch) as asked:
        wait_for(lambda: sum("read_state" in one for one in asked) >= 5, 30)
    assert not [one for one in asked if "read_drawn" in one or "find_due" in one], asked


def test_after_so_many_pauses_the_roles_look(
    database: DatabaseFixture, broker: FakePublisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pausing_scheduler(database, monkeypatch) as asked:
        monkeypatch.setattr(idle, "MOST_PAUSES", 3)
        wait_for(lambda: any("read_drawn" in one for one in asked), 30)


def test_a_transaction_that_began_before_the_pause_is_not_missed(
    database: DatabaseFixture, broker: FakePublisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = database.submit(execute_at=datetime.now(UTC) + timedelta(hours=1))
    with pausing_scheduler(database, monkeypatch) as asked:
        with transaction(database.engine) as connection:
            connection.exec_driver_sql("UPDATE jobs SET status = 'queued'")
            del asked[:]
            # Its numbers are drawn; roles that look do not see the job.
            wait_for(lambda: sum("read_state" in one for one in asked) >= 3, 30)
            assert not broker.sent
        wait_for(lambda: [sent.id for sent in broker.sent] == [job_id], 30)


def test_new_slots_and_due_jobs_end_the_pauses(
    database: DatabaseFixture, broker: FakePublisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pausing_scheduler(database, monkeypatch):
        announce(database.engine, Presence("w1", "worker", ["medium"], slots=20))
        wait_for(lambda: credit(database) == 20, 30)
        due = datetime.now(UTC) + timedelta(seconds=2)
        job_id = database.submit(execute_at=due)
        wait_for(lambda: [sent.id for sent in broker.sent] == [job_id], 30)


def test_a_dispatcher_that_failed_has_not_seen_that_there_is_no_work(
    database: DatabaseFixture, broker: FakePublisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(role, "SLOW_SECONDS", 0.1)
    failed = threading.Event()

    def fail(pools: Pools) -> bool:
        monkeypatch.setattr(Pools, "at_rest", at_rest)
        failed.set()
        raise StatementTooSlow("somebody has locked the counts")

    at_rest = Pools.at_rest
    with pausing_scheduler(database, monkeypatch):
        monkeypatch.setattr(Pools, "at_rest", fail)
        job_id = database.submit()
        wait_for(lambda: [sent.id for sent in broker.sent] == [job_id], 30)
    assert failed.is_set()


def test_a_bug_in_reaching_the_broker_does_not_end_the_scheduler(
    database: DatabaseFixture, broker: FakePublisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatcher, "BROKER_PING_SECONDS", 0.2)
    monkeypatch.setattr(role, "FAILED_SECONDS", 0.1)
    failed = threading.Event()

    def fail() -> None:
        failed.set()
        raise AttributeError("half closed")

    ping = broker.ping
    with pausing_scheduler(database, monkeypatch):
        monkeypatch.setattr(broker, "ping", fail)
        assert failed.wait(30)
        monkeypatch.setattr(broker, "ping", ping)
        job_id = database.submit()
        wait_for(lambda: [sent.id for sent in broker.sent] == [job_id], 30)


def test_a_locked_table_is_not_waited_for(database: DatabaseFixture) -> None:
    leader = Leader(database.engine, "s1")
    leader.run_once(0.0)
    looks = work_looks(database, leader)
    looks._listener.listening = looks.idle = True
    with held_lock(database, "LOCK TABLE replays IN ACCESS EXCLUSIVE MODE"):
        began = time.monotonic()
        looks.put_off(100.0)
        assert time.monotonic() - began < 4, "the lease would not be renewed"
    assert not looks.idle
    looks.put_off(100.0)
    assert looks.idle
    looks.start()
    looks.close()


@pytest.mark.parametrize("state", ["running", "cancelled"])
def test_a_running_replay_may_be_work_although_nothing_changes(
    database: DatabaseFixture, state: str
) -> None:
    """As of a tenant that is away, and will be back."""
    database.execute(
        "INSERT INTO replays (id, tenant_id, digest, before, position, state)"
        f" VALUES (gen_random_uuid(), 1, 'x', now(), gen_random_uuid(), '{state}')"
    )
    leader = Leader(database.engine, "s1")
    leader.run_once(0.0)
    looks = work_looks(database, leader)
    looks._listener.listening = True
    looks._seen = lambda: looks._read_state()[0].drawn
    looks.put_off(100.0)
    assert looks.idle
    assert (looks._without_work is None) == (state == "running")
    leader.resign()
    leader.run_once(0.0)
    looks.begin_turn(200.0, [])
    assert looks._without_work is None, "another lease, maybe after that of another leader"
    looks.start()
    looks.close()


def test_roles_are_on_time_again_after_work_that_nobody_announced(
    database: DatabaseFixture, broker: FakePublisher
) -> None:
    scheduler = service.SchedulerService(database.engine, Celery(), Settings())
    scheduler._turn(threading.Event())
    scheduler._looks.idle = True
    for timed in scheduler._roles:
        timed.due = 0.0
    scheduler._turn(threading.Event())
    assert scheduler._reaping.due > time.monotonic() + 5.0, "rows of roles that watch are no work"
    database.submit(execute_at=datetime.now(UTC) - timedelta(seconds=1))
    scheduler._looks.idle = True
    for timed in scheduler._roles:
        timed.due = time.monotonic() + 100.0 if timed.idle_seconds else 0.0
    scheduler._turn(threading.Event())
    assert not scheduler._looks.idle
    assert scheduler._reaping.due < time.monotonic() + 5.0
    # In flight, and so nothing for a role to touch: its wakeup was lost.
    scheduler._looks.idle = True
    for timed in scheduler._roles:
        timed.due = time.monotonic() + 100.0
    scheduler._looks._look_within = lambda: 1.0
    scheduler._looks._put_off_until = 0.0
    scheduler._turn(threading.Event())
    assert scheduler._reaping.due < time.monotonic() + 5.0
    scheduler._reaping.not_before = time.monotonic() + 50.0
    scheduler._looks.end_idling(time.monotonic(), scheduler._roles)
    assert scheduler._reaping.due == scheduler._reaping.not_before, "workers renew first"
    scheduler._leader.resign()
    scheduler._looks.start()
    scheduler._looks.close()


def test_a_broker_that_goes_away_ends_the_pauses(
    database: DatabaseFixture, broker: FakePublisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatcher, "BROKER_PING_SECONDS", 0.2)
    with pausing_scheduler(database, monkeypatch) as asked:
        wait_for(lambda: sum("read_state" in one for one in asked) >= 2, 30)
        broker.away = True
        wait_for(lambda: credit(database) == 0, 30)


def test_a_wakeup_ends_the_pause(
    database: DatabaseFixture, broker: FakePublisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    with idle_scheduler(database, monkeypatch):
        job_id = database.submit()
        time.sleep(0.5)
        assert not broker.sent, "it has put off its looks"
        wake_scheduler(database.engine)
        wait_for(lambda: bool(broker.sent), 30)
    assert [sent.id for sent in broker.sent] == [job_id]


def test_after_a_wakeup_roles_that_had_nothing_to_do_are_on_time_again(
    database: DatabaseFixture,
) -> None:
    leader = Leader(database.engine, "s1")
    leader.run_once(0.0)
    looks = work_looks(database, leader)
    announcer = service.Announcer(database.engine, "s1")
    calm, other = (TimedRole(announcer, 1.0, idle_seconds=one) for one in (5.0, 0.0))
    looks.idle = True
    run_due([calm, other], leader, 100.0, idle=looks.idle)
    assert (calm.due, other.due) == (105.0, 101.0)
    other.due = 110.0
    looks.begin_turn(101.0, [calm, other])
    assert (calm.due, other.due) == (105.0, 110.0), "nobody has called"
    looks._woken.set()
    looks.begin_turn(101.0, [calm, other])
    assert (calm.due, other.due, looks.idle) == (102.0, 110.0, False)
    looks.start()
    looks.close()


def test_admission_wakes_it(
    database: DatabaseFixture, broker: FakePublisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    admission = Admission(database.engine, FakePublisher(), 5.0)
    with idle_scheduler(database, monkeypatch):
        job_id = new_id()
        # By a dependency without a closed circuit, say: not by the express lane.
        admission.admit([Submission(job_id, 1, "echo", "medium", "{}", express=False)])
        wait_for(lambda: bool(broker.sent), 30)
    admission.close(1.0)
    assert [sent.id for sent in broker.sent] == [job_id]


def test_a_lost_wakeup_costs_the_time_until_the_next_look(
    database: DatabaseFixture, broker: FakePublisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    with idle_scheduler(database, monkeypatch, longest=0.5):
        job_id = database.submit()
        wait_for(lambda: bool(broker.sent), 30)
    assert [sent.id for sent in broker.sent] == [job_id]


def test_a_job_that_falls_due_is_not_announced(
    database: DatabaseFixture, broker: FakePublisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    due = datetime.now(UTC) + timedelta(seconds=4)
    job_id = database.submit(execute_at=due)
    with idle_scheduler(database, monkeypatch):
        wait_for(lambda: bool(broker.sent), 30)
        late = (datetime.now(UTC) - due).total_seconds()
    assert [sent.id for sent in broker.sent] == [job_id]
    assert 0.0 <= late < 15, "it would not look by itself"


def test_a_lost_connection_is_replaced_and_what_came_meanwhile_is_looked_for(
    database: DatabaseFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wakeups, "RETRY_SECONDS", 0.1)
    heard: list[float] = []
    listener = WakeupListener(database.engine, lambda _: heard.append(time.monotonic()))
    listener.start()
    try:
        wait_for(lambda: listener.listening, 30)
        assert len(heard) == 1
        database.query(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {LISTENERS}")
        wait_for(lambda: len(heard) == 2, 30)
        wait_for(lambda: listener.listening, 30)
        wake_scheduler(database.engine)
        wait_for(lambda: len(heard) == 3, 30)
    finally:
        listener.close()
    assert not listener.is_alive()
    wait_for(lambda: not database.query(f"SELECT FROM pg_stat_activity WHERE {LISTENERS}"), 30)


def test_a_process_sends_few_wakeups(
    database: DatabaseFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[str] = []
    monkeypatch.setattr(wakeups, "wake_scheduler", lambda _, said: sent.append(said))
    monkeypatch.setattr(wakeups, "SEND_SECONDS", 60.0)
    sender = WakeupSender(database.engine)
    for _ in range(1000):
        sender.send(SEND_IN_FLIGHT)
    wait_for(lambda: len(sent) == 1, 15)
    for _ in range(1000):
        sender.send(SEND)  # says more than the one before
        sender.send(SEND_IN_FLIGHT)  # says less
    sender.close(15.0)
    assert sent == [SEND_IN_FLIGHT, SEND]


@contextmanager
def open_lane(database: DatabaseFixture, monkeypatch: pytest.MonkeyPatch) -> Iterator[Admission]:
    """Admission beside an idle scheduler that has granted ten free slots."""
    admission = Admission(database.engine, FakePublisher(), 5.0)
    with idle_scheduler(database, monkeypatch):
        wait_for(lambda: credit(database) == 10, 30)
        yield admission
    admission.close(1.0)


def credit(database: DatabaseFixture) -> int:
    rows = database.query("SELECT credit FROM express_lanes WHERE pool = 'medium'")
    return int(rows[0][0]) if rows else -1


def admit(admission: Admission, jobs: int = 1) -> list[str]:
    ids = [new_id() for _ in range(jobs)]
    admission.admit([Submission(one, 1, "echo", "medium", "{}", express=True) for one in ids])
    return ids


def test_while_no_job_is_queued_it_looks_a_few_times_a_second(
    database: DatabaseFixture, broker: FakePublisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    with open_lane(database, monkeypatch) as admission:
        admit(admission)
        wait_for(lambda: credit(database) == 9, 30)  # in flight: one slot less, and no refill
        event.listen(
            database.engine, "before_cursor_execute", lambda *given: asked.append(given[2])
        )
        began = time.monotonic()
        time.sleep(3.0)
        seconds = time.monotonic() - began
    looks = sum("read_pools" in one for one in asked)
    assert 1 <= looks < 8 * seconds, "every 40 ms would be 25"
    assert not broker.sent


def test_a_job_that_gets_no_credit_is_sent_at_once(
    database: DatabaseFixture, broker: FakePublisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(window, "REFILL_SECONDS", NEVER)
    with open_lane(database, monkeypatch) as admission:
        admit(admission)
        time.sleep(0.5)
        announce(database.engine, Presence("w1", "worker", ["medium"], slots=20))
        ids = admit(admission, 12)  # more than the credit; the scheduler would look in an hour
        wait_for(lambda: {sent.id for sent in broker.sent} == set(ids), 30)


def test_jobs_in_flight_wake_an_idle_scheduler_for_their_credit(
    database: DatabaseFixture, broker: FakePublisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_lane(database, monkeypatch) as admission:
        ids = admit(admission, 7)
        wait_for(lambda: credit(database) == 3, 30)
        database.execute("UPDATE jobs SET status = 'cancelled', finished_at = now()")
        # By itself it would look in an hour.
        wait_for(lambda: credit(database) == 10, 30)
    assert len(ids) == 7 and not broker.sent


def test_what_comes_soon_after_a_wakeup_of_jobs_in_flight_needs_none(
    database: DatabaseFixture, broker: FakePublisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A process sends one in half a second: the next job may be lost by its worker unannounced.
    monkeypatch.setattr(idle, "EXPECTED_SECONDS", 30.0)
    with open_lane(database, monkeypatch) as admission:
        admit(admission)
        database.execute("UPDATE jobs SET status = 'cancelled', finished_at = now()")
        wait_for(lambda: credit(database) == 10, 30)
        time.sleep(0.5)
        job_id = database.submit()
        wait_for(lambda: [sent.id for sent in broker.sent] == [job_id], 15)
