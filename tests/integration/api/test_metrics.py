"""``/metrics`` reports what is in the tables."""

from __future__ import annotations

import re

import pytest

from app.api.routes.metrics import exposition, objectives
from app.reads import gauges
from app.reads.gauges import read_gauges
from models.pools import POOLS
from tests.support.database_fixture import DatabaseFixture
from tests.support.emptied import emptied

SAMPLE = re.compile(r"^(fairline_\w+)(?:\{([^}]*)\})? ([0-9.e+]+)$", re.M)


@pytest.fixture
def database(api_database: DatabaseFixture) -> DatabaseFixture:
    return emptied(api_database)


def scrape(database: DatabaseFixture) -> dict[str, float]:
    with database.engine.connect() as connection:
        text = exposition(read_gauges(connection), POOLS, objectives())
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
