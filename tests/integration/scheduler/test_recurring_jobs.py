"""Each tick of a schedule becomes one job, however many lead and wherever they die."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import Row

from app.admission.submission_limits import SubmissionLimits
from app.admission.tenant_limits import TenantLimits
from app.reads.times import rfc3339
from app.scheduler.maintenance import recurring_jobs
from app.scheduler.maintenance.recurring_jobs import (
    ANY_DUE,
    BATCH,
    FIND_OLDEST,
    FIND_YOUNGEST,
    RecurringJobs,
)
from app.tenants import schedules
from app.tenants.schedules import RecurringSchedule
from models.jobs.ids import new_id
from models.leadership import Leader
from models.pools import POOLS
from tests.integration.api.test_metrics import scrape
from tests.support.database_fixture import DatabaseFixture
from tests.support.emptied import emptied
from tests.support.plans import indexes_in, pages_read, plan_of
from tests.support.race import Race, assert_contested

MINUTE = timedelta(minutes=1)


@pytest.fixture
def database(api_database: DatabaseFixture) -> DatabaseFixture:
    found = emptied(api_database)
    found.execute("UPDATE leaders SET expires_at = now() + interval '1 hour'")
    return found


def role(
    database: DatabaseFixture, leader: Leader | None = None, served: Sequence[str] = tuple(POOLS)
) -> RecurringJobs:
    limits = SubmissionLimits(per_second=0, burst=0, queue_depth=1_000_000)
    return RecurringJobs(
        database.engine,
        leader or database.leader,
        database.types,
        served,
        TenantLimits(database.engine, limits),
    )


def keep(database: DatabaseFixture, **fields: Any) -> str:
    """A schedule whose tick came a second ago, and then comes at New Year; its id."""
    values: dict[str, Any] = {
        "id": new_id(),
        "tenant_id": 1,
        "cron": "0 0 1 1 *",
        "timezone": "UTC",
        "overlap": "allow",
        "catch_up": "one",
        "type": "echo",
        "payload": "{}",
        "priority": 0,
        "paused": False,
        "next_at": clock(database) - timedelta(seconds=1),
        **fields,
    }
    schedule = RecurringSchedule(name=values.pop("name", values["id"]), **values)
    return schedules.create(database.engine, schedule).id


def clock(database: DatabaseFixture) -> datetime:
    now: datetime = database.query("SELECT now()")[0][0]
    return now


def minutes_ago(database: DatabaseFixture, count: int) -> datetime:
    """A full minute, by the database's clock."""
    return clock(database).replace(second=0, microsecond=0) - MINUTE * count


def row(database: DatabaseFixture, schedule_id: str) -> Row[Any]:
    return database.query("SELECT * FROM schedules WHERE id = %s", schedule_id)[0]


def jobs(database: DatabaseFixture) -> Sequence[Row[Any]]:
    return database.query("SELECT * FROM jobs ORDER BY id")


def events(database: DatabaseFixture) -> list[tuple[str, dict[str, Any]]]:
    """Of ticks that became no job."""
    rows = database.query("SELECT * FROM events WHERE kind <> 'schedule_run' ORDER BY id")
    return [(e.kind, e.detail) for e in rows]


def test_tick_becomes_the_job_that_a_submission_would_be(database: DatabaseFixture) -> None:
    schedule_id = keep(database, type="echo", payload='{"big": 123456789012345678901}', priority=7)
    tick = row(database, schedule_id).next_at
    assert role(database).run_once(0.0) == 1
    (job,) = jobs(database)
    database.submit(type="echo", pool=job.pool)
    submitted = jobs(database)[1]
    own = {"id", "created_at", "execute_at", "payload", "priority"}
    assert {n: v for n, v in job._mapping.items() if n not in own} == {
        n: v for n, v in submitted._mapping.items() if n not in own
    }
    assert (job.status, job.execute_at, job.priority) == ("queued", tick, 7)
    assert job.payload == {"big": 123456789012345678901}
    after = row(database, schedule_id)
    assert (after.last_at, after.last_job_id, after.made, after.skipped) == (tick, job.id, 1, 0)
    assert after.next_at > clock(database)
    (noted,) = database.query("SELECT tenant_id, kind, detail FROM events")
    told = {"schedule": schedule_id, "name": schedule_id, "at": rfc3339(tick)}
    assert tuple(noted) == (1, "schedule_run", told | {"job_id": str(job.id)})
    assert role(database).run_once(0.0) == 0
    assert not database.miscounted()


def test_scheduled_application_is_an_application(database: DatabaseFixture) -> None:
    work = {"candidate": "Ada", "role": "poet", "payload": {}}
    keep(database, type="score_application", payload=json.dumps(work))
    role(database).run_once(0.0)
    (job,) = jobs(database)
    assert job.dependency == (database.types["score_application"].dependency or "")
    (application,) = database.query("SELECT * FROM applications")
    assert (application.id, application.candidate, application.role) == (job.id, "Ada", "poet")


def test_job_goes_where_its_type_was_measured_to_belong(database: DatabaseFixture) -> None:
    declared = database.types["echo"].pool
    database.execute(
        "INSERT INTO job_types (type, declared_pool, pool) VALUES ('echo', %s, 'long')", declared
    )
    keep(database)
    role(database, served=(declared,)).run_once(0.0)
    keep(database)
    role(database).run_once(0.0)
    assert [job.pool for job in jobs(database)] == [declared, "long"], "first nobody served it"


def test_what_is_paused_ended_or_not_due_has_no_tick(database: DatabaseFixture) -> None:
    keep(database, paused=True)
    keep(database, next_at=None)
    keep(database, next_at=clock(database) + MINUTE)
    assert role(database).run_once(0.0) == 0
    assert not jobs(database)


def test_tick_is_skipped_while_the_job_before_has_not_ended(database: DatabaseFixture) -> None:
    schedule_id = keep(database, overlap="skip")
    role(database).run_once(0.0)
    (first,) = jobs(database)

    def again() -> None:
        database.execute("UPDATE schedules SET next_at = now() - interval '1 second'")
        role(database).run_once(0.0)

    again()
    assert len(jobs(database)) == 1
    found = row(database, schedule_id)
    assert (found.made, found.skipped, found.last_job_id) == (1, 1, first.id)
    ((kind, detail),) = events(database)
    assert kind == "schedule_skipped"
    assert (detail["reason"], detail["job_id"]) == ("overlap", str(first.id))
    database.execute("UPDATE jobs SET status = 'cancelled', finished_at = now()")
    again()
    assert len(jobs(database)) == 2
    database.execute("DELETE FROM jobs")  # retired
    again()
    assert len(jobs(database)) == 1


@pytest.mark.parametrize("catch_up", ["none", "one", "all"])
def test_ticks_of_an_outage_are_made_up_for_as_wished(
    database: DatabaseFixture, catch_up: str
) -> None:
    first = minutes_ago(database, 4)
    schedule_id = keep(database, cron="* * * * *", catch_up=catch_up, next_at=first)
    role(database).run_once(0.0)
    last = row(database, schedule_id).last_at
    due = [first + MINUTE * number for number in range(int((last - first) / MINUTE) + 1)]
    assert len(due) >= 5
    if catch_up == "all":
        assert [job.execute_at for job in jobs(database)] == due
        assert not events(database)
    else:
        assert [job.execute_at for job in jobs(database)] == due[-1:]
        ((kind, detail),) = events(database)
        assert (kind, detail["first"], detail["last"]) == (
            "schedule_missed",
            rfc3339(due[0]),
            rfc3339(due[-2]),
        )


def test_long_outage_is_made_up_for_in_order_over_many_turns(database: DatabaseFixture) -> None:
    schedule_id = keep(
        database, cron="* * * * *", catch_up="all", next_at=minutes_ago(database, 5_000)
    )
    behind, turns = role(database), 0
    while behind.run_once(0.0):
        turns += 1
    times = [job.execute_at for job in jobs(database)]
    last = row(database, schedule_id).last_at
    count = len(times)
    assert times == [last - MINUTE * back for back in reversed(range(count))]
    assert 1_000 <= count <= 1_001 and turns >= 10
    assert row(database, schedule_id).made == count


def test_ticks_on_time_do_not_wait_until_others_have_made_up_for_an_outage(
    database: DatabaseFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recurring_jobs, "TURN_SECONDS", 0.0)  # one schedule a turn
    early = minutes_ago(database, 900)
    behind = [keep(database, cron="* * * * *", catch_up="all", next_at=early) for _ in range(3)]
    on_time = keep(database)
    both = role(database)
    for _ in range(2):
        both.run_once(0.0)
    assert row(database, on_time).made == 1
    assert sum(row(database, each).made for each in behind) == 100


def test_schedule_that_cannot_have_jobs_is_in_nobodys_way(database: DatabaseFixture) -> None:
    early = clock(database) - timedelta(seconds=30)
    gone = keep(database, type="vanished", next_at=early)
    unfit = keep(database, type="score_application", payload='{"candidate": 7}', next_at=early)
    nowhere = keep(database, timezone="Atlantis/Capital", next_at=early)
    odd = keep(database, cron="what is this thing called", next_at=early)
    fine = keep(database)
    role(database).run_once(0.0)
    (job,) = jobs(database)
    assert row(database, fine).last_job_id == job.id
    told = {detail["schedule"]: (kind, detail["reason"]) for kind, detail in events(database)}
    assert told.keys() == {gone, unfit, nowhere, odd}
    assert told[gone][0] == told[unfit][0] == "schedule_skipped"
    assert "not registered" in told[gone][1] and "payload.candidate" in told[unfit][1]
    assert told[nowhere][0] == told[odd][0] == "schedule_paused"
    for each in (gone, unfit):
        assert row(database, each).skipped == 1 and row(database, each).next_at > clock(database)
    for each in (nowhere, odd):
        assert row(database, each).paused


def test_schedule_that_fails_stops_alone(
    database: DatabaseFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three ways: its ticks cannot be worked out, nor its jobs be written; the third is fine."""
    early = clock(database) - timedelta(seconds=30)
    odd = keep(database, cron="0 0 29 2 *", catch_up="all", next_at=early)
    unfit = keep(database, priority=7, next_at=early)
    fine = keep(database)
    decide, insert_jobs = recurring_jobs.decide, recurring_jobs.insert_jobs

    def work_out(rule: Any, *args: Any, **fields: Any) -> Any:
        if rule.cron == "0 0 29 2 *":
            raise OverflowError("date value out of range")
        return decide(rule, *args, **fields)

    def insert(connection: Any, submissions: Any) -> None:
        if any(each.priority == 7 for each in submissions):
            connection.exec_driver_sql("SELECT 1 / 0")
        insert_jobs(connection, submissions)

    monkeypatch.setattr(recurring_jobs, "decide", work_out)
    monkeypatch.setattr(recurring_jobs, "insert_jobs", insert)
    assert role(database).run_once(0.0) == 3
    (job,) = jobs(database)
    assert row(database, fine).last_job_id == job.id
    told = {detail["schedule"]: (kind, detail["reason"]) for kind, detail in events(database)}
    assert told == {
        odd: ("schedule_paused", "it failed: OverflowError"),
        unfit: ("schedule_paused", "it failed: DataError"),
    }
    assert [row(database, each).paused for each in (odd, unfit, fine)] == [True, True, False]
    assert row(database, unfit).made == 0 and role(database).run_once(0.0) == 0


def test_last_tick_ends_a_schedule(database: DatabaseFixture) -> None:
    schedule_id = keep(database, cron="0 0 */20 * 1L")
    role(database).run_once(0.0)
    assert len(jobs(database)) == 1
    assert row(database, schedule_id).next_at is None
    assert role(database).run_once(0.0) == 0


def test_thousands_of_ticks_at_one_moment_come_in_batches(database: DatabaseFixture) -> None:
    ids = [new_id() for _ in range(2 * BATCH + 1)]
    database.execute(
        "INSERT INTO schedules (id, tenant_id, name, cron, timezone, overlap, catch_up, type,"
        " payload, next_at) SELECT id, 1 + n %% 2, id::text, '0 0 * * *', 'UTC', 'allow', 'one',"
        " 'echo', '{}', now() - interval '1 second'"
        " FROM unnest(%s::uuid[]) WITH ORDINALITY AS given (id, n)",
        ids,
    )
    all_of_them, turns = role(database), []
    while moved := all_of_them.run_once(0.0):
        turns.append(moved)
    assert max(turns) <= BATCH and sum(turns) == len(ids)
    per_schedule = Counter(r.made for r in database.query("SELECT made FROM schedules"))
    assert per_schedule == {1: len(ids)}
    assert len(jobs(database)) == len(ids) and not database.miscounted()


def test_leader_of_an_earlier_epoch_makes_nothing(database: DatabaseFixture) -> None:
    schedule_id = keep(database)
    stale = Leader(database.engine, "stale")
    stale.epoch = (database.leader.epoch or 0) - 1
    assert role(database, stale).run_once(0.0) == 0
    # It lost its lease after it had looked.
    late = role(database)

    def lose(schedule: RecurringSchedule, *rest: Any) -> Any:
        database.execute("UPDATE leaders SET epoch = epoch + 1")
        return RecurringJobs._move(late, schedule, *rest)

    late._move = lose  # type: ignore[method-assign]
    assert late.run_once(0.0) == 0
    assert not jobs(database) and row(database, schedule_id).made == 0


@pytest.mark.parametrize("where", ["_move", "_write_moves", "insert_jobs"])
def test_dying_anywhere_in_a_turn_changes_nothing(
    database: DatabaseFixture, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    schedule_id = keep(database, type="vanished")
    keep(database)
    before = row(database, schedule_id)
    owner = recurring_jobs if where == "insert_jobs" else RecurringJobs
    real = getattr(owner, where)

    def die(*args: Any) -> None:
        real(*args)
        raise SystemExit

    with monkeypatch.context() as patched:
        patched.setattr(owner, where, die)
        with pytest.raises(SystemExit):
            role(database).run_once(0.0)
    assert row(database, schedule_id) == before
    assert not jobs(database) and not events(database)
    assert role(database).run_once(0.0) == 2, "no lock is left behind"
    assert len(jobs(database)) == 1


def test_two_leaders_at_once_make_each_tick_once(
    database: DatabaseFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A split brain: both hold the epoch, until a third one takes over in the middle of it.

    There is a tick of each schedule in every turn, 60 of them.
    """
    monkeypatch.setattr(recurring_jobs, "MOST_A_TURN", 1)
    schedules, first = 5, minutes_ago(database, 60)
    every_minute = {"cron": "* * * * *", "catch_up": "all", "next_at": first}
    ids = [keep(database, **every_minute) for _ in range(schedules)]
    race, both = Race(database), (role(database), role(database))
    moved: Counter[int] = Counter()
    sides = [lambda: both[0].run_once(0.0), lambda: both[1].run_once(0.0)]
    take_over = "UPDATE leaders SET epoch = epoch + 1"
    rounds = 0
    try:
        while database.query(ANY_DUE)[0][0]:
            rounds += 1
            third = [lambda: database.execute(take_over)] if rounds % 3 == 0 else []
            told = race.run(*sides, *third)
            moved.update({side: told[side] for side in (0, 1) if told[side]})
            database.leader.epoch = database.query("SELECT epoch FROM leaders")[0].epoch
    finally:
        race.close()
    assert_contested(moved, 0, 1)
    last = row(database, ids[0]).last_at
    ticks = [first + MINUTE * number for number in range(int((last - first) / MINUTE) + 1)]
    assert Counter(job.execute_at for job in jobs(database)) == dict.fromkeys(ticks, schedules)
    assert sum(moved.values()) == len(ticks) * schedules


def test_what_is_due_is_found_along_the_index(database: DatabaseFixture) -> None:
    database.execute(
        "INSERT INTO schedules (id, tenant_id, name, cron, timezone, overlap, catch_up, type,"
        " payload, paused, next_at, last_job_id)"
        " SELECT gen_random_uuid(), 1 + n %% 50, n::text, '0 0 * * *', 'UTC', 'skip', 'one',"
        " 'echo', '{}', n %% 3 = 0,"
        " CASE WHEN n %% 5 > 0 THEN now() + (n - 300) * interval '1 min' END,"
        " gen_random_uuid() FROM generate_series(1, 5000) AS n"
    )
    database.execute(
        "INSERT INTO jobs (id, tenant_id, type, pool, payload, status)"
        " SELECT coalesce(last_job_id, id), tenant_id, 'echo', 'short', '{}', 'queued'"
        " FROM schedules"
    )
    for _ in ("some are due", "all are due"):
        database.execute("ANALYZE schedules, jobs")
        for statement in (FIND_OLDEST, FIND_YOUNGEST):
            asked = {"epoch": database.leader.epoch, "held": [7, 8]}
            plan = plan_of(database, statement, **asked)
            assert indexes_in(plan) == {"schedules_next", "jobs_pkey", "tenants_pkey"}, plan
            assert not re.search(r"Seq Scan on (schedules|jobs)\b", plan), plan
            assert pages_read(database, statement, **asked) < 12 * BATCH
        assert indexes_in(plan_of(database, ANY_DUE)) == {"schedules_next"}
        assert pages_read(database, ANY_DUE) <= 5
        page = plan_of(database, schedules.LIST, tenant_id=7, after="5", limit=51)
        assert indexes_in(page) == {"schedules_tenant_id_name_key"}, page
        database.execute("UPDATE schedules SET next_at = now() WHERE next_at IS NOT NULL")


def test_schedules_are_told_as_metrics(database: DatabaseFixture) -> None:
    keep(database, paused=True)
    for next_at in (None, clock(database) + MINUTE):
        keep(database, next_at=next_at)
    assert scrape(database)["fairline_oldest_due_tick_age_seconds{}"] == 0
    keep(database, next_at=clock(database) - MINUTE)
    told = scrape(database)
    states = [told[f'fairline_schedules{{state="{s}"}}'] for s in ("active", "paused", "ended")]
    assert states == [2, 1, 1]
    assert 60 <= told["fairline_oldest_due_tick_age_seconds{}"] < 90


def test_change_that_waits_for_a_tick_does_not_bring_it_back(database: DatabaseFixture) -> None:
    """The change begins before the tick is made, and is written after it."""
    due = minutes_ago(database, 0)
    schedule_id = keep(database, cron=f"{due.minute} * * * *", next_at=due)
    race = Race(database)
    ticking = role(database)
    held: list[Any] = []
    real = ticking._write_moves

    def write(connection: Any, moves: Any) -> None:
        real(connection, moves)
        held.append(race.begin(lambda: schedules.change(database.engine, 1, schedule_id, resume)))
        race.database.wait_until_waiting()

    def resume(schedule: RecurringSchedule, now: datetime) -> RecurringSchedule:
        rule = recurring_jobs.read_rule(schedule.cron, schedule.timezone)
        found = schedules.first_tick(rule, schedule, now)
        return RecurringSchedule(**{**asdict(schedule), "next_at": found})

    ticking._write_moves = write  # type: ignore[method-assign]
    try:
        assert ticking.run_once(0.0) == 1
        changed = held[0].result()
    finally:
        race.close()
    assert (changed.made, changed.skipped) == (1, 0) and changed.next_at > changed.last_at
    assert changed.next_at > datetime.now(UTC) - MINUTE
