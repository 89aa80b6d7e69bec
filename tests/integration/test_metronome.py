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

from app.reads.times import rfc3339
from app.scheduler.maintenance import metronome
from app.scheduler.maintenance.metronome import (
    ANY_DUE,
    BATCH,
    FIND_OLDEST,
    FIND_YOUNGEST,
    Metronome,
)
from app.tenants import schedules
from app.tenants.schedules import RecurringSchedule
from models.jobs.ids import new_id
from models.leadership import Leader
from models.pools import POOLS
from tests.integration.emptied import emptied
from tests.integration.house import House
from tests.integration.plans import indexes_in, pages_read, plan_of
from tests.integration.race import Race, assert_contested
from tests.integration.test_metrics import scrape

MINUTE = timedelta(minutes=1)


@pytest.fixture
def house(api_house: House) -> House:
    found = emptied(api_house)
    found.execute("UPDATE leaders SET expires_at = now() + interval '1 hour'")
    return found


def role(house: House, leader: Leader | None = None) -> Metronome:
    return Metronome(house.engine, leader or house.leader, house.types, tuple(POOLS))


def keep(house: House, **fields: Any) -> str:
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
        "next_at": clock(house) - timedelta(seconds=1),
        **fields,
    }
    schedule = RecurringSchedule(name=values.pop("name", values["id"]), **values)
    return schedules.create(house.engine, schedule).id


def clock(house: House) -> datetime:
    now: datetime = house.query("SELECT now()")[0][0]
    return now


def minutes_ago(house: House, count: int) -> datetime:
    """A full minute, by the database's clock."""
    return clock(house).replace(second=0, microsecond=0) - MINUTE * count


def row(house: House, schedule_id: str) -> Row[Any]:
    return house.query("SELECT * FROM schedules WHERE id = %s", schedule_id)[0]


def jobs(house: House) -> Sequence[Row[Any]]:
    return house.query("SELECT * FROM jobs ORDER BY id")


def events(house: House) -> list[tuple[str, dict[str, Any]]]:
    return [(e.kind, e.detail) for e in house.query("SELECT * FROM events ORDER BY id")]


def test_tick_becomes_the_job_that_a_submission_would_be(house: House) -> None:
    schedule_id = keep(house, type="echo", payload='{"big": 123456789012345678901}', priority=7)
    tick = row(house, schedule_id).next_at
    assert role(house).run_once(0.0) == 1
    (job,) = jobs(house)
    house.submit(type="echo", pool=job.pool)
    submitted = jobs(house)[1]
    own = {"id", "created_at", "execute_at", "payload", "priority"}
    assert {n: v for n, v in job._mapping.items() if n not in own} == {
        n: v for n, v in submitted._mapping.items() if n not in own
    }
    assert (job.status, job.execute_at, job.priority) == ("queued", tick, 7)
    assert job.payload == {"big": 123456789012345678901}
    after = row(house, schedule_id)
    assert (after.last_at, after.last_job_id, after.made, after.skipped) == (tick, job.id, 1, 0)
    assert after.next_at > clock(house)
    assert role(house).run_once(0.0) == 0
    assert not house.miscounted()


def test_scheduled_application_is_an_application(house: House) -> None:
    work = {"candidate": "Ada", "role": "poet", "payload": {}}
    keep(house, type="score_application", payload=json.dumps(work))
    role(house).run_once(0.0)
    (job,) = jobs(house)
    assert job.dependency == (house.types["score_application"].dependency or "")
    (application,) = house.query("SELECT * FROM applications")
    assert (application.id, application.candidate, application.role) == (job.id, "Ada", "poet")


def test_job_goes_where_its_type_was_measured_to_belong(house: House) -> None:
    declared = house.types["echo"].pool
    house.execute(
        "INSERT INTO job_types (type, declared_pool, pool) VALUES ('echo', %s, 'long')", declared
    )
    keep(house)
    Metronome(house.engine, house.leader, house.types, [declared]).run_once(0.0)
    keep(house)
    role(house).run_once(0.0)
    assert [job.pool for job in jobs(house)] == [declared, "long"], "first nobody served it"


def test_what_is_paused_ended_or_not_due_has_no_tick(house: House) -> None:
    keep(house, paused=True)
    keep(house, next_at=None)
    keep(house, next_at=clock(house) + MINUTE)
    assert role(house).run_once(0.0) == 0
    assert not jobs(house)


def test_tick_is_skipped_while_the_job_before_has_not_ended(house: House) -> None:
    schedule_id = keep(house, overlap="skip")
    role(house).run_once(0.0)
    (first,) = jobs(house)

    def again() -> None:
        house.execute("UPDATE schedules SET next_at = now() - interval '1 second'")
        role(house).run_once(0.0)

    again()
    assert len(jobs(house)) == 1
    found = row(house, schedule_id)
    assert (found.made, found.skipped, found.last_job_id) == (1, 1, first.id)
    ((kind, detail),) = events(house)
    assert kind == "schedule_skipped"
    assert (detail["reason"], detail["job_id"]) == ("overlap", str(first.id))
    house.execute("UPDATE jobs SET status = 'cancelled', finished_at = now()")
    again()
    assert len(jobs(house)) == 2
    house.execute("DELETE FROM jobs")  # retired
    again()
    assert len(jobs(house)) == 1


@pytest.mark.parametrize("catch_up", ["none", "one", "all"])
def test_ticks_of_an_outage_are_made_up_for_as_wished(house: House, catch_up: str) -> None:
    first = minutes_ago(house, 4)
    schedule_id = keep(house, cron="* * * * *", catch_up=catch_up, next_at=first)
    role(house).run_once(0.0)
    last = row(house, schedule_id).last_at
    due = [first + MINUTE * number for number in range(int((last - first) / MINUTE) + 1)]
    assert len(due) >= 5
    if catch_up == "all":
        assert [job.execute_at for job in jobs(house)] == due
        assert not events(house)
    else:
        assert [job.execute_at for job in jobs(house)] == due[-1:]
        ((kind, detail),) = events(house)
        assert (kind, detail["first"], detail["last"]) == (
            "schedule_missed",
            rfc3339(due[0]),
            rfc3339(due[-2]),
        )


def test_long_outage_is_made_up_for_in_order_over_many_turns(house: House) -> None:
    schedule_id = keep(house, cron="* * * * *", catch_up="all", next_at=minutes_ago(house, 5_000))
    behind, turns = role(house), 0
    while behind.run_once(0.0):
        turns += 1
    times = [job.execute_at for job in jobs(house)]
    last = row(house, schedule_id).last_at
    count = len(times)
    assert times == [last - MINUTE * back for back in reversed(range(count))]
    assert 1_000 <= count <= 1_001 and turns >= 10
    assert row(house, schedule_id).made == count


def test_ticks_on_time_do_not_wait_until_others_have_made_up_for_an_outage(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metronome, "TURN_SECONDS", 0.0)  # one schedule a turn
    early = minutes_ago(house, 900)
    behind = [keep(house, cron="* * * * *", catch_up="all", next_at=early) for _ in range(3)]
    on_time = keep(house)
    both = role(house)
    for _ in range(2):
        both.run_once(0.0)
    assert row(house, on_time).made == 1
    assert sum(row(house, each).made for each in behind) == 100


def test_schedule_that_cannot_have_jobs_is_in_nobodys_way(house: House) -> None:
    early = clock(house) - timedelta(seconds=30)
    gone = keep(house, type="vanished", next_at=early)
    unfit = keep(house, type="score_application", payload='{"candidate": 7}', next_at=early)
    nowhere = keep(house, timezone="Atlantis/Capital", next_at=early)
    odd = keep(house, cron="what is this thing called", next_at=early)
    fine = keep(house)
    role(house).run_once(0.0)
    (job,) = jobs(house)
    assert row(house, fine).last_job_id == job.id
    told = {detail["schedule"]: (kind, detail["reason"]) for kind, detail in events(house)}
    assert told.keys() == {gone, unfit, nowhere, odd}
    assert told[gone][0] == told[unfit][0] == "schedule_skipped"
    assert "not registered" in told[gone][1] and "payload.candidate" in told[unfit][1]
    assert told[nowhere][0] == told[odd][0] == "schedule_paused"
    for each in (gone, unfit):
        assert row(house, each).skipped == 1 and row(house, each).next_at > clock(house)
    for each in (nowhere, odd):
        assert row(house, each).paused


def test_schedule_that_fails_stops_alone(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three ways: its ticks cannot be worked out, nor its jobs be written; the third is fine."""
    early = clock(house) - timedelta(seconds=30)
    odd = keep(house, cron="0 0 29 2 *", catch_up="all", next_at=early)
    unfit = keep(house, priority=7, next_at=early)
    fine = keep(house)
    decide, insert_jobs = metronome.decide, metronome.insert_jobs

    def work_out(rule: Any, *args: Any, **fields: Any) -> Any:
        if rule.cron == "0 0 29 2 *":
            raise OverflowError("date value out of range")
        return decide(rule, *args, **fields)

    def insert(connection: Any, submissions: Any) -> None:
        if any(each.priority == 7 for each in submissions):
            connection.exec_driver_sql("SELECT 1 / 0")
        insert_jobs(connection, submissions)

    monkeypatch.setattr(metronome, "decide", work_out)
    monkeypatch.setattr(metronome, "insert_jobs", insert)
    assert role(house).run_once(0.0) == 3
    (job,) = jobs(house)
    assert row(house, fine).last_job_id == job.id
    told = {detail["schedule"]: (kind, detail["reason"]) for kind, detail in events(house)}
    assert told == {
        odd: ("schedule_paused", "it failed: OverflowError"),
        unfit: ("schedule_paused", "it failed: DataError"),
    }
    assert [row(house, each).paused for each in (odd, unfit, fine)] == [True, True, False]
    assert row(house, unfit).made == 0 and role(house).run_once(0.0) == 0


def test_last_tick_ends_a_schedule(house: House) -> None:
    schedule_id = keep(house, cron="0 0 */20 * 1L")
    role(house).run_once(0.0)
    assert len(jobs(house)) == 1
    assert row(house, schedule_id).next_at is None
    assert role(house).run_once(0.0) == 0


def test_thousands_of_ticks_at_one_moment_come_in_batches(house: House) -> None:
    ids = [new_id() for _ in range(2 * BATCH + 1)]
    house.execute(
        "INSERT INTO schedules (id, tenant_id, name, cron, timezone, overlap, catch_up, type,"
        " payload, next_at) SELECT id, 1 + n %% 2, id::text, '0 0 * * *', 'UTC', 'allow', 'one',"
        " 'echo', '{}', now() - interval '1 second'"
        " FROM unnest(%s::uuid[]) WITH ORDINALITY AS given (id, n)",
        ids,
    )
    all_of_them, turns = role(house), []
    while moved := all_of_them.run_once(0.0):
        turns.append(moved)
    assert max(turns) <= BATCH and sum(turns) == len(ids)
    per_schedule = Counter(r.made for r in house.query("SELECT made FROM schedules"))
    assert per_schedule == {1: len(ids)}
    assert len(jobs(house)) == len(ids) and not house.miscounted()


def test_leader_of_an_earlier_epoch_makes_nothing(house: House) -> None:
    schedule_id = keep(house)
    stale = Leader(house.engine, "stale")
    stale.epoch = (house.leader.epoch or 0) - 1
    assert role(house, stale).run_once(0.0) == 0
    # It lost its lease after it had looked.
    late = role(house)

    def lose(schedule: RecurringSchedule, *rest: Any) -> Any:
        house.execute("UPDATE leaders SET epoch = epoch + 1")
        return Metronome._move(late, schedule, *rest)

    late._move = lose  # type: ignore[method-assign]
    assert late.run_once(0.0) == 0
    assert not jobs(house) and row(house, schedule_id).made == 0


@pytest.mark.parametrize("where", ["_move", "_write", "insert_jobs"])
def test_dying_anywhere_in_a_turn_changes_nothing(
    house: House, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    schedule_id = keep(house, type="vanished")
    keep(house)
    before = row(house, schedule_id)
    owner = metronome if where == "insert_jobs" else Metronome
    real = getattr(owner, where)

    def die(*args: Any) -> None:
        real(*args)
        raise SystemExit

    with monkeypatch.context() as patched:
        patched.setattr(owner, where, die)
        with pytest.raises(SystemExit):
            role(house).run_once(0.0)
    assert row(house, schedule_id) == before
    assert not jobs(house) and not events(house)
    assert role(house).run_once(0.0) == 2, "no lock is left behind"
    assert len(jobs(house)) == 1


def test_two_leaders_at_once_make_each_tick_once(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A split brain: both hold the epoch, until a third one takes over in the middle of it.

    There is a tick of each schedule in every turn, 60 of them.
    """
    monkeypatch.setattr(metronome, "MOST_A_TURN", 1)
    schedules, first = 5, minutes_ago(house, 60)
    every_minute = {"cron": "* * * * *", "catch_up": "all", "next_at": first}
    ids = [keep(house, **every_minute) for _ in range(schedules)]
    race, both = Race(house), (role(house), role(house))
    moved: Counter[int] = Counter()
    sides = [lambda: both[0].run_once(0.0), lambda: both[1].run_once(0.0)]
    take_over = "UPDATE leaders SET epoch = epoch + 1"
    rounds = 0
    try:
        while house.query(ANY_DUE)[0][0]:
            rounds += 1
            third = [lambda: house.execute(take_over)] if rounds % 3 == 0 else []
            told = race.run(*sides, *third)
            moved.update({side: told[side] for side in (0, 1) if told[side]})
            house.leader.epoch = house.query("SELECT epoch FROM leaders")[0].epoch
    finally:
        race.close()
    assert_contested(moved, 0, 1)
    last = row(house, ids[0]).last_at
    ticks = [first + MINUTE * number for number in range(int((last - first) / MINUTE) + 1)]
    assert Counter(job.execute_at for job in jobs(house)) == dict.fromkeys(ticks, schedules)
    assert sum(moved.values()) == len(ticks) * schedules


def test_what_is_due_is_found_along_the_index(house: House) -> None:
    house.execute(
        "INSERT INTO schedules (id, tenant_id, name, cron, timezone, overlap, catch_up, type,"
        " payload, paused, next_at, last_job_id)"
        " SELECT gen_random_uuid(), 1 + n %% 50, n::text, '0 0 * * *', 'UTC', 'skip', 'one',"
        " 'echo', '{}', n %% 3 = 0,"
        " CASE WHEN n %% 5 > 0 THEN now() + (n - 300) * interval '1 min' END,"
        " gen_random_uuid() FROM generate_series(1, 5000) AS n"
    )
    house.execute(
        "INSERT INTO jobs (id, tenant_id, type, pool, payload, status)"
        " SELECT coalesce(last_job_id, id), tenant_id, 'echo', 'short', '{}', 'queued'"
        " FROM schedules"
    )
    for _ in ("some are due", "all are due"):
        house.execute("ANALYZE schedules, jobs")
        for statement in (FIND_OLDEST, FIND_YOUNGEST):
            plan = plan_of(house, statement, epoch=house.leader.epoch)
            assert indexes_in(plan) == {"schedules_next", "jobs_pkey"}, plan
            assert not re.search(r"Seq Scan on (schedules|jobs)\b", plan), plan
            assert pages_read(house, statement, epoch=house.leader.epoch) < 12 * BATCH
        assert indexes_in(plan_of(house, ANY_DUE)) == {"schedules_next"}
        assert pages_read(house, ANY_DUE) <= 5
        page = plan_of(house, schedules.LIST, tenant_id=7, after="5", limit=51)
        assert indexes_in(page) == {"schedules_tenant_id_name_key"}, page
        house.execute("UPDATE schedules SET next_at = now() WHERE next_at IS NOT NULL")


def test_schedules_are_told_as_metrics(house: House) -> None:
    keep(house, paused=True)
    for next_at in (None, clock(house) + MINUTE):
        keep(house, next_at=next_at)
    assert scrape(house)["fairline_oldest_due_tick_age_seconds{}"] == 0
    keep(house, next_at=clock(house) - MINUTE)
    told = scrape(house)
    states = [told[f'fairline_schedules{{state="{s}"}}'] for s in ("active", "paused", "ended")]
    assert states == [2, 1, 1]
    assert 60 <= told["fairline_oldest_due_tick_age_seconds{}"] < 90


def test_change_that_waits_for_a_tick_does_not_bring_it_back(house: House) -> None:
    """The change begins before the tick is made, and is written after it."""
    schedule_id = keep(house, cron="* * * * *", next_at=minutes_ago(house, 0))
    race = Race(house)
    ticking = role(house)
    held: list[Any] = []
    real = ticking._write

    def write(connection: Any, moves: Any) -> None:
        real(connection, moves)
        held.append(race.begin(lambda: schedules.change(house.engine, 1, schedule_id, resume)))
        race.house.wait_until_waiting()

    def resume(schedule: RecurringSchedule, now: datetime) -> RecurringSchedule:
        rule = metronome.read_rule(schedule.cron, schedule.timezone)
        found = schedules.first_tick(rule, schedule, now)
        return RecurringSchedule(**{**asdict(schedule), "next_at": found})

    ticking._write = write  # type: ignore[method-assign]
    try:
        assert ticking.run_once(0.0) == 1
        changed = held[0].result()
    finally:
        race.close()
    assert changed.made == 1 and changed.next_at > changed.last_at
    assert changed.next_at > datetime.now(UTC) - MINUTE
