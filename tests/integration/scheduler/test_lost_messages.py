"""Dispatched jobs whose message is lost: found while their queue is empty."""

from __future__ import annotations

import time
from collections.abc import Collection

import pytest

from app.broker.queue_counts import QueueCounts
from app.policy.lost_messages import LEAST_SECONDS
from app.scheduler.maintenance.lost_messages import LostMessages
from app.scheduler.maintenance.reaper import Reaper
from models.jobs.claim import JobRef
from models.leadership import Leader
from models.presence import Presence, announce
from tests.support.database_fixture import DatabaseFixture
from tests.support.locks import held_lock


class KnownCounts(QueueCounts):
    """A broker whose queues are as the test says."""

    def __init__(self) -> None:
        self.empty: set[str] = set()
        self.asked: set[str] = set()

    def ask(self, names: Collection[str]) -> None:
        self.asked = set(names)

    def empty_at(self, name: str) -> float | None:
        return time.monotonic() if name in self.empty else None


@pytest.fixture
def counts() -> KnownCounts:
    return KnownCounts()


@pytest.fixture
def role(database: DatabaseFixture, counts: KnownCounts) -> LostMessages:
    return LostMessages(database.engine, database.leader, counts)


def dispatched(database: DatabaseFixture, seconds_ago: float, pool: str = "medium") -> JobRef:
    job_id = database.submit(pool=pool)
    (found,) = [one for one in database.dispatch(pool) if one.id == job_id]
    database.execute(
        "UPDATE jobs SET dispatched_at = now() - make_interval(secs => %s) WHERE id = %s",
        *(seconds_ago, job_id),
    )
    return JobRef(found.id, found.lease)


def reap(database: DatabaseFixture) -> None:
    Reaper(database.engine, database.leader, database.types).run_once(0.0)


def test_locked_row_does_not_hide_the_others(
    database: DatabaseFixture, counts: KnownCounts, role: LostMessages
) -> None:
    locked, lost = dispatched(database, 30.0), dispatched(database, 30.0)
    counts.empty = {"medium"}
    with held_lock(database, "SELECT FROM jobs WHERE id = %s FOR UPDATE", locked.id):
        assert role.run_once(time.monotonic()) == 1
        reap(database)
        assert database.job(lost.id).status == "queued"
    assert role.run_once(time.monotonic()) == 1


def test_lost_message_is_found_once_its_queue_is_empty(
    database: DatabaseFixture, counts: KnownCounts, role: LostMessages
) -> None:
    lost, fresh = dispatched(database, 60.0), dispatched(database, -60.0)
    assert role.run_once(time.monotonic()) == 0, "its message may wait in the queue"
    assert counts.asked == {"medium"}
    counts.empty = {"medium"}
    assert role.run_once(time.monotonic()) == 1
    reap(database)
    row = database.job(lost.id)
    assert (row.status, row.attempt, row.crashes) == ("queued", 0, 0)
    assert database.job(fresh.id).status == "dispatched"
    assert database.claim(lost) == (), "if the message comes after all, it means nothing"
    assert not database.miscounted()


def test_wait_grows_while_messages_seem_lost(
    database: DatabaseFixture, counts: KnownCounts, role: LostMessages
) -> None:
    counts.empty = {"medium"}
    dispatched(database, 60.0)
    assert role.run_once(time.monotonic()) == 1
    assert role._waits == {"medium": 2 * LEAST_SECONDS}
    reap(database)
    role._waits["medium"] = 60.0
    dispatched(database, 10.0)
    assert role.run_once(time.monotonic()) == 0
    database.execute("UPDATE jobs SET dispatched_at = now() - interval '90 seconds'")
    assert role.run_once(time.monotonic()) > 0


def report(database: DatabaseFixture, *children: tuple[str, str, int]) -> None:
    """Children of prefork workers of ``long``: their names, their worker's, and whether busy."""
    for name, parent, busy in children:
        presence = Presence(
            name, "worker", pools=["long"], slots=1, busy=busy, parent=parent, node="node"
        )
        assert announce(database.engine, presence)


@pytest.mark.parametrize(
    ("busy", "lost"),
    [((0, 1, 0), 1), ((0, 0, 0), 1), ((0, 0, 1), 0), ((1, 1, 1), 0)],
    ids=["a slot free at each", "all free", "one worker is full", "all are"],
)
def test_lost_message_of_prefork_workers_is_found_where_each_has_a_free_slot(
    database: DatabaseFixture,
    counts: KnownCounts,
    role: LostMessages,
    busy: tuple[int, int, int],
    lost: int,
) -> None:
    a, b, c = busy
    report(database, ("child-1", "first", a), ("child-2", "first", b), ("child-3", "second", c))
    counts.empty = {"long"}
    dispatched(database, LEAST_SECONDS + 0.1, "long")
    assert role.run_once(time.monotonic()) == 0, "the slot may have been taken since"
    database.execute("UPDATE jobs SET dispatched_at = now() - interval '8 seconds'")
    assert role.run_once(time.monotonic()) == lost


def test_prefork_workers_fetch_ahead_and_claims_that_came_are_safe(
    database: DatabaseFixture, counts: KnownCounts, role: LostMessages
) -> None:
    counts.empty = {"medium", "long"}
    dispatched(database, 30.0, "long")
    claimed = dispatched(database, 30.0)
    assert database.claim(claimed)
    assert role.run_once(time.monotonic()) == 0
    assert counts.asked == set()


def test_only_the_leader_expires(database: DatabaseFixture, counts: KnownCounts) -> None:
    counts.empty = {"medium"}
    dispatched(database, 30.0)
    late = Leader(database.engine, "late")
    late.epoch = (database.leader.epoch or 0) - 1
    assert LostMessages(database.engine, late, counts).run_once(time.monotonic()) == 0
