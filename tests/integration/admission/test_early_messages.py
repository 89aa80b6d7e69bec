"""Messages that are sent while their rows are being committed, and workers that are too early."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from app.admission import Admission, IdempotencyKey, Submission, admission
from app.errors import BrokerUnavailable
from app.policy.early_messages import STREAK
from models.jobs.admit import Outcome, admit_group
from models.jobs.admit_alone import admit_alone
from models.jobs.claim import JobRef
from models.jobs.dispatch import Dispatch
from models.jobs.ids import new_id
from models.jobs.offer import offer
from models.jobs.submission import Admitted
from models.presence import Presence, announce
from models.store.errors import StateStoreUnavailable
from tasks.worker import slots
from tests.support.database_fixture import DatabaseFixture, FakePublisher
from tests.support.emptied import COUNTS
from tests.support.one_worker import OneWorker, one_worker
from tests.support.waiting import wait_for

WITH_ROWS = "SELECT count(*) FROM jobs WHERE id = ANY (%s::uuid[])"


class WatchingPublisher(FakePublisher):
    """Notes for each message whether its row was there."""

    def __init__(self, database: DatabaseFixture) -> None:
        super().__init__()
        self._database = database
        self.early: dict[str, bool] = {}
        self.failed = 0

    def publish(self, dispatches: Sequence[Dispatch], *more: Any, **named: Any) -> bool:
        for each in dispatches:
            there = self._database.query(WITH_ROWS, [each.id])[0][0]
            self.early.setdefault(each.id, not there)
        try:
            return super().publish(dispatches, *more, **named)
        except BrokerUnavailable:
            self.failed += 1
            raise


class Process:
    """The admission of one process, and what happens before its statement is sent."""

    def __init__(self, database: DatabaseFixture) -> None:
        self.database = database
        self.publisher = WatchingPublisher(database)
        self.admission = Admission(database.engine, self.publisher, 5.0)
        self.before: Callable[[], object] = lambda: None

    def admit(self, key: IdempotencyKey | None = None, **fields: Any) -> str:
        """One job; its id, once its message was sent or is not going to be."""
        values = {"tenant_id": 1, "type": "echo", "pool": "medium", "payload": "{}", **fields}
        item = Submission(id=new_id(), **values)
        self.admission.admit([item], key)
        time.sleep(0.02)
        return item.id

    def open_lane(self) -> None:
        """Until the process sends messages early."""
        assert len(self.keep_open()) >= STREAK
        assert not any(self.publisher.early.values())

    def keep_open(self) -> list[str]:
        """A slow statement, say of a busy machine, closes the lane: the jobs to open it again."""
        admitted: list[str] = []
        until = time.monotonic() + 30
        while not self.admission._early.allowed("medium"):
            assert time.monotonic() < until, "no row of statements was quick"
            admitted.append(self.admit())
        wait_for(lambda: all(map(self.times_sent, admitted)))
        return admitted

    def times_sent(self, job_id: str) -> int:
        return sum(each.id == job_id for each in self.publisher.sent)


@pytest.fixture
def process(api_database: DatabaseFixture, monkeypatch: pytest.MonkeyPatch) -> Iterator[Process]:
    api_database.execute(f"TRUNCATE jobs, idempotency_keys, express_lanes, {COUNTS}")
    for pool in ("medium", "short"):
        api_database.execute("INSERT INTO express_lanes (pool, credit) VALUES (%s, 1000)", pool)
    made = Process(api_database)

    def admit(*arguments: Any) -> list[Outcome]:
        made.before()
        return admit_group(*arguments)

    def admit_one(*arguments: Any) -> Admitted:
        made.before()
        return admit_alone(*arguments)

    monkeypatch.setattr(admission, "admit_group", admit)
    monkeypatch.setattr(admission, "admit_alone", admit_one)
    yield made
    made.admission.close(5)


def await_sent(process: Process, then_seconds: float = 0.0) -> Callable[[], None]:
    """A statement that is as slow as a message, and ``then_seconds`` slower."""
    before = len(process.publisher.sent)

    def wait() -> None:
        wait_for(lambda: len(process.publisher.sent) > before)
        time.sleep(then_seconds)

    return wait


def test_message_travels_while_its_row_is_committed(process: Process) -> None:
    process.open_lane()
    process.before = await_sent(process)
    job_id = process.admit()
    assert process.publisher.early[job_id]
    assert process.database.job(job_id).status == "dispatched"
    assert process.times_sent(job_id) >= 1


def test_message_that_was_much_too_early_is_sent_again(process: Process) -> None:
    process.open_lane()
    process.before = await_sent(process, 0.02)
    job_id = process.admit()
    wait_for(lambda: process.times_sent(job_id) == 2)
    assert process.publisher.early[job_id]


def test_store_that_is_slow_gets_no_messages_before_its_rows(process: Process) -> None:
    process.open_lane()
    process.before = lambda: time.sleep(0.05)
    process.admit()
    later = [process.admit() for _ in range(2 * STREAK)]
    wait_for(lambda: all(process.times_sent(job_id) == 1 for job_id in later))
    assert not any(process.publisher.early[job_id] for job_id in later)


@pytest.mark.parametrize(
    "fields",
    [
        {"key": IdempotencyKey("k", b"a")},
        {"execute_at": datetime.now(UTC) + timedelta(days=1)},
        {"express": False},
        {"pool": "short"},
    ],
    ids=["key", "later", "free", "other-pool"],
)
def test_others_are_sent_when_their_row_is_there_or_not_at_all(
    process: Process, fields: dict[str, Any]
) -> None:
    process.open_lane()
    process.before = lambda: time.sleep(0.05)
    assert not process.publisher.early.get(process.admit(**fields))


def test_after_one_that_was_queued_none_is_early_for_a_while(process: Process) -> None:
    process.open_lane()
    process.database.execute("UPDATE express_lanes SET credit = 0")
    process.before = await_sent(process)
    queued = process.admit()
    assert process.times_sent(queued) == 1, "it was to be expected that it is dispatched"
    row = process.database.job(queued)
    assert (row.status, row.lease) == ("queued", 0)
    assert not process.publisher.early.get(process.admit())


def test_broker_that_is_away_before_the_commit_leaves_no_job_without_a_message(
    process: Process,
) -> None:
    process.open_lane()
    process.publisher.away = True

    def back() -> None:
        wait_for(lambda: process.publisher.failed > 0)
        wait_for(lambda: process.admission._express_from > 0)
        process.publisher.away = False

    process.before = back
    job_id = process.admit()
    wait_for(lambda: process.times_sent(job_id) == 1)
    assert process.database.job(job_id).status == "dispatched"


def test_admission_that_fails_leaves_a_message_that_does_nothing(process: Process) -> None:
    process.open_lane()
    sent = await_sent(process)

    def fail() -> None:
        sent()
        raise StateStoreUnavailable("away")

    process.before = fail
    with pytest.raises(StateStoreUnavailable):
        process.admit()
    lost = process.publisher.sent[-1]
    ran: list[str] = []
    with one_worker(process.database) as one:
        one.act = lambda ctx, payload: ran.append(ctx.job_id)
        one.execute((JobRef(lost.id, lost.lease),))
    assert ran == []
    process.before = lambda: time.sleep(0.05)
    assert not process.publisher.early.get(process.admit()), "begins anew"


@pytest.fixture
def offered(process: Process) -> Callable[[], None]:
    """Lets a worker offer to run a job."""
    process.database.execute("DELETE FROM processes")

    def make() -> None:
        announce(process.database.engine, Presence("w1", "worker", ["medium"], slots=4))
        assert offer(process.database.engine, "w1", ["medium"])

    return make


def test_job_that_a_worker_is_given_has_no_message(
    process: Process, offered: Callable[[], None]
) -> None:
    process.open_lane()
    offered()
    known = process.admit()
    assert process.database.job(known).status == "dispatched", "it was not known of the offer"
    given = [process.admit(key) for key in (None, IdempotencyKey("k", b"a")) if offered() is None]
    time.sleep(0.05)
    for job_id in given:
        row = process.database.job(job_id)
        assert (row.status, row.lease, row.worker) == ("running", 1, "w1")
        assert process.times_sent(job_id) == 0


def test_job_that_nobody_takes_after_all_has_a_message(
    process: Process, offered: Callable[[], None]
) -> None:
    process.open_lane()
    for _ in range(2):
        offered()
        process.admit()
    job_id = process.admit()
    wait_for(lambda: process.times_sent(job_id) == 1)
    assert process.database.job(job_id).status == "dispatched"
    assert not process.publisher.early[job_id]
    process.keep_open()
    process.before = await_sent(process)
    assert process.publisher.early[process.admit()], "the next one is not waited for"


@pytest.mark.parametrize(
    "fields",
    [
        {"not_after": datetime.now(UTC) + timedelta(days=1)},
        {"execute_at": datetime.now(UTC) - timedelta(hours=1)},
    ],
    ids=["limit", "time"],
)
def test_others_are_not_given_away(
    process: Process, offered: Callable[[], None], fields: dict[str, Any]
) -> None:
    for _ in range(2):
        offered()
        process.admit()
    offered()
    job_id = process.admit(**fields)
    wait_for(lambda: process.times_sent(job_id) == 1)
    assert process.database.job(job_id).status == "dispatched"


def express_refs(database: DatabaseFixture, count: int) -> tuple[JobRef, ...]:
    """Jobs that are dispatched under their first lease."""
    ids = [database.submit(pool="short", express=True) for _ in range(count)]
    return tuple(JobRef(job_id, 1) for job_id in ids)


def execute_early(one: OneWorker, job_id: str, then: Callable[[], object]) -> None:
    """A message that arrives before its row; ``then`` is called once the worker has looked."""
    looked = threading.Event()
    claim = one.worker.slots._claims._write

    def look(messages: Sequence[tuple[JobRef, ...]]) -> Any:
        found = claim(messages)
        looked.set()
        return found

    one.worker.slots._claims._write = look
    early = threading.Thread(target=one.execute, args=((JobRef(job_id, 1),),))
    early.start()
    assert looked.wait(15)
    then()
    one.database.submit(id=job_id, pool="short", express=True)
    early.join(15)


def test_worker_that_is_too_early_runs_the_job_once(
    process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slots, "LATE_SECONDS", (0.05,) * 100)  # also on a busy machine
    ran: list[str] = []
    job_id = new_id()
    with one_worker(process.database) as one:
        one.act = lambda ctx, payload: ran.append(ctx.job_id)
        execute_early(one, job_id, lambda: None)
        one.execute((JobRef(job_id, 1),))
        one.flush()
    assert ran == [job_id]
    assert process.database.job(job_id).status == "succeeded"


def test_worker_that_is_too_early_and_drains_hands_the_job_back(
    process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slots, "LATE_SECONDS", (0.05,) * 100)
    job_id = new_id()
    with one_worker(process.database) as one:
        one.act = lambda ctx, payload: pytest.fail("it drains")
        execute_early(one, job_id, one.worker.slots.note_drain)
        one.flush()
    assert process.database.job(job_id).status == "queued", "it need not wait for its lease"


def test_jobs_of_a_message_do_not_wait_for_one_that_is_cancelled(
    process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slots, "LATE_SECONDS", (1.0, 1.0))
    began: list[float] = []
    with one_worker(process.database) as one:
        one.act = lambda ctx, payload: began.append(time.monotonic())
        refs = express_refs(process.database, 3)
        process.database.execute(
            "UPDATE jobs SET status = 'cancelled', finished_at = now() WHERE id = %s", refs[1].id
        )
        one.execute(refs)
        ended = time.monotonic()
    assert len(began) == 2
    assert ended - max(began) > 1.0, "it is looked for meanwhile"


def test_jobs_of_a_message_run_though_some_of_them_were_late(
    process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slots, "LATE_SECONDS", (0.05,) * 100)
    ran: list[str] = []
    late = [new_id() for _ in range(3)]
    with one_worker(process.database) as one:
        there = express_refs(process.database, 3)
        refs = there + tuple(JobRef(job_id, 1) for job_id in late)

        def act(ctx: Any, payload: Any) -> None:
            ran.append(ctx.job_id)
            if len(ran) == 3:  # the others are only now committed, one by one
                for job_id in late:
                    process.database.submit(id=job_id, pool="short", express=True)

        one.act = act
        one.execute(refs)
        one.flush()
    assert sorted(ran) == sorted(ref.id for ref in refs)
