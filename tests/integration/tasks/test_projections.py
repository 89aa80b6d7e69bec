"""One type's projection that fails costs no other job its result, and recovers by itself."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import Engine

from models.jobs.claim import JobRef
from models.presence import Presence, announce
from tasks.context import JobContext
from tasks.watchdog.lost_runs import settle_overdue
from tests.support.database_fixture import DatabaseFixture
from tests.support.locks import held_lock
from tests.support.one_worker import OneWorker, one_worker

KEEP = """
    INSERT INTO kept (id, n) SELECT id, (result ->> 'n')::int FROM settled
    WHERE type = 'keep' AND status = 'succeeded'
"""
TABLE = """
    CREATE TABLE kept (id uuid PRIMARY KEY, n int UNIQUE CHECK (n < 1000));
    GRANT INSERT ON kept TO fairline_worker
"""
TRIGGER = """
    CREATE FUNCTION reject() RETURNS trigger LANGUAGE plpgsql AS
    $$ BEGIN
        IF NEW.n = 13 THEN RAISE EXCEPTION 'unlucky'; END IF;
        IF NEW.n = 14 THEN PERFORM 1 FROM nowhere; END IF;
        RETURN NEW;
    END $$;
    CREATE TRIGGER reject BEFORE INSERT ON kept FOR EACH ROW EXECUTE FUNCTION reject()
"""


class Runs:
    """How often the function of the type ``keep`` was called, for each job."""

    def __init__(self) -> None:
        self.of: list[str] = []

    def __call__(self, ctx: JobContext, payload: Any) -> Any:
        self.of.append(ctx.job_id)
        return payload


@pytest.fixture
def runs() -> Runs:
    return Runs()


@pytest.fixture
def database(engine: Engine, runs: Runs) -> DatabaseFixture:
    database = DatabaseFixture(engine)
    keep = replace(database.types["echo"], name="keep", run=runs, project=KEEP)
    database.types = {**database.types, "keep": keep}
    return database


def run_all(fixture: OneWorker) -> None:
    """Everything that is queued, in one message."""
    fixture.execute(fixture.dispatched(100))
    fixture.flush()
    fixture.flush()


def submit(fixture: OneWorker, *numbers: int) -> list[str]:
    return [
        fixture.database.submit(pool="short", type="keep", payload=f'{{"n": {n}}}') for n in numbers
    ]


def assert_finished_once(fixture: OneWorker, ids: list[str]) -> None:
    for job_id in ids:
        row = fixture.database.job(job_id)
        assert (row.status, row.attempt, row.lease, row.crashes) == ("succeeded", 1, 1, 0)


def recover(fixture: OneWorker) -> None:
    """As if the time until the next check, and until deferred jobs are due, had passed."""
    fixture.worker.ledger.projections.due = 0.0
    fixture.flush()
    fixture.database.execute(
        "UPDATE jobs SET status = 'queued', execute_at = now() WHERE status = 'scheduled'"
    )


@pytest.mark.parametrize("known", [False, True])
def test_results_of_other_types_are_kept_while_a_projection_fails(
    fixture: OneWorker, runs: Runs, known: bool
) -> None:
    if known:
        fixture.flush()  # checks, as the first heartbeat of a worker does
    others = [fixture.database.submit(pool="short") for _ in range(20)]
    broken = submit(fixture, 1, 2, 3)
    run_all(fixture)
    assert_finished_once(fixture, others)
    assert len(runs.of) == (0 if known else 3), "what cannot be stored is not run"
    for job_id in broken:
        row = fixture.database.job(job_id)
        assert (row.status, row.attempt, row.deferrals) == ("scheduled", 0, 1)
        assert (row.crashes, row.result, row.error_class) == (0, None, "DEPENDENCY")
        assert row.error_message == (
            'The projection of keep fails: relation "kept" does not exist.'
            " The job runs again later."
        )
        assert row.execute_at is not None
    assert fixture.worker.slots.held() == []
    fixture.database.execute(TABLE)
    recover(fixture)
    run_all(fixture)
    for job_id in broken:
        row = fixture.database.job(job_id)
        assert (row.status, row.attempt) == ("succeeded", 1)
    assert len(runs.of) == (3 if known else 6)
    assert fixture.database.query("SELECT count(*) FROM kept")[0].count == 3
    assert not fixture.database.miscounted()


def test_table_that_goes_while_the_worker_runs_and_comes_back(
    fixture: OneWorker, runs: Runs
) -> None:
    fixture.database.execute(TABLE)
    before = submit(fixture, 1)
    run_all(fixture)
    assert_finished_once(fixture, before)
    fixture.database.execute("ALTER TABLE kept RENAME COLUMN n TO m")
    others = [fixture.database.submit(pool="short") for _ in range(5)]
    [broken] = submit(fixture, 2)
    run_all(fixture)
    assert_finished_once(fixture, others)
    row = fixture.database.job(broken)
    assert (row.status, row.attempt) == ("scheduled", 0)
    assert '"n" of relation "kept" does not exist' in row.error_message
    fixture.database.execute("ALTER TABLE kept RENAME COLUMN m TO n")
    recover(fixture)
    run_all(fixture)
    assert fixture.database.job(broken).status == "succeeded"
    assert fixture.database.query("SELECT count(*) FROM kept")[0].count == 2


@pytest.mark.parametrize(
    ("n", "reason"),
    [
        (1, "duplicate key"),
        (1000, "check constraint"),
        (10**12, "out of range"),
        (13, "unlucky"),
    ],
)
def test_result_that_its_projection_rejects_ends_its_job_alone(
    fixture: OneWorker, n: int, reason: str
) -> None:
    fixture.database.execute(TABLE)
    fixture.database.execute(TRIGGER)
    fixture.database.execute("INSERT INTO kept VALUES (gen_random_uuid(), 1)")
    others = [fixture.database.submit(pool="short") for _ in range(5)]
    others += submit(fixture, 2, 3)
    [bad] = submit(fixture, n)
    run_all(fixture)
    assert_finished_once(fixture, others)
    row = fixture.database.job(bad)
    assert (row.status, row.attempt, row.error_class) == ("dead", 1, "APP_ERROR")
    assert reason in row.error_message and "could not be stored" in row.error_message
    assert fixture.worker.slots.held() == []


def test_name_that_only_a_trigger_misses_defers_the_job(fixture: OneWorker) -> None:
    fixture.database.execute(TABLE)
    fixture.database.execute(TRIGGER)
    others = [fixture.database.submit(pool="short") for _ in range(5)]
    others += submit(fixture, 2, 3)
    [broken] = submit(fixture, 14)
    run_all(fixture)
    assert_finished_once(fixture, others)
    row = fixture.database.job(broken)
    assert (row.status, row.attempt, row.deferrals) == ("scheduled", 0, 1)
    assert 'projection of keep fails: relation "nowhere" does not exist' in row.error_message
    fixture.database.execute("CREATE TABLE nowhere (); GRANT SELECT ON nowhere TO fairline_worker")
    recover(fixture)
    run_all(fixture)
    assert fixture.database.job(broken).status == "succeeded"


def test_missing_privilege_is_found_before_a_job_pays_for_it(fixture: OneWorker) -> None:
    fixture.database.execute(TABLE)
    fixture.database.execute("REVOKE INSERT ON kept FROM fairline_worker")
    fixture.flush()
    failing = fixture.worker.ledger.projections.failing
    assert failing == {"keep": "permission denied for table kept"}


def test_projection_that_rejects_every_ending_does_not_keep_its_job_running(
    database: DatabaseFixture,
) -> None:
    database.execute(TABLE)
    careless = "INSERT INTO kept (id, n) SELECT id, 1000 FROM settled WHERE type = 'keep'"
    keep = replace(database.types["keep"], project=careless)
    database.types = {**database.types, "keep": keep}
    with one_worker(database) as fixture:
        [bad] = submit(fixture, 1)
        run_all(fixture)
        row = database.job(bad)
        assert (row.status, row.error_class) == ("dead", "APP_ERROR")
        assert fixture.worker.slots.held() == []


def test_run_of_a_killed_process_is_settled_although_a_projection_fails(
    database: DatabaseFixture,
) -> None:
    claim = database.start(pool="short", type="keep")
    database.execute("UPDATE jobs SET started_at = now() - interval '1 hour'")
    url = database.engine.url.render_as_string(hide_password=False)
    announce(database.engine, Presence("w1", "worker", parent="its parent"))
    assert settle_overdue(url, database.types, "its parent", [JobRef(*claim.ref)]) == 1
    assert database.job(claim.ref.id).error_class == "TIMEOUT"


def test_settling_waits_if_it_fails_without_any_projection(fixture: OneWorker) -> None:
    """The schema is older or newer than the worker: results wait until it fits."""
    fixture.database.execute("ALTER TABLE attempts RENAME COLUMN error_message TO other")
    ids = [fixture.database.submit(pool="short") for _ in range(3)]
    fixture.execute(fixture.dispatched(100))
    ticket = fixture.worker.ledger.post_beat()
    assert not ticket.wait(1.0)
    fixture.database.execute("ALTER TABLE attempts RENAME COLUMN other TO error_message")
    assert ticket.wait(10)
    assert_finished_once(fixture, ids)


def wait_until(done: Callable[[], bool], seconds: float = 4.0) -> bool:
    """Whether it came true. By default sooner than a statement that waits for a lock gives up."""
    until = time.monotonic() + seconds
    while not done() and time.monotonic() < until:
        time.sleep(0.02)
    return done()


def have_succeeded(fixture: OneWorker, ids: list[str]) -> bool:
    """Whether all of them have; they may be written in several groups."""
    return {fixture.database.job(job_id).status for job_id in ids} == {"succeeded"}


def test_a_locked_table_of_one_type_delays_no_other(fixture: OneWorker) -> None:
    fixture.database.execute(TABLE)
    fixture.flush()
    others = [fixture.database.submit(pool="short") for _ in range(3)]
    locked = submit(fixture, 1, 2, 3)
    later = [fixture.database.submit(pool="short") for _ in range(3)]
    with held_lock(fixture.database, "LOCK TABLE kept IN SHARE MODE"):  # as CREATE INDEX does
        fixture.execute(fixture.dispatched(100))
        beat = fixture.worker.ledger.post_beat()

        def ended() -> bool:
            jobs = [fixture.database.job(job_id) for job_id in (*others, *later)]
            return {job.status for job in jobs} == {"succeeded"}

        assert wait_until(ended), "they wait for a lock of another type"
        assert beat.wait(4.0)
        assert {fixture.database.job(job_id).status for job_id in locked} == {"running"}
    fixture.flush()
    assert_finished_once(fixture, [*others, *locked, *later])
    assert fixture.database.query("SELECT count(*) FROM kept")[0].count == 3


def test_a_locked_table_of_a_type_that_does_not_run_here_delays_nothing(
    fixture: OneWorker,
) -> None:
    """Also among types with projections: each statement has those of its own jobs."""
    fixture.database.execute(TABLE)
    ids = submit(fixture, 1, 2, 3)
    with held_lock(fixture.database, "LOCK TABLE applications IN SHARE MODE"):
        fixture.execute(fixture.dispatched(100))
        assert wait_until(lambda: have_succeeded(fixture, ids))
    assert_finished_once(fixture, ids)


def test_a_worker_that_stops_writes_what_its_projections_have_to(fixture: OneWorker) -> None:
    fixture.database.execute(TABLE)
    ids = submit(fixture, 1, 2, 3)
    with held_lock(fixture.database, "LOCK TABLE kept IN SHARE MODE"):
        fixture.execute(fixture.dispatched(100))
        assert not fixture.worker.ledger.close(0.5), "not all of it is written"
    assert wait_until(lambda: fixture.database.job(ids[-1]).status == "succeeded", 15.0)
    assert fixture.worker.ledger.close(15.0)
    assert_finished_once(fixture, ids)
