"""Quotas from a response to the dispatcher: worker, table, pacers; and what operators can do."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest
from sqlalchemy.exc import DBAPIError

from app.errors import NotFound, ValidationFailed
from app.scheduler.dispatching import quotas
from app.scheduler.dispatching.quotas import READ_SECONDS, QuotaPacers
from app.tenants.quotas import clear_quota, declare_quota, read_quotas
from models.leadership import Leader
from models.store.session import connect
from tasks.context import JobContext
from tasks.errors import QuotaSpent
from tasks.quota import Allowance, QuotaReading
from tasks.worker.quotas import WRITE_SECONDS
from tests.support.database_fixture import DatabaseFixture
from tests.support.emptied import emptied
from tests.support.locks import held_lock
from tests.support.one_worker import OneWorker, one_worker

LIMITS = {"requests_per_minute": 60.0}
MODEL = "model"


@pytest.fixture
def database(api_database: DatabaseFixture) -> DatabaseFixture:
    return emptied(api_database)


@pytest.fixture
def worker(database: DatabaseFixture) -> Iterator[OneWorker]:
    """A worker whose jobs of the type ``echo`` depend on a model."""
    database.types = {**database.types, "echo": replace(database.types["echo"], dependency=MODEL)}
    with one_worker(database) as made:
        yield made


def run(worker: OneWorker, *acts: Any) -> list[str]:
    """Run jobs one after the other, written when it returns; their ids."""
    ids = []
    for act in acts:
        worker.act = act
        refs = worker.refs(1, dependency=MODEL)
        worker.execute(refs)
        worker.flush()
        ids.append(refs[0].id)
    return ids


def telling(**reading: Any) -> Any:
    return lambda ctx, payload: ctx.report_quota(QuotaReading(**reading))


def refusing(seconds: float | None) -> Any:
    def act(ctx: JobContext, payload: Any) -> None:
        raise QuotaSpent(MODEL, "enough", retry_after=seconds)

    return act


def row(database: DatabaseFixture) -> Any:
    return database.query(
        "SELECT *, extract(epoch FROM closed_until - now()) AS closed_seconds FROM quotas"
    )[0]


def clock(database: DatabaseFixture) -> datetime:
    now: datetime = database.query("SELECT now()")[0][0]
    return now


def closed_since(database: DatabaseFixture, moment: datetime) -> float:
    """Seconds from ``moment`` to the end of the closure, however long the test took since."""
    return float((row(database).closed_until - moment).total_seconds())


def read_now(database: DatabaseFixture) -> None:
    """As if no time passed until the test is over: what is used up comes back as it does."""
    database.execute("UPDATE quotas SET read_at = now() + interval '1 minute'")


def pacers_of(database: DatabaseFixture, **declared: Any) -> QuotaPacers:
    return QuotaPacers(database.engine, database.leader, database.types, declared)


def test_what_an_answer_said_reaches_the_dispatcher(worker: OneWorker) -> None:
    run(worker, telling(requests=Allowance(600, 3, 30.0)))
    read_now(worker.database)
    pacers = pacers_of(worker.database)
    assert pacers.allowances(100.0) == {MODEL: 0}  # a pacer that is new has saved nothing up
    assert pacers.allowances(101.0) == {MODEL: 3}
    pacers.spend(MODEL, 2)
    assert pacers.allowances(101.0) == {MODEL: 1}
    pacers.spend(MODEL, -1)
    assert pacers.allowances(101.0) == {MODEL: 2}


def test_what_is_declared_is_written_though_the_first_attempt_failed(
    database: DatabaseFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    database.types = {**database.types, "echo": replace(database.types["echo"], dependency=MODEL)}
    pacers = pacers_of(database, **{MODEL: LIMITS})
    with monkeypatch.context() as broken:
        broken.setattr(quotas, "DECLARE_FIRST", "SELECT 1 / 0")
        with pytest.raises(DBAPIError):
            pacers.allowances(100.0)
    assert MODEL in pacers.allowances(101.0 + quotas.DECLARE_SECONDS)


def test_a_locked_row_keeps_no_dependency_from_its_allowance(database: DatabaseFixture) -> None:
    """A new leader would dispatch nothing at all."""
    database.types = {
        **database.types,
        "echo": replace(database.types["echo"], dependency=MODEL),
        "sleep": replace(database.types["sleep"], dependency="other"),
    }
    database.execute("INSERT INTO quotas (dependency) VALUES (%s)", MODEL)
    pacers = pacers_of(database, **{MODEL: LIMITS, "other": LIMITS})
    with held_lock(database, "SELECT FROM quotas WHERE dependency = %s FOR UPDATE", MODEL):
        began = time.monotonic()
        assert set(pacers.allowances(100.0)) == {"other"}
        assert time.monotonic() - began < 3.0, "statements may take 5 s"
    assert set(pacers.allowances(101.0 + quotas.DECLARE_SECONDS)) == {MODEL, "other"}


def test_jobs_at_the_broker_count_against_what_is_left(worker: OneWorker) -> None:
    run(worker, telling(requests=Allowance(6000, 5, 30.0)))
    worker.refs(4, dependency=MODEL)
    read_now(worker.database)
    pacers = pacers_of(worker.database)
    pacers.allowances(100.0)
    assert pacers.allowances(101.0) == {MODEL: 1}


def test_the_latest_reading_wins_and_is_written_once_a_second(
    worker: OneWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert WRITE_SECONDS == 1.0
    monkeypatch.setattr("tasks.worker.quotas.WRITE_SECONDS", 60.0)  # on a busy machine
    run(worker, telling(requests=Allowance(60, 9)), telling(requests=Allowance(60, 8)))
    assert row(worker.database).reading["requests"][1] == 9
    worker.worker.quotas._written -= 60.0
    run(worker, telling(requests=Allowance(60, 7)))
    assert row(worker.database).reading["requests"][1] == 7


def test_an_older_reading_of_another_worker_does_not_replace_a_newer_one(
    worker: OneWorker,
) -> None:
    run(worker, telling(requests=Allowance(60, 9)))
    worker.database.execute("UPDATE quotas SET read_at = now() + interval '1 minute'")
    worker.worker.quotas._written -= 1.0
    run(worker, telling(requests=Allowance(60, 7)))
    assert row(worker.database).reading["requests"][1] == 9


def test_a_refusal_closes_the_tap_at_once_and_costs_the_job_no_try(worker: OneWorker) -> None:
    declare_quota(worker.database.engine, MODEL, LIMITS, {MODEL})
    pacers = pacers_of(worker.database)
    pacers.allowances(99.0)
    assert pacers.allowances(101.0) == {MODEL: 1}
    before = clock(worker.database)
    (refused,) = run(worker, refusing(120.0))
    assert row(worker.database).closed_seconds <= 120 <= closed_since(worker.database, before) + 2
    assert pacers.allowances(101.0 + READ_SECONDS) == {MODEL: 0}
    assert pacers.allowances(119.0) == {MODEL: 0}
    job = worker.database.job(refused)
    assert (job.status, job.attempt, job.deferrals, job.error_class) == (
        "scheduled",
        0,
        1,
        "DEPENDENCY",
    )


def test_a_refusal_is_written_before_the_ending_that_tells_of_it(
    worker: OneWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []
    write = worker.worker.ledger._write_settlements

    def look(settlements: Any) -> None:
        seen.append(len(worker.database.query("SELECT FROM quotas WHERE closed_until > now()")))
        write(settlements)

    monkeypatch.setattr(worker.worker.ledger, "_write_settlements", look)
    run(worker, refusing(20.0))
    assert seen == [1]


def test_a_refusal_does_not_count_against_the_circuit(worker: OneWorker) -> None:
    run(worker, refusing(20.0))
    assert not worker.database.query("SELECT FROM tallies WHERE kind = 'dependency'")
    assert row(worker.database).refused == 1


@pytest.mark.parametrize(
    ("asked", "least", "most"), [(None, 8, 10), (86_400.0, 590, 600), (0.0, 0.1, 1.0)]
)
def test_how_long_a_tap_is_closed_is_bounded(
    worker: OneWorker, asked: float | None, least: float, most: float
) -> None:
    before = clock(worker.database)
    run(worker, refusing(asked))
    assert least <= closed_since(worker.database, before)
    assert row(worker.database).closed_seconds <= most


def test_jobs_that_were_dispatched_before_go_back_without_a_call(worker: OneWorker) -> None:
    calls: list[str] = []
    run(worker, refusing(20.0))
    worker.act = lambda ctx, payload: calls.append(ctx.job_id)
    refs = worker.refs(3, dependency=MODEL)
    other = worker.refs(1)
    worker.execute((*refs, *other))
    worker.flush()
    assert calls == [other[0].id]
    jobs = [worker.database.job(ref.id) for ref in refs]
    assert {(job.status, job.attempt, job.deferrals) for job in jobs} == {("queued", 0, 0)}


def test_other_workers_hear_of_a_closed_tap(worker: OneWorker) -> None:
    calls: list[str] = []
    worker.database.execute(
        "INSERT INTO quotas (dependency, closed_until) VALUES (%s, now() + interval '1 min')", MODEL
    )
    worker.flush()  # a sign of life brings the rules
    worker.act = lambda ctx, payload: calls.append(ctx.job_id)
    worker.execute(worker.refs(2, dependency=MODEL))
    assert not calls


def test_an_operator_opens_a_tap_and_workers_follow(worker: OneWorker) -> None:
    run(worker, refusing(300.0))
    before = clock(worker.database)
    clear_quota(worker.database.engine, MODEL)
    # Until every worker has heard of it.
    assert closed_since(worker.database, before) > 1
    assert row(worker.database).closed_seconds <= 2.5
    worker.database.execute("UPDATE quotas SET closed_until = now()")
    worker.flush()
    (job_id,) = run(worker, lambda ctx, payload: None)
    assert worker.database.job(job_id).status == "succeeded"


def test_a_dependency_that_no_type_declares_gets_no_quota(worker: OneWorker) -> None:
    def act(ctx: JobContext, payload: Any) -> None:
        raise QuotaSpent("made up", retry_after=5)

    (job_id,) = run(worker, act)
    assert not worker.database.query("SELECT FROM quotas")
    assert worker.database.job(job_id).attempt == 0


def test_tokens_that_calls_used_bound_the_calls_to_come(worker: OneWorker) -> None:
    declare_quota(worker.database.engine, MODEL, {"tokens_in_per_minute": 6_000.0}, {MODEL})
    worker.flush()

    def charged(ctx: JobContext, payload: Any) -> None:
        ctx.charge_tokens(900, 20)
        ctx.report_quota(QuotaReading(used_in=50, used_out=20))  # the rest was cached

    run(worker, charged, lambda ctx, payload: ctx.charge_tokens(50, 20))
    worker.worker.quotas.write(worker.database.engine, 0.0)
    assert (row(worker.database).calls, row(worker.database).tokens_in) == (2, 100)
    pacers = pacers_of(worker.database)
    pacers.allowances(100.0)
    assert pacers.allowances(101.0) == {MODEL: 1}  # 95 tokens a second, 50 a call


def test_counts_alone_make_no_quota(worker: OneWorker) -> None:
    run(worker, lambda ctx, payload: ctx.charge_tokens(50, 20))
    worker.worker.quotas.write(worker.database.engine, 0.0)
    assert not worker.database.query("SELECT FROM quotas")


def test_news_wait_here_while_the_store_is_away(
    worker: OneWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    from models.store.errors import StateStoreUnavailable
    from tasks.worker import quotas

    def away(engine: Any) -> Any:
        raise StateStoreUnavailable

    told = worker.worker.quotas
    told.note(MODEL, {"requests": Allowance(60, 5)}, 10.0)
    told.refuse(MODEL, 30.0, 10.0)
    with monkeypatch.context() as patched:
        patched.setattr(quotas, "connect", away)
        with pytest.raises(StateStoreUnavailable):
            told.write(worker.database.engine, 11.0)
    assert told.due(11.0)
    assert told.is_closed(MODEL, 39.0)
    before = clock(worker.database)
    told.write(worker.database.engine, 15.0)
    assert row(worker.database).reading["requests"][1] == 5
    assert closed_since(worker.database, before) > 24
    assert row(worker.database).closed_seconds <= 25


def test_a_scheduler_that_takes_over_begins_with_empty_buckets(database: DatabaseFixture) -> None:
    declare_quota(database.engine, "claude", {"requests_per_minute": 6000.0}, {"claude"})
    pacers = pacers_of(database)
    pacers.allowances(100.0)
    assert pacers.allowances(101.0) == {"claude": 95}
    database.leader.resign()
    successor = Leader(database.engine, "successor")
    successor.run_once(0.0)
    pacers = QuotaPacers(database.engine, successor, database.types)
    assert pacers.allowances(200.0) == {"claude": 0}


def test_a_start_value_stands_until_an_operator_says_otherwise(database: DatabaseFixture) -> None:
    pacers_of(database, claude=LIMITS).allowances(1.0)
    assert row(database).requests_per_minute == 60
    declare_quota(database.engine, "claude", {"requests_per_minute": 30.0}, {"claude"})
    pacers_of(database, claude=LIMITS).allowances(1.0)
    assert row(database).requests_per_minute == 30


def test_a_quota_that_was_only_learned_ages_out(database: DatabaseFixture) -> None:
    database.execute(
        "INSERT INTO quotas (dependency, reading, read_at) VALUES"
        " ('claude', %s, now() - interval '61 minutes')",
        json.dumps({"requests": [60, 0, 7200]}),
    )
    assert pacers_of(database).allowances(1.0) == {}
    assert not database.query("SELECT FROM quotas")


def test_a_leader_of_the_past_forgets_and_declares_nothing(database: DatabaseFixture) -> None:
    database.execute("INSERT INTO quotas (dependency) VALUES ('old')")
    database.execute("UPDATE leaders SET epoch = epoch + 1")
    pacers_of(database, claude=LIMITS).allowances(1.0)
    assert [found.dependency for found in database.query("SELECT dependency FROM quotas")] == [
        "old"
    ]


def test_operators_see_what_is_declared_and_what_is_learned(database: DatabaseFixture) -> None:
    declared = declare_quota(database.engine, "claude", LIMITS, {"claude"})
    assert (declared.requests_per_minute, declared.reading) == (60, {})
    database.execute(
        "UPDATE quotas SET reading = %s, read_at = now()", json.dumps({"tokens": [9, 8, 7]})
    )
    with connect(database.engine) as connection:
        (found,) = read_quotas(connection)
    assert found.reading == {"tokens": (9, 8, 7)}
    clear_quota(database.engine, "claude")
    with connect(database.engine) as connection:
        assert read_quotas(connection) == []


def test_a_quota_that_makes_no_sense_is_refused(database: DatabaseFixture) -> None:
    for limits in ({}, {"requests_per_minute": 0.0}, {"requests_per_minute": 1e13}, {"odd": 1.0}):
        with pytest.raises(ValidationFailed):
            declare_quota(database.engine, "claude", limits, {"claude"})
    with pytest.raises(NotFound, match="Dependencies are: claude"):
        declare_quota(database.engine, "cluade", LIMITS, {"claude"})
    for name in ("claude", "\0"):
        with pytest.raises(NotFound):
            clear_quota(database.engine, name)
