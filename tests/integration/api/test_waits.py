"""``GET /jobs/{id}/wait``, readiness without a scheduler, and the accuracy of predictions."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

import pytest

from app.reads.single_flight import SingleFlight
from app.scheduler.maintenance import forecaster as forecaster_module
from app.scheduler.maintenance.forecaster import Forecaster
from models.jobs.ids import new_id
from models.jobs.settle import Ending
from models.jobs.states import JobStatus
from models.presence import Presence, announce
from models.tallies import MICROSECONDS, TallyKind, add_tallies, run_name
from tests.support.database_fixture import DatabaseFixture
from tests.support.emptied import emptied
from tests.support.http_client import HttpClient, opened

FIELDS = {
    "id",
    "status",
    "pool",
    "reason",
    "detail",
    "also",
    "code",
    "position",
    "at_least",
    "predicted_start",
    "earliest_start",
    "latest_start",
    "predicted_wait_seconds",
}


@pytest.fixture
def database(api_database: DatabaseFixture) -> DatabaseFixture:
    """Empty, with one worker of ten slots."""
    database = emptied(api_database)
    announce(database.engine, Presence("w1", "worker", ["medium"], slots=10))
    database.keep_present()
    return database


@pytest.fixture(scope="module")
def http_client(
    api_database: DatabaseFixture, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[HttpClient]:
    with opened(api_database, tmp_path_factory.mktemp("blobs"), anonymous="demo") as app:
        yield HttpClient(app)


def wait_of(http_client: HttpClient, job_id: str) -> dict[str, Any]:
    answer = http_client.call(None, "GET", f"/jobs/{job_id}/wait")
    assert answer.status_code == 200, answer.text
    document: dict[str, Any] = answer.get_json()
    assert set(document) == FIELDS and document["id"] == job_id
    return document


def fly(database: DatabaseFixture, count: int, tenant_id: int = 1, status: str = "running") -> None:
    """Jobs that hold slots."""
    database.execute(
        "INSERT INTO jobs (id, tenant_id, type, pool, payload, status, lease, lease_expires_at)"
        " SELECT gen_random_uuid(), %s, 'echo', 'medium', '{}', %s, 1, now() + interval '1 h'"
        " FROM generate_series(1, %s)",
        tenant_id,
        status,
        count,
    )


def queue(database: DatabaseFixture, count: int) -> None:
    """Jobs that were submitted before all others."""
    database.execute(
        "INSERT INTO jobs (id, tenant_id, type, pool, payload, status)"
        " SELECT ('00000000-0000-7000-8000-' || lpad(n::text, 12, '0'))::uuid, 1, 'echo',"
        " 'medium', '{}', 'queued' FROM generate_series(1, %s) AS n",
        count,
    )


def share(
    database: DatabaseFixture, tenant_id: int, weight: float, started_per_second: float = 0.0
) -> None:
    database.execute(
        "INSERT INTO shares (tenant_id, pool, pass, counted_day, counted_seconds, weight,"
        " started_per_second) VALUES (%s, 'medium', 0, current_date, 0, %s, %s)",
        tenant_id,
        weight,
        started_per_second,
    )


def measured(database: DatabaseFixture, seconds: float) -> None:
    """The duration of a job."""
    database.execute(
        "INSERT INTO job_types (type, declared_pool, pool, mean_seconds)"
        " VALUES ('echo', 'medium', 'medium', %s)",
        seconds,
    )


def started(database: DatabaseFixture, seconds_ago: float) -> None:
    """A job of the tenant that has ended."""
    database.execute(
        "INSERT INTO jobs (id, tenant_id, type, pool, payload, status, started_at, ended_xid)"
        " VALUES (gen_random_uuid(), 1, 'echo', 'medium', '{}', 'succeeded',"
        " now() - make_interval(secs => %s), pg_current_xact_id())",
        seconds_ago,
    )


# Reasons


def test_job_that_is_put_off_waits_for_its_time(
    http_client: HttpClient, database: DatabaseFixture
) -> None:
    due = datetime.now(UTC) + timedelta(hours=1)
    told = wait_of(http_client, database.submit(execute_at=due))
    assert (told["status"], told["reason"]) == ("scheduled", "schedule")
    assert told["position"] is None
    assert 3590 < told["predicted_wait_seconds"] < 3700
    assert told["predicted_start"] >= due.isoformat()[:19]


def test_open_circuit_and_spent_quota_bind_in_this_order(
    http_client: HttpClient, database: DatabaseFixture
) -> None:
    database.execute(
        "INSERT INTO circuits VALUES ('claude', 'open', now() - interval '20 seconds')"
    )
    database.execute(
        "INSERT INTO quotas (dependency, requests_per_minute, closed_until)"
        " VALUES ('claude', 60, now() + interval '25 seconds')"
    )
    job_id = database.submit(dependency="claude")
    told = wait_of(http_client, job_id)
    assert (told["reason"], told["also"]) == ("circuit", ["quota"])
    assert "claude" in told["detail"]
    assert 30 < told["predicted_wait_seconds"] - 60 / 57 <= 40, "and its turn at 57 a minute"
    database.execute("UPDATE circuits SET state = 'closed'")
    told = wait_of(http_client, job_id)
    assert (told["reason"], told["also"]) == ("quota", [])
    assert 15 < told["predicted_wait_seconds"] - 60 / 57 <= 25
    database.execute("UPDATE quotas SET closed_until = NULL")
    told = wait_of(http_client, job_id)
    assert (told["reason"], told["predicted_wait_seconds"]) == (
        "quota",
        pytest.approx(60 / 57, 1e-2),
    )


def test_throttle_and_cap_are_told_apart(
    http_client: HttpClient, database: DatabaseFixture
) -> None:
    database.execute(
        "INSERT INTO tenant_limits (tenant_id, pool, in_flight) VALUES (1, 'medium', 3)"
    )
    fly(database, 3)
    job_id = database.submit()
    told = wait_of(http_client, job_id)
    assert told["reason"] == "cap" and "3 jobs in flight" in told["detail"]
    assert told["code"] == "POOL_CONCURRENCY_CAP"
    assert told["predicted_wait_seconds"] == pytest.approx(60 / 3), "with seven idle slots"
    database.execute(
        "UPDATE jobs SET started_at = now() - interval '30 s' WHERE status = 'running'"
    )
    assert wait_of(http_client, job_id)["predicted_wait_seconds"] == pytest.approx(
        60 / 3 - 10, abs=5
    )
    database.execute(
        "INSERT INTO verdicts (kind, tenant_id, pool) VALUES ('throttle', 1, 'medium')"
    )
    assert wait_of(http_client, job_id)["reason"] == "throttle"


def test_pool_without_workers_is_named_and_nothing_is_promised(
    http_client: HttpClient, database: DatabaseFixture
) -> None:
    database.execute("UPDATE processes SET heartbeat_at = now() - interval '1 minute'")
    told = wait_of(http_client, database.submit())
    assert told["reason"] == "no_workers"
    assert told["predicted_start"] is told["predicted_wait_seconds"] is None


def test_broker_that_is_away_is_named_and_nothing_is_promised(
    http_client: HttpClient, database: DatabaseFixture
) -> None:
    job_id = database.submit()
    database.execute(
        "UPDATE leaders SET expires_at = now() + interval '5 minutes',"
        " broker_seen_at = now() - interval '1 minute'"
    )
    told = wait_of(http_client, job_id)
    assert (told["reason"], told["predicted_wait_seconds"]) == ("broker", None)
    assert told["detail"].startswith("The broker is not responding")
    database.execute("UPDATE leaders SET broker_seen_at = now()")
    assert wait_of(http_client, job_id)["reason"] == "share"


def test_share_comes_with_position_and_a_prediction(
    http_client: HttpClient, database: DatabaseFixture
) -> None:
    fly(database, 20, tenant_id=2)
    measured(database, 1.0)
    share(database, 1, weight=10.0, started_per_second=2.0)
    database.submit(priority=5)
    database.submit(dependency="maps")
    database.submit(priority=-1)
    job_id = database.submit()
    database.submit()
    for tenant_id in (2, 3, 4):
        database.submit(tenant_id=tenant_id, priority=9)
    told = wait_of(http_client, job_id)
    assert (told["reason"], told["position"], told["at_least"]) == ("share", 2, False)
    assert "25.0%" in told["detail"]
    assert told["predicted_wait_seconds"] == pytest.approx(3 / 2.5), "not measured for long"
    for _ in range(20):
        started(database, 6)
    asked = datetime.now(UTC)
    told = wait_of(http_client, job_id)
    assert told["predicted_wait_seconds"] == pytest.approx(3 / 5**0.5, abs=0.001)
    start = datetime.fromisoformat(told["predicted_start"])
    waits = timedelta(seconds=told["predicted_wait_seconds"])
    rounding = timedelta(seconds=0.1)
    assert asked - rounding < start - waits < datetime.now(UTC) + rounding
    database.execute("INSERT INTO circuits VALUES ('maps', 'open')")
    assert wait_of(http_client, job_id)["position"] == 1, "what is held is not ahead"


def test_without_a_measured_rate_the_share_of_the_slots_is_taken(
    http_client: HttpClient, database: DatabaseFixture
) -> None:
    fly(database, 10, tenant_id=2)
    share(database, 0, weight=9.0)  # as it was before the others came
    share(database, 1, weight=10.0, started_per_second=9.0)
    database.execute(
        "UPDATE shares SET updated_at = now() - interval '1 minute' WHERE tenant_id = 1"
    )
    measured(database, 5.0)
    started(database, 6)
    database.execute("INSERT INTO circuits VALUES ('maps', 'open')")
    for tenant_id, dependency in ((2, ""), (3, ""), (4, ""), (5, "maps")):
        database.submit(tenant_id=tenant_id, dependency=dependency)
    told = wait_of(http_client, database.submit())
    assert told["predicted_wait_seconds"] == pytest.approx(5 / (10 * 0.25))


def ended(database: DatabaseFixture, seconds: float, count: int) -> None:
    """Jobs of the tenant that ran so long within the last hour."""
    database.execute(
        "INSERT INTO jobs (id, tenant_id, type, pool, payload, status, started_at, finished_at,"
        " ended_xid) SELECT gen_random_uuid(), 1, 'echo', 'medium', '{}', 'succeeded',"
        " now() - make_interval(mins => 50), now() - make_interval(mins => 50)"
        " + make_interval(secs => %s), pg_current_xact_id() FROM generate_series(1, %s)",
        seconds,
        count,
    )


def counted(database: DatabaseFixture, type_: str, seconds: float, count: int) -> None:
    """Runs of all tenants, as workers count them."""
    microseconds = int(seconds * MICROSECONDS)
    name = run_name("medium", type_, microseconds, over=False)
    add_tallies(database.engine, [((TallyKind.RUN, name), (count, count * microseconds))])


def test_one_long_run_of_a_type_does_not_make_everybody_wait_for_it(
    http_client: HttpClient, database: DatabaseFixture
) -> None:
    """As it was: 1,740 s were predicted and 112 s waited."""
    fly(database, 10, tenant_id=2)
    counted(database, "echo", 2.0, 20)
    counted(database, "echo", 600.0, 1)
    measured(database, 640 / 21)
    queue(database, 559)
    job_id = database.submit()
    told = wait_of(http_client, job_id)
    assert told["predicted_wait_seconds"] == pytest.approx(112, rel=0.02)
    assert told["earliest_start"] <= told["predicted_start"] < told["latest_start"]
    latest = datetime.fromisoformat(told["latest_start"]) - datetime.now(UTC)
    assert latest > timedelta(seconds=500), "there may be more of that kind"


def test_a_wait_is_that_of_the_jobs_ahead_by_their_types_and_tenant(
    http_client: HttpClient, database: DatabaseFixture
) -> None:
    fly(database, 10, tenant_id=2)
    counted(database, "echo", 1.0, 100)
    counted(database, "sleep", 50.0, 100)
    queue(database, 99)
    job_id = database.submit(type="sleep")
    assert wait_of(http_client, job_id)["predicted_wait_seconds"] == pytest.approx(10, rel=0.02)
    ended(database, 5.0, 4)
    assert wait_of(http_client, job_id)["predicted_wait_seconds"] == pytest.approx(10, rel=0.02)
    ended(database, 5.0, 1)
    assert wait_of(http_client, job_id)["predicted_wait_seconds"] == pytest.approx(50, rel=0.02)


def test_a_job_at_the_broker_waits_for_a_spent_quota(
    http_client: HttpClient, database: DatabaseFixture
) -> None:
    job_id = database.submit(dependency="claude")
    database.leader.run_once(0.0)
    database.dispatch()
    assert wait_of(http_client, job_id)["reason"] == "starting"
    database.execute(
        "INSERT INTO quotas (dependency, requests_per_minute, reading, read_at)"
        " VALUES ('claude', 60, %s, now())",
        json.dumps({"requests": [60, 0, 60]}),
    )
    told = wait_of(http_client, job_id)
    assert told["reason"] == "quota" and "used up" in told["detail"]
    assert told["predicted_wait_seconds"] > 1
    database.execute("UPDATE quotas SET closed_until = now() + interval '40 s', reading = NULL")
    told = wait_of(http_client, job_id)
    assert told["reason"] == "quota" and "accepts calls again in" in told["detail"]
    assert 30 < told["predicted_wait_seconds"] < 45


def own_workers(database: DatabaseFixture, queue: str, slots: int) -> None:
    database.execute("DELETE FROM processes WHERE name = 'own'")
    announce(database.engine, Presence("own", "worker", [queue], slots=slots))
    database.keep_present()


def test_slots_of_a_slice_are_its_tenants(
    http_client: HttpClient, database: DatabaseFixture
) -> None:
    (name,) = database.query("SELECT name FROM tenants WHERE id = 1")[0]
    fly(database, 10, tenant_id=2)
    database.execute("UPDATE jobs SET slice = 'reserved.other'")
    job_id = database.submit()
    assert wait_of(http_client, job_id)["predicted_wait_seconds"] == 0, "the shared slots are idle"
    fly(database, 10, tenant_id=2)
    assert wait_of(http_client, job_id)["predicted_wait_seconds"] > 0
    own_workers(database, f"medium.reserved.{name}", 2)
    assert wait_of(http_client, job_id)["predicted_wait_seconds"] == 0
    database.execute("DELETE FROM processes WHERE name = 'w1'")
    told = wait_of(http_client, job_id)
    assert (told["reason"], told["predicted_wait_seconds"]) == ("share", 0)
    own_workers(database, "medium.reserved.other", 2)
    assert wait_of(http_client, job_id)["reason"] == "no_workers"


def test_free_account_waits_for_the_slice_of_all_free_accounts(
    http_client: HttpClient, database: DatabaseFixture
) -> None:
    database.execute("INSERT INTO tenants (id, name, tier) VALUES (73, 'freeman', 'free')")
    database.execute("UPDATE tenants SET tier = 'free' WHERE id = 1")
    try:
        job_id = database.submit()
        assert wait_of(http_client, job_id)["predicted_wait_seconds"] == 0
        fly(database, 1, tenant_id=73)
        told = wait_of(http_client, job_id)
        assert (told["reason"], told["also"]) == ("free_slice", [])
        assert told["detail"].endswith("that they may: 1.")
        # One slot of ten, and two accounts that take turns; a job takes a minute.
        assert told["predicted_wait_seconds"] == pytest.approx(120)
        own_workers(database, "medium.free", 2)
        told = wait_of(http_client, job_id)
        assert (told["reason"], told["predicted_wait_seconds"]) == ("share", 0)
        fly(database, 2, tenant_id=73)
        database.execute("UPDATE jobs SET slice = 'free' WHERE status = 'running'")
        assert wait_of(http_client, job_id)["reason"] == "free_slice"
    finally:
        database.execute("UPDATE tenants SET tier = 'standard' WHERE id = 1")
        database.execute("DELETE FROM tenants WHERE id = 73")


def test_long_line_is_not_counted_to_its_end(
    http_client: HttpClient, database: DatabaseFixture
) -> None:
    queue(database, 10_050)
    told = wait_of(http_client, database.submit())
    assert (told["position"], told["at_least"]) == (10_000, True)
    assert told["predicted_wait_seconds"] > 60 * 10_030 / 10, "it waits for all of them"
    assert told["detail"].startswith("At least 10000 jobs of yours are ahead")


def test_job_on_its_way_running_or_ended_waits_for_nothing(
    http_client: HttpClient, database: DatabaseFixture
) -> None:
    claim = database.start()
    under_way = database.submit()
    database.leader.run_once(0.0)
    database.dispatch()
    told = wait_of(http_client, under_way)
    assert (told["status"], told["reason"]) == ("dispatched", "starting")
    told = wait_of(http_client, claim.ref.id)
    assert (told["reason"], told["detail"]) == ("running", "It is running.")
    database.execute("UPDATE jobs SET cancel_requested_at = now() WHERE id = %s", claim.ref.id)
    told = wait_of(http_client, claim.ref.id)
    assert told["detail"] == "It is running, and was asked to stop."
    database.settle(claim.ref, Ending(JobStatus.SUCCEEDED))
    told = wait_of(http_client, claim.ref.id)
    assert (told["status"], told["reason"], told["predicted_start"]) == ("succeeded", "none", None)


@pytest.mark.parametrize("job_id", ["foreign", "unknown", "nonsense"])
def test_wait_of_another_tenants_job_is_not_found(
    http_client: HttpClient, database: DatabaseFixture, job_id: str
) -> None:
    asked = {"foreign": database.submit(tenant_id=2), "unknown": new_id()}.get(job_id, job_id)
    answer = http_client.call(None, "GET", f"/jobs/{asked}/wait")
    assert answer.status_code == 404
    assert answer.get_json()["code"] == "NOT_FOUND"


# Readiness and metrics


def readiness(http_client: HttpClient) -> tuple[int, str, dict[str, Any]]:
    answer = http_client.call(None, "GET", "/readyz")
    document = answer.get_json()
    return answer.status_code, document["status"], document["checks"]


def scrape(http_client: HttpClient) -> str:
    http_client.app.extensions["fairline_metrics"] = {False: SingleFlight()}
    return http_client.call(None, "GET", "/metrics").text


def test_relief_is_ready_but_degraded_and_says_so(
    http_client: HttpClient, database: DatabaseFixture
) -> None:
    announce(database.engine, Presence("w2", "worker", ["short", "medium", "long"], slots=10))
    database.keep_present()
    database.execute("UPDATE leaders SET broker_seen_at = now()")
    assert readiness(http_client)[:2] == (200, "ready")
    database.execute(
        "UPDATE leaders SET expires_at = now() - interval '30 seconds',"
        " broker_seen_at = now() - interval '36 seconds'"
    )
    status, word, checks = readiness(http_client)
    assert (status, word) == (503, "not ready")
    assert not checks["scheduler"]["ok"] and not checks["broker"]["ok"]
    database.execute(
        "INSERT INTO leaders VALUES ('relief', 'api-9', 1, now() + interval '5 seconds', now())"
    )
    assert readiness(http_client)[:2] == (503, "not ready"), "the scheduler may still be back"
    assert "fairline_express_degraded 0" in scrape(http_client)
    database.execute(
        "UPDATE leaders SET expires_at = now() - interval '55 seconds' WHERE role = 'scheduler'"
    )
    status, word, checks = readiness(http_client)
    assert (status, word) == (200, "degraded")
    assert checks["scheduler"]["degraded"] is True
    assert 60 < checks["scheduler"]["age_seconds"] < 70
    assert checks["broker"]["ok"] is True, "the relief reaches it"
    assert "fairline_express_degraded 1" in scrape(http_client)
    database.execute("UPDATE leaders SET expires_at = now() WHERE role = 'relief'")
    assert readiness(http_client)[:2] == (503, "not ready")
    database.execute("DELETE FROM leaders WHERE role = 'relief'")
    database.leader.run_once(0.0)
    assert readiness(http_client)[2]["scheduler"]["ok"] is True


# How good the predictions are


def open_predictions(database: DatabaseFixture) -> dict[str, float]:
    rows = database.query("SELECT job_id::text, wait_seconds FROM predictions")
    return {row[0]: row[1] for row in rows}


def test_predictions_are_compared_with_what_happened(
    http_client: HttpClient, database: DatabaseFixture
) -> None:
    fly(database, 20, tenant_id=2)
    measured(database, 20.0)
    first, _, last = (database.submit() for _ in range(3))
    role = Forecaster(database.engine, database.leader, Random(1))
    role.run_once(0.0)
    assert open_predictions(database) == {first: pytest.approx(2.0), last: pytest.approx(6.0)}
    role.run_once(5.0)
    assert len(open_predictions(database)) == 2, "nothing is predicted twice"

    database.execute("UPDATE predictions SET made_at = now() - interval '8 seconds'")
    for job_id, seconds in ((first, 4), (last, 5)):
        database.execute("UPDATE jobs SET status = 'dispatched' WHERE id = %s", job_id)
        database.execute(
            "UPDATE jobs SET status = 'running', started_at ="
            " (SELECT made_at + make_interval(secs => %s) FROM predictions WHERE job_id = %s)"
            " WHERE id = %s",
            seconds,
            job_id,
            job_id,
        )
    role.run_once(10.0)
    assert not {first, last} & open_predictions(database).keys()
    metrics = scrape(http_client)
    assert 'fairline_wait_predictions{pool="medium"} 2' in metrics
    found = re.search(r'fairline_wait_prediction_error_ratio\{pool="medium"\} (\S+)', metrics)
    assert found and float(found[1]) == pytest.approx((2 / 4 + 1 / 5) / 2)


def test_every_tenant_that_waits_is_sampled(database: DatabaseFixture) -> None:
    fly(database, 20)
    jobs = {tenant: database.submit(tenant_id=tenant) for tenant in (1, 2)}
    role = Forecaster(database.engine, database.leader, Random(1))
    for turn in range(10):
        role.run_once(float(turn))
    assert open_predictions(database).keys() == set(jobs.values())


def test_what_never_started_is_dropped_and_few_are_open(
    database: DatabaseFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forecaster_module, "MOST_OPEN", 5)
    fly(database, 20)
    gone, cancelled, *_ = [database.submit(tenant_id=1 + n % 7) for n in range(70)]
    role = Forecaster(database.engine, database.leader, Random(3))
    for turn in range(12):
        role.run_once(float(turn))
    assert 3 <= len(open_predictions(database)) <= 5
    database.execute("DELETE FROM predictions")
    database.execute(
        "INSERT INTO predictions (job_id, pool, wait_seconds) SELECT id, pool, 1 FROM jobs"
        " WHERE id = ANY (%s::uuid[])",
        [gone, cancelled],
    )
    database.execute("DELETE FROM jobs WHERE id = %s", gone)
    database.execute("UPDATE jobs SET status = 'cancelled' WHERE id = %s", cancelled)
    role.run_once(20.0)
    assert not {gone, cancelled} & open_predictions(database).keys()
    assert not database.query("SELECT 1 FROM tallies WHERE kind = 'forecast'")
    database.execute("UPDATE leaders SET epoch = epoch + 1")
    database.execute("DELETE FROM predictions")
    role.run_once(30.0)
    assert not open_predictions(database), "another one leads"
