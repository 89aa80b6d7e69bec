"""``/metrics`` reports what is in the tables."""

from __future__ import annotations

import re
from typing import Any

import pytest

from app.api.routes.metrics import reports_system
from app.reads import gauges
from app.reads.gauges import read_gauges
from app.scheduler.maintenance.reaper import FORGET_SECONDS, Reaper
from app.scheduler.maintenance.retirer import FOLD
from models.jobs.discard import discard_dead
from models.presence import Presence, announce
from models.tallies import Tallies
from tasks.errors import Permanent
from tests.support.database_fixture import DatabaseFixture
from tests.support.emptied import emptied
from tests.support.one_worker import one_worker
from tests.unit.telemetry.test_dashboards import page

SAMPLE = re.compile(r"^(fairline_\w+)(?:\{([^}]*)\})? ([0-9.e+]+)$", re.M)


@pytest.fixture
def database(api_database: DatabaseFixture) -> DatabaseFixture:
    return emptied(api_database)


def scrape(database: DatabaseFixture) -> dict[str, float]:
    with database.engine.connect() as connection:
        text = page(read_gauges(connection))
    families = re.findall(r"^# TYPE (\w+) ", text, re.M)
    assert len(families) == len(set(families))
    for line in text.splitlines():
        assert line.startswith("# ") or SAMPLE.fullmatch(line), line
    return {f"{name}{{{labels}}}": float(value) for name, labels, value in SAMPLE.findall(text)}


def test_troubles_are_told(database: DatabaseFixture) -> None:
    for _ in range(2):
        claim = database.start()
        database.execute("UPDATE jobs SET status = 'dead' WHERE id = %s", claim.ref.id)
    database.execute("UPDATE jobs SET type = 'so \"called\"' WHERE id = %s", claim.ref.id)
    database.execute(
        "INSERT INTO circuits VALUES ('claude', 'open'), ('maps', 'half_open'), ('mail', 'closed')"
    )
    database.execute(
        "INSERT INTO verdicts (kind, name, tenant_id, pool) VALUES ('quarantine', 'echo', 0, ''),"
        " ('throttle', '', 1, 'medium'), ('throttle', '', 2, 'medium')"
    )
    database.execute(
        "INSERT INTO tallies VALUES ('violation', 'sleep', now(), 9, 4),"
        " ('violation', 'sleep', now() - interval '5 minutes', 3, 1),"
        " ('violation', 'sleep', now() - interval '61 minutes', 9, 9),"
        " ('retry', '1', now(), 3, 2), ('retry', '2', now(), 3, 1),"
        " ('retry', '2', now() - interval '11 minutes', 3, 1)"
    )
    told = scrape(database)
    assert told['fairline_dead_letters{type="echo"}'] == 1
    assert told['fairline_dead_letters{type="so \\"called\\""}'] == 1
    assert told['fairline_circuit_open{dependency="claude"}'] == 1
    assert told['fairline_circuit_open{dependency="maps"}'] == 0.5
    assert told['fairline_circuit_open{dependency="mail"}'] == 0
    assert told['fairline_job_type_quarantined{type="echo"}'] == 1
    assert told['fairline_throttled_tenants{pool="medium"}'] == 2
    assert told['fairline_throttled_tenants{pool="short"}'] == 0
    assert told['fairline_pool_violations{type="sleep"}'] == 5
    assert told["fairline_retries{}"] == 3


def test_a_discarded_dead_letter_was_submitted_once(database: DatabaseFixture) -> None:
    jobs = [database.start().ref.id for _ in range(3)]
    database.execute("UPDATE jobs SET status = 'dead', finished_at = now()")
    assert discard_dead(database.engine, 1, jobs[:2]) == sorted(jobs[:2])
    told = scrape(database)
    assert told['fairline_jobs_admitted_total{pool="medium"}'] == 3
    assert told['fairline_jobs_total{outcome="cancelled",pool="medium"}'] == 2


def test_ages_are_those_of_the_oldest_wherever_they_wait(database: DatabaseFixture) -> None:
    for age, dependency, priority in ((5, "", 3), (50, "claude", -1), (20, "claude", 9)):
        job_id = database.submit(dependency=dependency, priority=priority)
        database.execute(
            "UPDATE jobs SET created_at = now() - make_interval(secs => %s) WHERE id = %s",
            age,
            job_id,
        )
    database.execute(
        "INSERT INTO jobs (id, tenant_id, type, pool, payload, status, execute_at)"
        " SELECT gen_random_uuid(), 1, 'echo', 'short', '{}', 'scheduled',"
        " now() - n * interval '10 seconds' FROM generate_series(-3, 9) AS n"
    )
    told = scrape(database)
    assert 50 <= told['fairline_oldest_job_age_seconds{pool="medium"}'] < 60
    assert 90 <= told['fairline_oldest_due_unpromoted_age_seconds{pool="short"}'] < 100
    assert told['fairline_oldest_due_unpromoted_age_seconds{pool="medium"}'] == 0
    assert told['fairline_queue_depth{pool="medium"}'] == 3
    assert told['fairline_jobs_in_flight{pool="short",state="scheduled"}'] == 13


def test_age_in_a_line_of_very_many_heads_is_that_of_the_oldest_seen(
    database: DatabaseFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = gauges.READ_AGES.replace(f"{gauges.MOST_HEADS}", "3")
    monkeypatch.setattr(gauges, "READ_AGES", few)
    age = 'fairline_oldest_job_age_seconds{pool="medium"}'
    ages = {5: 10, 4: 20, 3: 5, 2: 1000}
    for priority, seconds in ages.items():
        job_id = database.submit(priority=priority)
        database.execute(
            "UPDATE jobs SET created_at = now() - make_interval(secs => %s) WHERE id = %s",
            seconds,
            job_id,
        )
    assert 20 <= scrape(database)[age] < 30
    database.execute(
        "INSERT INTO desired_workers (pool, workers, reason, oldest_seconds)"
        " VALUES ('medium', 1, '', 900)"
    )
    assert scrape(database)[age] == 900, "the autoscaler has come to the others"
    database.execute("UPDATE desired_workers SET updated_at = now() - interval '1 minute'")
    assert 20 <= scrape(database)[age] < 30


def test_runs_waits_and_retries_are_counted_for_ever(database: DatabaseFixture) -> None:
    def act(ctx: Any, payload: Any) -> Any:
        if payload == 1:
            raise Permanent("hopeless")
        if payload == 2 and ctx.attempt == 1:
            raise ValueError("a bug")

    with one_worker(database) as worker:
        worker.act = act
        for payload in ("0", "1", "2"):
            worker.execute(worker.refs(1, payload=payload))
        worker.flush()
        database.execute("UPDATE jobs SET status = 'queued' WHERE status = 'scheduled'")
        worker.execute(worker.dispatched(1))
        worker.flush()
    for _ in range(2):
        told = scrape(database)
        assert told['fairline_run_duration_seconds_count{pool="short"}'] == 4
        assert told['fairline_wait_duration_seconds_count{pool="short"}'] == 3, "first starts only"
        assert told['fairline_wait_duration_seconds_bucket{le="+Inf",pool="short"}'] == 3
        assert 0 < told['fairline_wait_duration_seconds_sum{pool="short"}'] < 30
        assert told['fairline_jobs_retried_total{class="APP_ERROR",pool="short"}'] == 1
        # The same when they are no longer recent, and again after that.
        database.execute("UPDATE tallies SET bucket = bucket - interval '1 hour'")
        database.execute(FOLD.replace("%(epoch)s", str(database.leader.epoch)))
    assert (
        database.query("SELECT FROM tallies WHERE kind = 'run_seconds' AND bucket > 'epoch'") == []
    )


def test_lost_runs_and_lost_workers_are_counted(database: DatabaseFixture) -> None:
    database.start()
    database.expire_leases()
    announce(database.engine, Presence("w1", "worker", ["medium.reserved.acme"]))
    announce(database.engine, Presence("api", "api"))
    database.execute("UPDATE processes SET heartbeat_at = now() - interval '6 minutes'")
    counted = Tallies()
    reaper = Reaper(database.engine, database.leader, database.types, counted)
    for second in range(int(FORGET_SECONDS) + 2):
        reaper.run_once(float(second))
    counted.write(database.engine)
    told = scrape(database)
    assert told['fairline_jobs_retried_total{class="WORKER_CRASH",pool="medium"}'] == 1
    assert told['fairline_run_duration_seconds_count{pool="medium"}'] == 1
    recycled = [name for name in told if "recycled" in name and told[name]]
    assert recycled == ['fairline_workers_recycled_total{pool="medium",reason="lost"}']


def test_the_largest_deficit_is_that_of_a_tenant_with_work(database: DatabaseFixture) -> None:
    database.submit()
    database.execute(
        "INSERT INTO shares (tenant_id, pool, pass, counted_day, counted_seconds, weight)"
        " VALUES (0, 'medium', 10, now(), 0, 1), (1, 'medium', 7, now(), 0, 2),"
        " (2, 'medium', 0, now(), 0, 100)"
    )
    told = scrape(database)
    assert told['fairline_largest_deficit_seconds{pool="medium"}'] == 6
    assert told['fairline_largest_deficit_seconds{pool="short"}'] == 0


def test_the_leaders_silence_is_told(database: DatabaseFixture) -> None:
    assert scrape(database)["fairline_leader_silent_seconds{}"] < 5
    database.execute("UPDATE leaders SET expires_at = now() - interval '1 hour'")
    database.execute("TRUNCATE express_lanes")
    assert 3600 <= scrape(database)["fairline_leader_silent_seconds{}"] < 3700


def test_the_oldest_living_instance_reports_the_system(database: DatabaseFixture) -> None:
    def reporters() -> list[str]:
        with database.engine.connect() as connection:
            return [name for name in ("one", "two") if reports_system(connection, name)]

    assert reporters() == ["one", "two"], "nobody is known"
    for process, instance in (("a", "two"), ("b", "one"), ("c", "one"), ("old", "")):
        announce(database.engine, Presence(process, "api", node=instance))
    assert reporters() == ["two"]
    database.execute(
        "UPDATE processes SET heartbeat_at = now() - interval '1 min' WHERE name = 'a'"
    )
    assert reporters() == ["one"]
