"""From the workers' counts to the pool of the next job: job types are measured and move."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest

from app.admission import Submission, pool_of_type
from app.admission.pool_of_type import LOOK_SECONDS, PoolsOfTypes
from app.policy.fairshare import default_seconds
from app.policy.pool_choice import MIN_RUNS, VIOLATIONS
from app.reads.estimates import FIRST_SECONDS, READ_SECONDS, Estimates
from app.reads.gauges import read_gauges
from app.scheduler.protection import classifier as classifier_module
from app.scheduler.protection.classifier import Classifier, TypeRuns, read_runs
from models.pools import chain_of, read_pools
from models.presence import Presence, announce
from models.store.errors import StateStoreUnavailable
from models.tallies import MICROSECONDS, TallyKind, add_tallies, run_name, tenant_name
from tasks.errors import Permanent
from tests.support.api_server import ApiServer
from tests.support.database_fixture import DatabaseFixture
from tests.support.emptied import emptied
from tests.support.one_worker import one_worker
from tests.unit.telemetry.test_dashboards import page


@pytest.fixture
def database(api_database: DatabaseFixture) -> DatabaseFixture:
    database = emptied(api_database)
    for pool in ("short", "medium", "long"):
        announce(database.engine, Presence(f"worker of {pool}", "worker", [pool], slots=2))
    database.keep_present()
    return database


@pytest.fixture
def classifier(database: DatabaseFixture) -> Classifier:
    return Classifier(database.engine, database.leader, database.types)


def ran(
    database: DatabaseFixture, seconds: float, runs: int, pool: str = "short", type: str = "echo"
) -> None:
    """As workers would have counted them."""
    bound = {"short": 1.0, "medium": 60.0}.get(pool)
    microseconds = int(seconds * MICROSECONDS)
    name = run_name(pool, type, microseconds, bound is not None and seconds > bound)
    add_tallies(database.engine, [((TallyKind.RUN, name), (runs, runs * microseconds))])


def pass_time(database: DatabaseFixture, age: str) -> None:
    database.execute("UPDATE tallies SET bucket = bucket - %s::interval", age)
    database.execute("UPDATE job_types SET moved_at = moved_at - %s::interval", age)


def row(database: DatabaseFixture, type: str = "echo") -> Any:
    [found] = database.query("SELECT * FROM job_types WHERE type = %s", type)
    return found


def told(database: DatabaseFixture) -> list[Any]:
    return [
        (event.tenant_id, event.detail)
        for event in database.query("SELECT * FROM events ORDER BY id")
        if event.kind == "job_type_moved"
    ]


def kept(database: DatabaseFixture) -> dict[str, Any]:
    rows = database.query("SELECT detail FROM events WHERE kind = 'job_type_kept' ORDER BY id")
    return {row.detail["type"]: row.detail for row in rows}


def events(database: DatabaseFixture, kind: str) -> int:
    return len(database.query("SELECT 1 FROM events WHERE kind = %s AND tenant_id = 0", kind))


def read_runs_of(database: DatabaseFixture) -> dict[str, TypeRuns]:
    with database.engine.connect() as connection:
        return read_runs(connection)


def test_types_are_measured(database: DatabaseFixture, classifier: Classifier) -> None:
    ran(database, 0.2, 90)
    ran(database, 4.0, 10, pool="medium")
    ran(database, 1.0, 5, type="removed_long_ago")
    assert classifier.run_once(0.0) == 0
    assert row(database).mean_seconds == pytest.approx(0.58)
    assert (row(database).p95_seconds, row(database).runs) == (4.0, 100)
    assert (row(database).pool, row(database).moved_at) == ("short", None)
    assert len(database.query("SELECT * FROM job_types")) == 1, "only what is registered"


def test_figures_are_computed_afresh_and_kept_while_nothing_runs(
    database: DatabaseFixture, classifier: Classifier
) -> None:
    ran(database, 0.2, 90)
    classifier.run_once(0.0)
    first = row(database)
    Classifier(database.engine, database.leader, database.types).run_once(0.0)
    assert row(database) == first, "nothing is counted twice, and nothing is rewritten"
    pass_time(database, "40 minutes")
    ran(database, 0.4, 90)
    classifier.run_once(0.0)
    assert 0.3 < row(database).mean_seconds < 0.4, "recent runs count more"
    pass_time(database, "1 hour")
    classifier.run_once(0.0)
    assert 0.3 < row(database).mean_seconds < 0.4


def test_violations_move_a_type_and_everybody_is_told_once(
    database: DatabaseFixture, classifier: Classifier
) -> None:
    ran(database, 5.0, VIOLATIONS - 1 - MIN_RUNS)
    assert classifier.run_once(0.0) == 0, "too few"
    ran(database, 5.0, MIN_RUNS + 1)
    assert classifier.run_once(0.0) == 1
    assert row(database).pool == "medium"
    assert classifier.run_once(0.0) == 0
    detail = {"type": "echo", "from": "short", "to": "medium", "p95_seconds": 5.0}
    assert told(database) == [(0, {**detail, "reason": "violations"})]
    with database.engine.connect() as connection:
        metrics = page(read_gauges(connection))
    assert 'fairline_job_type_moved{from="short",to="medium",type="echo"} 1' in metrics
    assert 'fairline_job_type_p95_seconds{type="echo"} 5' in metrics


def test_a_type_that_stays_although_many_runs_are_too_long_says_why_once_an_hour(
    database: DatabaseFixture, classifier: Classifier
) -> None:
    ran(database, 0.2, 5000)
    ran(database, 5.0, VIOLATIONS)
    ran(database, 90.0, VIOLATIONS, pool="medium", type="sleep")
    database.execute("DELETE FROM processes WHERE name = 'worker of long'")
    assert classifier.run_once(0.0) == 0
    assert row(database).pool == "short"
    assert kept(database) == {
        "echo": {
            "type": "echo",
            "pool": "short",
            "p95_seconds": 0.2,
            "violations": VIOLATIONS,
            "runs": 5000 + VIOLATIONS,
            "reason": "p95_fits",
        },
        "sleep": {
            "type": "sleep",
            "pool": "medium",
            "p95_seconds": 90.0,
            "violations": VIOLATIONS,
            "runs": VIOLATIONS,
            "reason": "no_pool_above",
        },
    }
    classifier.run_once(5.0)
    Classifier(database.engine, database.leader, database.types).run_once(5.0)
    assert events(database, "job_type_kept") == 2, "nor does a new leader repeat it"
    database.execute("UPDATE events SET at = at - interval '61 minutes'")
    classifier.run_once(3700.0)
    assert events(database, "job_type_kept") == 4


def test_a_type_that_one_tenant_alone_would_move_says_so(
    database: DatabaseFixture, classifier: Classifier
) -> None:
    ran(database, 0.2, 60)
    slow = run_name("short", "echo", 5 * MICROSECONDS, over=True)
    own = (VIOLATIONS, VIOLATIONS * 5 * MICROSECONDS)
    add_tallies(
        database.engine,
        [((TallyKind.RUN, slow), own), ((TallyKind.TENANT_RUN, tenant_name(slow, 7)), own)],
    )
    assert classifier.run_once(0.0) == 0
    assert kept(database)["echo"]["reason"] == "one_tenant_alone"


def test_a_pool_above_long_takes_part(
    database: DatabaseFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    above = {"lease_seconds": 90, "slots": 1, "tries": 2, "concurrency": "prefork"}
    pools = read_pools({"long": {"bound_seconds": 600}, "endless": {**above, "above": "long"}})
    monkeypatch.setattr(classifier_module, "POOLS", pools)
    monkeypatch.setattr(classifier_module, "CHAIN", chain_of(pools))
    announce(database.engine, Presence("worker of endless", "worker", ["endless"], slots=1))
    microseconds = 1000 * MICROSECONDS
    name = run_name("long", "count", microseconds, over=True)
    add_tallies(database.engine, [((TallyKind.RUN, name), (60, 60 * microseconds))])
    served = ("short", "medium", "long", "endless")
    four = Classifier(database.engine, database.leader, database.types, served)
    assert four.run_once(0.0) == 1
    assert row(database, "count").pool == "endless"
    assert told(database)[0][1]["reason"] == "share_of_violations"


def test_a_change_lasts_an_hour_and_the_next_looks_at_what_came_after(
    database: DatabaseFixture, classifier: Classifier
) -> None:
    ran(database, 5.0, VIOLATIONS)
    classifier.run_once(0.0)
    pass_time(database, "55 minutes")
    ran(database, 0.2, 900, pool="medium")
    assert classifier.run_once(0.0) == 0
    assert row(database).p95_seconds == pytest.approx(0.2)
    pass_time(database, "5 minutes")
    assert classifier.run_once(0.0) == 1
    assert row(database).pool == "short"
    assert [detail["reason"] for _, detail in told(database)] == ["violations", "faster"]
    pass_time(database, "61 minutes")
    assert classifier.run_once(0.0) == 0, "the violations of before are forgotten"


def test_a_type_does_not_move_to_where_nobody_works(
    database: DatabaseFixture, classifier: Classifier
) -> None:
    ran(database, 5.0, VIOLATIONS)
    ran(database, 90.0, VIOLATIONS, pool="medium", type="score_application")
    database.execute("DELETE FROM processes WHERE name <> 'worker of short'")
    assert classifier.run_once(0.0) == 0
    few = Classifier(database.engine, database.leader, database.types, ["short", "long"])
    announce(database.engine, Presence("w", "worker", ["medium", "long"], slots=2))
    assert few.run_once(0.0) == 1, "an application is stopped after a minute: it stays"
    assert row(database).pool == "long"
    assert row(database, "score_application").pool == "medium"
    assert (
        Classifier(database.engine, database.leader, database.types, ["short"]).run_once(0.0) == 1
    )
    assert row(database).pool == "short"
    assert told(database)[-1][1]["reason"] == "pool_not_served"


def test_a_type_that_is_declared_anew_is_believed(
    database: DatabaseFixture, classifier: Classifier
) -> None:
    ran(database, 5.0, VIOLATIONS)
    classifier.run_once(0.0)
    anew = {**database.types, "echo": replace(database.types["echo"], pool="long")}
    assert Classifier(database.engine, database.leader, anew).run_once(0.0) == 0
    assert (row(database).declared_pool, row(database).pool, row(database).moved_at) == (
        "long",
        "long",
        None,
    )


def test_a_classifier_that_was_overtaken_writes_nothing(
    database: DatabaseFixture, classifier: Classifier
) -> None:
    ran(database, 5.0, VIOLATIONS)
    database.execute(
        "INSERT INTO job_types (type, declared_pool, pool) VALUES ('echo', 'short', 'short')"
    )
    before = row(database)
    database.execute("UPDATE leaders SET epoch = epoch + 1")
    assert classifier.run_once(0.0) == 0
    assert row(database) == before and told(database) == []


def test_dying_between_the_figures_and_the_move_costs_nothing(
    database: DatabaseFixture, classifier: Classifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran(database, 5.0, VIOLATIONS)

    def die(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as dying:
        dying.setattr(classifier_module, "bounds_of", die)
        with pytest.raises(KeyboardInterrupt):
            classifier.run_once(0.0)
    assert (row(database).pool, row(database).runs, told(database)) == ("short", VIOLATIONS, [])
    assert Classifier(database.engine, database.leader, database.types).run_once(0.0) == 1
    assert (row(database).pool, row(database).runs, len(told(database))) == (
        "medium",
        VIOLATIONS,
        1,
    )


def test_new_jobs_go_where_their_type_belongs_and_those_that_wait_stay(
    database: DatabaseFixture, api: ApiServer
) -> None:
    body = {"type": "echo", "payload": {}}

    def pools(path: str, sent: Any) -> list[str]:
        answer = api.post(sent, path=path)
        assert answer.status == 202, answer.body
        said = answer.json()
        ids = [each["id"] for each in said.get("results", [said])]
        return [database.job(job_id).pool for job_id in ids]

    assert pools("/jobs", body) == ["short"]
    database.execute(
        "INSERT INTO job_types (type, declared_pool, pool, moved_at) VALUES"
        " ('echo', 'short', 'medium', now()), ('score_application', 'medium', 'long', now()),"
        " ('sleep', 'renamed', 'short', now()), ('fail', %s, 'gone', now())",
        database.types["fail"].pool,
    )

    def expect(path: str, sent: Any, *wanted: str) -> None:
        """Soon: each API process looks once a second."""
        deadline = time.monotonic() + 30 * LOOK_SECONDS
        while pools(path, sent) != list(wanted):
            assert time.monotonic() < deadline

    expect("/jobs", body, "medium")
    expect("/applications", {"candidate": "Ada", "payload": {}}, "long")
    items = [body, {**body, "type": "sleep"}, {**body, "type": "fail"}]
    asked = (database.types["sleep"].pool, database.types["fail"].pool)
    expect("/jobs/batch", {"jobs": items}, "medium", *asked)
    first, *_ = database.query("SELECT * FROM jobs ORDER BY id")
    assert first.pool == "short", "what waits stays"
    assert not database.miscounted()


def test_places_are_looked_up_once_a_second_at_most(
    database: DatabaseFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert LOOK_SECONDS == 1.0
    monkeypatch.setattr("app.admission.pool_of_type.LOOK_SECONDS", 60.0)  # on a busy machine
    known = PoolsOfTypes(database.engine, ("short", "medium"))
    database.execute(
        "INSERT INTO job_types (type, declared_pool, pool) VALUES ('echo', 'short', 'medium')"
    )
    jobs = [Submission("id", 1, "echo", "short", "{}"), Submission("id", 1, "echo", "gpu", "{}")]
    assert [job.pool for job in known.place(jobs)] == ["medium", "gpu"]
    database.execute("DELETE FROM job_types")
    assert [job.pool for job in known.place(jobs)] == ["medium", "gpu"]


def test_places_stay_as_known_while_the_state_store_is_away(
    database: DatabaseFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = PoolsOfTypes(database.engine, ("short", "medium"))
    database.execute(
        "INSERT INTO job_types (type, declared_pool, pool) VALUES ('echo', 'short', 'medium')"
    )
    job = Submission("id", 1, "echo", "short", "{}")
    known.place([job])

    def away(_: object) -> None:
        raise StateStoreUnavailable

    monkeypatch.setattr(pool_of_type, "connect", away)
    monkeypatch.setattr(known, "_due", 0.0)
    assert known.place([job])[0].pool == "medium"
    assert not known._reading.locked(), "and the next read comes"


def test_estimates_are_the_measured_mean_or_the_pools_default(database: DatabaseFixture) -> None:
    estimates = Estimates(database.engine)
    assert estimates.seconds("echo", "short", 0.0) == default_seconds("short")
    database.execute(
        "INSERT INTO job_types (type, declared_pool, pool, mean_seconds) VALUES"
        " ('echo', 'short', 'short', 0.25), ('sleep', 'long', 'long', NULL)"
    )
    assert estimates.seconds("echo", "short", FIRST_SECONDS - 0.1) == default_seconds("short")
    assert estimates.seconds("echo", "short", FIRST_SECONDS) == 0.25
    assert estimates.seconds("sleep", "long", FIRST_SECONDS) == default_seconds("long")
    database.execute("UPDATE job_types SET mean_seconds = 0.5")
    assert estimates.seconds("sleep", "long", 2 * FIRST_SECONDS) == 0.5
    database.execute("UPDATE job_types SET mean_seconds = 0.75")
    assert estimates.seconds("echo", "short", READ_SECONDS) == 0.5, "all are measured"
    assert estimates.seconds("echo", "short", 2 * FIRST_SECONDS + READ_SECONDS) == 0.75


def test_a_worker_counts_in_the_pool_of_the_job_and_prepares_a_type_that_moved_there(
    database: DatabaseFixture, classifier: Classifier
) -> None:
    """Jobs of a medium type in a worker of the short pool."""
    prepared: list[str] = []
    with one_worker(database) as fixture:
        types: Any = fixture.worker.types
        types["echo"] = replace(types["echo"], pool="medium", prepare=lambda: prepared.append("!"))
        fixture.execute(fixture.refs(5))
        fixture.flush()
    assert prepared == ["!"], "once a process"
    assert {job.status for job in database.query("SELECT status FROM jobs")} == {"succeeded"}
    runs = read_runs_of(database)
    assert runs["echo"].by_pool == {"short": (5, 0)}


def test_a_job_waits_where_its_type_cannot_get_ready(database: DatabaseFixture) -> None:
    def refuse() -> None:
        raise Permanent("There is no key here.")

    with one_worker(database) as fixture:
        types: Any = fixture.worker.types
        types["echo"] = replace(types["echo"], prepare=refuse)
        fixture.execute(fixture.refs(1))
        fixture.flush()
    [job] = database.query("SELECT status, attempt FROM jobs")
    assert tuple(job) == ("scheduled", 0)
