"""A run that reports or raises what no row can keep costs no other run of its worker anything."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from typing import Any

import psycopg2
import pytest
from sqlalchemy import Engine

from models.jobs.claim import JobRef
from models.jobs.heartbeat import RunReport
from tasks.context import JobContext
from tasks.errors import DependencyFailure, QuotaSpent, Snooze
from tasks.quota import QuotaReading
from tasks.watchdog.emergency_write import connect_arguments, write_now
from tasks.worker import heartbeat, pipeline
from tasks.worker.pipeline import execute_claim
from tasks.worker.quotas import QuotaTracker
from tasks.worker.run_context import MOST_TOKENS
from tests.support.one_worker import OneWorker
from tests.support.waiting import wait_for

#: No number of seconds.
SOON: Any = "soon"


class Unreadable(Exception):
    """An error whose attributes cannot be read."""

    @property
    def __class__(self) -> Any:
        raise RuntimeError("no class")


@pytest.mark.parametrize(("used", "kept"), [(2**70, MOST_TOKENS), (2.9, 2), (-5, 0)])
def test_any_number_of_tokens_can_be_charged(fixture: OneWorker, used: Any, kept: int) -> None:
    def act(ctx: JobContext, payload: Any) -> None:
        ctx.charge_tokens(used, 1)
        ctx.charge_tokens(0, used)
        ctx.report_quota(QuotaReading(used_in=used, used_out=used))
        assert fixture.worker.slots.held()[0].quota_tokens == (kept, kept)
        fixture.worker.ledger.post_beat().result(30)

    fixture.act = act
    (ref,) = fixture.refs(1)
    fixture.execute((ref,))
    fixture.flush()
    assert fixture.database.job(ref.id).status == "succeeded"
    [usage] = fixture.database.query("SELECT tokens_in, tokens_out FROM usage")
    assert (usage.tokens_in, usage.tokens_out) == (kept, min(kept + 1, MOST_TOKENS))


def test_tokens_that_are_no_number_are_an_error_of_the_job(fixture: OneWorker) -> None:
    def act(ctx: JobContext, payload: Any) -> None:
        ctx.charge_tokens(math.nan, 0)  # type: ignore[arg-type]

    fixture.act = act
    (ref,) = fixture.refs(1)
    fixture.execute((ref,))
    fixture.flush()
    assert "NaN" in fixture.database.job(ref.id).error_message


def test_a_report_that_is_refused_costs_no_other_its_report_and_no_lease(
    fixture: OneWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad, *good = fixture.refs(3)
    write = heartbeat.report

    def refuse(engine: Engine, worker: str, reports: list[RunReport]) -> set[JobRef]:
        spoiled = [one._replace(progress="{") if one.ref.id == bad.id else one for one in reports]
        return write(engine, worker, spoiled)

    monkeypatch.setattr(heartbeat, "report", refuse)
    everybody = threading.Barrier(4, timeout=30)

    def act(ctx: JobContext, payload: Any) -> None:
        ctx.progress(1, 2)
        everybody.wait()
        everybody.wait()

    fixture.act = act
    run = threading.Thread(target=fixture.execute, args=((bad, *good),))
    run.start()
    everybody.wait()
    for _ in range(2):  # the second does not try the refused one again
        fixture.worker.ledger.post_beat().result(30)
    for ref in good:
        assert fixture.database.job(ref.id).progress == {"done": 1, "total": 2}
    everybody.wait()
    run.join(30)
    fixture.flush()
    assert {fixture.database.job(ref.id).status for ref in (bad, *good)} == {"succeeded"}


def test_leases_are_renewed_while_nothing_else_of_a_heartbeat_can_be_written(
    fixture: OneWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    (ref,) = fixture.refs(1)
    beats = fixture.worker.heartbeat

    def fail() -> None:
        raise ValueError("cannot be exchanged")

    monkeypatch.setattr(beats, "_exchange", fail)
    beats._beaten -= 60.0
    beats.start(fixture.worker.ledger)
    fixture.execute((ref,))  # its ending is written behind a heartbeat that is late
    wait_for(lambda: fixture.database.job(ref.id).status == "succeeded")


def raising(error: Callable[[], BaseException]) -> Callable[..., None]:
    def act(ctx: JobContext, payload: Any) -> None:
        raise error()

    return act


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (lambda: Snooze(math.inf), "scheduled"),
        (lambda: Snooze(math.nan), "scheduled"),
        (lambda: Snooze(SOON), "scheduled"),  # an APP_ERROR, which is retried
        (lambda: DependencyFailure("disk", retry_after=SOON), "scheduled"),
        (lambda: DependencyFailure("disk", retry_after=math.nan), "scheduled"),
        (lambda: QuotaSpent("disk", retry_after=10**400), "scheduled"),
        (Unreadable, "scheduled"),
    ],
)
def test_whatever_is_raised_becomes_an_ending(
    fixture: OneWorker, error: Callable[[], BaseException], status: str
) -> None:
    fixture.act = raising(error)
    (ref,) = fixture.refs(1)
    fixture.execute((ref,))
    fixture.flush()
    assert fixture.database.job(ref.id).status == status
    assert not fixture.worker.slots.held()


def test_a_run_that_cannot_be_settled_is_left_to_its_lease(
    fixture: OneWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad, good = fixture.refs(2)
    decide = pipeline.decide

    def fail(claim: Any, outcome: Any, worker: Any) -> Any:
        if claim.ref == bad:
            raise ValueError("no decision")
        return decide(claim, outcome, worker)

    monkeypatch.setattr(pipeline, "decide", fail)
    for claim in fixture.worker.slots.claim((bad, good)):
        execute_claim(claim, fixture.worker)
    fixture.flush()
    assert fixture.database.job(good.id).status == "succeeded"
    assert fixture.database.job(bad.id).status == "running"
    assert not fixture.worker.slots.held(), "nobody renews its lease"


def test_a_quota_that_the_table_refuses_does_not_keep_others_from_being_written(
    fixture: OneWorker,
) -> None:
    tracker = QuotaTracker(["bad", "good"])
    for name in ("bad", "good"):
        tracker.refuse(name, 30.0, 0.0)
    tracker._news["bad"].tokens_in = 2**70
    tracker.write(fixture.database.engine, 0.0)
    [row] = fixture.database.query("SELECT dependency, refused FROM quotas")
    assert (row.dependency, row.refused) == ("good", 1)
    assert not tracker.due(10.0), "refused news are sent again"


def test_a_statement_of_an_emergency_that_fails_keeps_no_other_from_being_written(
    fixture: OneWorker,
) -> None:
    arguments = connect_arguments(fixture.database.engine.url)
    fixture.database.execute("CREATE TABLE notes (text text)")
    fixture.database.execute("GRANT INSERT ON notes TO PUBLIC")
    insert = "INSERT INTO notes VALUES (%(text)s)"
    statements = [
        (insert, {"text": "first"}),
        ("SELECT 1 / %(nothing)s", {"nothing": 0}),
        (insert, {"text": "last"}),
    ]
    try:
        with pytest.raises(psycopg2.errors.DivisionByZero):
            write_now(arguments, statements)
        assert [row.text for row in fixture.database.query("SELECT text FROM notes")] == [
            "first",
            "last",
        ]
    finally:
        fixture.database.execute("DROP TABLE notes")
