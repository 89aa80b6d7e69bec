"""Due jobs join the queue without a stampede, in order, and starve neither others nor themselves.

Time is the tests' own: a turn of the scheduler every 50 ms, and workers that end a fixed
number of jobs in each.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from app.policy import pacing
from app.scheduler.dispatching.promoter import BATCH, LOOK_SECONDS, Promoter
from models.jobs import promote
from models.presence import Presence, announce
from tests.support.database_fixture import DatabaseFixture, FakePublisher
from tests.support.emptied import emptied

TURN_SECONDS = 0.05
SLOTS = 50

#: Jobs of tenant 1, older than any other, all due a while ago, a millisecond apart.
SCHEDULE = """
    INSERT INTO jobs (id, tenant_id, type, pool, payload, status, execute_at, dependency)
    SELECT lpad(to_hex(1000000 + n), 32, '0')::uuid, 1, 'echo', 'short', '{}', 'scheduled',
           now() - interval '1 hour' + n * interval '1 millisecond', %s
    FROM generate_series(1, %s) AS n
"""
#: The workers of a turn: the oldest at the broker are run to their end.
WORK = """
    WITH ran AS (
        UPDATE jobs SET status = 'running', started_at = now() WHERE id IN (
            SELECT id FROM jobs WHERE status = 'dispatched' AND pool = 'short'
            ORDER BY dispatched_at, id LIMIT %s)
        RETURNING id, tenant_id
    ) SELECT id::text, tenant_id FROM ran
"""
END = "UPDATE jobs SET status = 'succeeded', finished_at = now() WHERE status = 'running'"
COUNT = """
    SELECT count(*) FILTER (WHERE status = 'queued'),
           count(*) FILTER (WHERE status = 'dispatched')
    FROM jobs WHERE status IN ('queued', 'dispatched')
"""


@dataclass
class Floor:
    """A pool at work: promoter, dispatcher and workers of a given speed."""

    database: DatabaseFixture
    #: Jobs that the workers end in a second, if they have them.
    speed: float
    promote_per_second: float = 10_000.0
    now: float = 0.0
    ended: list[str] = field(default_factory=list)
    longest_line: int = 0
    most_waiting: int = 0

    def __post_init__(self) -> None:
        pools = self.database.pools()
        self.promoter = Promoter(
            self.database.engine, self.database.leader, pools, self.promote_per_second
        )
        self.dispatcher = self.database.dispatcher(FakePublisher(), pools)

    def turn(self) -> list[str]:
        """One turn; ids of the jobs that ended in it."""
        # On a busy machine the test outlives a lease and a sign of life.
        self.database.leader.run_once(self.now)
        announce(self.database.engine, Presence("w1", "worker", ["short"], slots=SLOTS))
        self.promoter.run_once(self.now)
        self.dispatcher.run_once(self.now)
        queued, dispatched = self.database.query(COUNT)[0]
        self.longest_line = max(self.longest_line, queued)
        self.most_waiting = max(self.most_waiting, queued + dispatched)
        ended = [row.id for row in self.database.query(WORK, round(self.speed * TURN_SECONDS))]
        self.database.execute(END)
        self.ended += ended
        self.now += TURN_SECONDS
        return ended

    def run(self, seconds: float) -> None:
        """Turns for so long."""
        for _ in range(round(seconds / TURN_SECONDS)):
            self.turn()


@pytest.fixture
def database(api_database: DatabaseFixture) -> DatabaseFixture:
    return emptied(api_database)


def promoter(database: DatabaseFixture) -> Promoter:
    return Promoter(database.engine, database.leader, database.pools(), per_second=1000)


def test_due_jobs_are_promoted_and_others_are_not(database: DatabaseFixture) -> None:
    database.execute(SCHEDULE, "", 2)
    later = database.query("SELECT id FROM jobs ORDER BY execute_at DESC LIMIT 1")[0].id
    database.execute("UPDATE jobs SET execute_at = now() + interval '1 hour' WHERE id = %s", later)
    role = promoter(database)
    assert role.run_once(0.0) == 0, "the first turn only looks at the clock"
    assert role.run_once(0.1) == 1
    statuses = [row.status for row in database.query("SELECT status FROM jobs ORDER BY execute_at")]
    assert statuses == ["queued", "scheduled"]
    assert role.run_once(0.2) == 0


#: Of many tenants, each a job that is due a moment ago.
RETRIES = """
    INSERT INTO jobs (id, tenant_id, type, pool, payload, status, execute_at, dependency)
    SELECT lpad(to_hex(9000000 + n), 32, '0')::uuid, 1 + n, 'echo', 'short', '{}', 'scheduled',
           now() - interval '1 second', ''
    FROM generate_series(1, %s) AS n
"""


@pytest.mark.parametrize("others", [1, 60])
def test_due_jobs_of_one_tenant_do_not_delay_those_of_all_others(
    database: DatabaseFixture, monkeypatch: pytest.MonkeyPatch, others: int
) -> None:
    monkeypatch.setattr(pacing, "RESERVE_SECONDS", 0.0)
    database.execute(SCHEDULE, "", 20_000)
    database.execute(RETRIES, others)
    floor = Floor(database, speed=100.0)
    floor.run(2.5 + others / 20)
    left = database.query("SELECT count(*) FROM jobs WHERE tenant_id > 1 AND status = 'scheduled'")
    assert left[0][0] == 0
    assert floor.longest_line <= 2 * SLOTS, "the pace is the same"
    own = database.query("SELECT count(*) FROM jobs WHERE tenant_id = 1 AND status = 'succeeded'")
    assert own[0][0] > 100, "the tenant with many goes on"


def test_turns_by_tenant_are_not_spent_where_there_is_no_room(database: DatabaseFixture) -> None:
    """A slow pool has room now and then; what is held back is looked at in every turn."""
    database.execute(SCHEDULE, "", 1_000)
    database.execute(RETRIES, 3)
    role = promoter(database)
    held = {"lanes": ["claude"]}
    promoted = [
        [role._promote("short", room, **held) for room in (1, 0, 0, 1, 0)] for _ in range(4)
    ]
    assert promoted == [[1, 0, 0, 1, 0]] * 4
    rows = database.query("SELECT DISTINCT tenant_id FROM jobs WHERE status = 'queued'")
    assert {row.tenant_id for row in rows} == {1, 2, 3, 4}


def test_a_leader_that_was_overtaken_promotes_nothing_by_tenant(
    database: DatabaseFixture,
) -> None:
    database.execute(SCHEDULE, "", 10)
    role = promoter(database)
    role._by_tenant["short"] = True
    overtake = "UPDATE leaders SET epoch = epoch + %s WHERE role = 'scheduler'"
    database.execute(overtake, 1)
    try:
        assert role._promote("short", 5, []) == 0
    finally:
        database.execute(overtake, -1)
    role._by_tenant["short"] = True
    assert role._promote("short", 5, []) == 5
    assert database.query("SELECT count(*) FROM jobs WHERE status = 'queued'")[0][0] == 5


def test_turns_by_tenant_go_round(
    database: DatabaseFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With more tenants than a statement looks at, and room for few of them."""
    most = promote.MOST_TENANTS
    database.execute(RETRIES, 3 * most)
    role, seen = promoter(database), []
    held = {"lanes": [], "tenants": [], "free_full": False}
    last = -1
    while left := database.query("SELECT count(*) FROM jobs WHERE status = 'scheduled'")[0][0]:
        [row] = role._read(role._by_tenant_sql, pool="short", room=40, after=last, **held)
        assert row.jobs == min(40, left)
        seen += [
            one.tenant_id
            for one in database.query(
                "DELETE FROM jobs WHERE status = 'queued' RETURNING tenant_id"
            )
        ]
        last = -1 if row.last is None else row.last
    assert seen == sorted(seen) and len(seen) == 3 * most, "nobody is passed over"


def test_a_job_that_the_counts_do_not_have_yet_is_found_a_moment_later(
    database: DatabaseFixture,
) -> None:
    pools = database.pools()
    role = Promoter(database.engine, database.leader, pools, per_second=1000)
    pools.read(0.0)
    assert not pools.has_scheduled
    assert role.run_once(0.0) == 0
    database.execute(SCHEDULE, "", 1)
    assert role.run_once(0.9 * LOOK_SECONDS) == 0, "the counts were read before, and said none"
    assert role.run_once(1.1 * LOOK_SECONDS) == 1
    database.execute("DELETE FROM jobs")
    database.execute(SCHEDULE, "", 1)
    pools.read(1.2 * LOOK_SECONDS)
    assert role.run_once(1.3 * LOOK_SECONDS) == 1, "with the counts it does not wait"


def test_a_stampede_keeps_the_pool_busy_and_leaves_the_line_short(
    database: DatabaseFixture,
) -> None:
    database.execute(SCHEDULE, "", 20_000)
    floor = Floor(database, speed=1000)
    floor.run(2.0)  # the rate of the pool becomes known
    before = len(floor.ended)
    floor.longest_line = floor.most_waiting = 0
    floor.run(2.0)
    assert len(floor.ended) - before >= 0.95 * 2 * 1000, "the workers were never idle"
    bound = max(SLOTS, 1000 * (pacing.RESERVE_SECONDS + TURN_SECONDS))
    assert floor.most_waiting <= SLOTS + bound * 1.1
    assert floor.longest_line == 0, "the window had room for all of it"


def test_a_newcomer_leaves_at_the_next_turn_in_the_middle_of_a_stampede(
    database: DatabaseFixture,
) -> None:
    """Though the queue is ordered by age, and all of the stampede is older."""
    database.execute(SCHEDULE, "", 20_000)
    floor = Floor(database, speed=1000)
    floor.run(2.0)
    waited = []
    for _ in range(10):
        job_id = database.submit(pool="short", tenant_id=2)
        begun = floor.now
        while job_id not in floor.turn():
            assert floor.now - begun < 1.0
        waited.append(floor.now - begun)
    ahead = SLOTS / 1000 + pacing.RESERVE_SECONDS + TURN_SECONDS
    assert max(waited) <= ahead + 2 * TURN_SECONDS


def test_after_an_outage_due_jobs_catch_up_in_order_and_at_the_pace(
    database: DatabaseFixture,
) -> None:
    database.execute(SCHEDULE, "", 3_000)
    wanted = [
        row.id for row in database.query("SELECT id::text FROM jobs ORDER BY execute_at LIMIT 3000")
    ]
    floor = Floor(database, speed=1000, promote_per_second=400)
    floor.run(1.0)
    floor.now += 600.0  # nobody leads for ten minutes
    floor.turn()
    before = len(floor.ended)
    floor.run(2.0)
    assert len(floor.ended) - before <= 400 * (2.0 + pacing.MOST_SECONDS), "nothing was saved up"
    assert len(floor.ended) - before >= 0.9 * 400 * 2.0
    # Exact up to what waited together at one moment.
    place = {job_id: number for number, job_id in enumerate(wanted)}
    off = max(abs(place[job_id] - number) for number, job_id in enumerate(floor.ended))
    assert off <= BATCH


def test_due_jobs_do_not_starve_behind_a_line_of_others(database: DatabaseFixture) -> None:
    database.execute(SCHEDULE, "", 2_000)
    database.execute(
        "INSERT INTO jobs (id, tenant_id, type, pool, payload, status)"
        " SELECT lpad(to_hex(n), 32, '0')::uuid, 2, 'echo', 'short', '{}', 'queued'"
        " FROM generate_series(1, 5000) AS n"
    )
    floor = Floor(database, speed=1000)
    floor.run(1.5)
    before = database.query("SELECT count(*) FROM jobs WHERE status = 'scheduled'")[0][0]
    ended = len(floor.ended)
    floor.run(1.0)
    joined = before - database.query("SELECT count(*) FROM jobs WHERE status = 'scheduled'")[0][0]
    assert 0.4 * 1000 <= joined <= 0.6 * 1000, "half of the pool's speed"
    assert len(floor.ended) - ended >= 0.95 * 1000


def test_what_a_broken_dependency_holds_back_is_in_nobodys_way(database: DatabaseFixture) -> None:
    """600 jobs that cannot run fell due before one that can."""
    database.execute(SCHEDULE, "claude", 600)
    database.execute("INSERT INTO circuits VALUES ('claude', 'open')")
    free = database.submit(pool="short")
    database.execute("UPDATE jobs SET status = 'dispatched' WHERE id = %s", free)
    database.execute("UPDATE jobs SET status = 'running' WHERE id = %s", free)
    database.execute(
        "UPDATE jobs SET status = 'scheduled', execute_at = now() - interval '1 s' WHERE id = %s",
        free,
    )
    floor = Floor(database, speed=1000)
    for _ in range(4):
        floor.turn()
    assert floor.ended == [free]
    parked = database.query("SELECT count(*) FROM jobs WHERE status = 'queued'")[0][0]
    assert parked == 600, "parked in their lane, no try and no slot spent"
    database.execute("UPDATE circuits SET state = 'closed'")
    floor.turn()
    assert len(floor.turn()) == round(1000 * TURN_SECONDS)
