"""Commits that a failover or a restore lost: a second worker has the same lease number.

The row is set back to what it was before the claim of the first worker, which knows nothing of
that. Whatever it writes afterwards must find no row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from sqlalchemy import Engine

from models.blobs import INLINE_BYTES
from models.jobs.checkpoint import Saving
from models.jobs.claim import Claim
from models.leadership import STILL_LEADER, Leader
from models.store.session import transaction
from tasks.errors import LeaseLost, TimeLimit
from tasks.watchdog.emergency_write import connect_arguments, write_now
from tasks.watchdog.lost_runs import defer_unknown, expire_lost, settle_overdue
from tasks.watchdog.watchdog import Watchdog
from tasks.worker.outcome import Failed, FailureClass, HandedBack, Outcome, Succeeded
from tasks.worker.pipeline import decide
from tasks.worker.run_context import RunContext
from tests.support.database_fixture import DatabaseFixture
from tests.support.one_worker import OneWorker, one_worker


@dataclass
class TwoClaims:
    """Two workers with the same job under the same lease number; the row knows the second."""

    database: DatabaseFixture
    stale: OneWorker
    claim: Claim
    current: OneWorker
    second: Claim

    def settle(self, outcome: Outcome) -> None:
        decided, ending = decide(self.claim, outcome, self.stale.worker)
        self.stale.worker.ledger.settle(self.claim, decided, ending, 1.0)
        self.stale.flush()


def forget_commits_after(database: DatabaseFixture, act: Callable[[], object]) -> None:
    """Set ``jobs`` and ``leaders`` back to what they were before ``act``."""
    tables = ("jobs", "leaders")
    for table in tables:
        database.execute(f"CREATE TABLE before_{table} AS SELECT * FROM {table}")
    try:
        act()
        with transaction(database.engine) as connection:
            # Without triggers: no statement of the product may go back like this.
            connection.exec_driver_sql("SET LOCAL session_replication_role = replica")
            for table in tables:
                connection.exec_driver_sql(f"DELETE FROM {table}")
                connection.exec_driver_sql(f"INSERT INTO {table} SELECT * FROM before_{table}")
    finally:
        for table in tables:
            database.execute(f"DROP TABLE before_{table}")


@pytest.fixture
def database(engine: Engine) -> DatabaseFixture:
    return DatabaseFixture(engine)


@pytest.fixture
def two(database: DatabaseFixture, tmp_path: Path) -> Iterator[TwoClaims]:
    with (
        one_worker(database, name="stale", blobs=tmp_path) as stale,
        one_worker(database, name="new", blobs=tmp_path) as current,
    ):
        refs = stale.refs(1)
        claims: list[Claim] = []
        forget_commits_after(database, lambda: claims.extend(stale.worker.slots.claim(refs)))
        [claim] = claims
        stale.worker.slots.begin(claim)
        [second] = current.worker.slots.claim(refs)
        current.worker.slots.begin(second)
        assert claim.ref == second.ref
        yield TwoClaims(database, stale, claim, current, second)


def test_a_stale_worker_s_heartbeat_renews_nothing_and_says_so(two: TwoClaims) -> None:
    [held] = two.stale.worker.slots.held()
    before = two.database.job(two.claim.ref.id).lease_expires_at
    two.stale.flush()
    assert held.lost
    assert two.database.job(two.claim.ref.id).lease_expires_at == before


def test_a_stale_worker_saves_no_checkpoint(two: TwoClaims) -> None:
    assert two.current.worker.ledger.save(Saving(two.second.ref, '"new"', None)).ours
    assert not two.stale.worker.ledger.save(Saving(two.claim.ref, '"stale"', None)).ours
    assert two.database.query("SELECT state FROM checkpoints")[0].state == "new"


def test_a_stale_worker_leaves_the_blob_of_the_current_checkpoint(two: TwoClaims) -> None:
    contexts = []
    for one, claim in ((two.stale, two.claim), (two.current, two.second)):
        held = one.worker.slots.find(claim.ref)
        assert held is not None
        contexts.append(RunContext(one.worker, held))
    stale, current = contexts
    current.checkpoint("new" * INLINE_BYTES)
    with pytest.raises(LeaseLost):
        stale.checkpoint("stale" * INLINE_BYTES)
    assert current.load_checkpoint() == "new" * INLINE_BYTES


def test_a_stale_worker_reports_no_progress(two: TwoClaims) -> None:
    [held] = two.stale.worker.slots.held()
    held.progress, held.progress_written = '{"done": 9}', False
    two.stale.flush()
    assert two.database.job(two.claim.ref.id).progress is None


@pytest.mark.parametrize(
    "outcome",
    [Succeeded('"stale"'), Failed(FailureClass.PERMANENT, "stale"), HandedBack()],
    ids=lambda outcome: type(outcome).__name__,
)
def test_a_stale_worker_settles_nothing(two: TwoClaims, outcome: Outcome) -> None:
    two.settle(outcome)
    job = two.database.job(two.claim.ref.id)
    assert (job.status, job.worker, job.result) == ("running", "new", None)
    assert not two.database.query("SELECT 1 FROM attempts UNION ALL SELECT 1 FROM usage")
    decided, ending = decide(two.second, Succeeded('"new"'), two.current.worker)
    two.current.worker.ledger.settle(two.second, decided, ending, 1.0)
    two.current.flush()
    assert two.database.job(two.claim.ref.id).result == "new"


def test_a_stale_worker_that_dies_writes_nothing_for_its_runs(two: TwoClaims) -> None:
    watchdog = Watchdog(two.stale.worker, ["short"], 5.0)
    [held] = two.stale.worker.slots.held()
    arguments = connect_arguments(two.database.engine.url)
    before = two.database.job(two.claim.ref.id)
    for guilty in ([(held, TimeLimit("too long"))], []):
        write_now(arguments, watchdog._final_statements(guilty))
        assert two.database.job(two.claim.ref.id) == before


def test_the_parent_of_a_stale_child_writes_nothing_for_it(two: TwoClaims) -> None:
    url = two.database.engine.url.render_as_string(hide_password=False)
    two.database.execute("UPDATE jobs SET started_at = started_at - interval '1 hour'")
    before = two.database.job(two.claim.ref.id)
    settle_overdue(url, two.stale.worker.types, "its parent", [two.claim.ref])
    expire_lost(url, "its parent", [two.claim.ref])
    assert two.database.job(two.claim.ref.id) == before


def test_a_process_defers_no_unknown_job_that_another_one_has_claimed_to_defer(
    two: TwoClaims,
) -> None:
    two.database.execute("UPDATE jobs SET worker = 'nobody@new'")
    before = two.database.job(two.claim.ref.id)
    url = two.database.engine.url.render_as_string(hide_password=False)
    defer_unknown(url, "stale", "echo", [two.claim.ref])
    assert two.database.job(two.claim.ref.id) == before
    [ref] = two.stale.refs(1)
    defer_unknown(url, "stale", "echo", [ref])
    assert two.database.job(ref.id).status == "scheduled"


def test_a_process_does_not_claim_what_it_holds_when_the_claim_was_lost(
    database: DatabaseFixture,
) -> None:
    with one_worker(database) as one:
        refs = one.refs(1)
        claims: list[Claim] = []
        forget_commits_after(database, lambda: claims.extend(one.worker.slots.claim(refs)))
        assert one.worker.slots.claim(refs) == (), "it would run the job twice"
        one.worker.slots.find(refs[0]).lost = True  # type: ignore[union-attr]
        assert one.worker.slots.claim(refs) == ()


def test_a_claim_that_was_dropped_does_not_begin_as_the_one_after_it(
    database: DatabaseFixture,
) -> None:
    with one_worker(database) as one:
        refs = one.refs(1)
        claims: list[Claim] = []
        forget_commits_after(database, lambda: claims.extend(one.worker.slots.claim(refs)))
        one.worker.slots.forget(refs[0])  # handed back, before its thread had a slot
        [again] = one.worker.slots.claim(refs)
        assert one.worker.slots.begin(claims[0]) is None
        assert one.worker.slots.begin(again) is not None


def test_a_leader_whose_term_was_lost_leads_no_more(database: DatabaseFixture) -> None:
    old, new = Leader(database.engine, "old"), Leader(database.engine, "new")
    database.execute("UPDATE leaders SET expires_at = now() - interval '1 second'")
    forget_commits_after(database, lambda: old.run_once(0.0))
    new.run_once(0.0)
    assert old.epoch and new.epoch, "both believe that they lead"
    sql = f"SELECT 1 WHERE {STILL_LEADER}".replace("%(epoch)s", "%s")
    assert database.query(sql, new.epoch)
    assert not database.query(sql, old.epoch)


def test_the_first_leader_of_an_empty_table_is_fenced_too(database: DatabaseFixture) -> None:
    old, new = Leader(database.engine, "old"), Leader(database.engine, "new")
    database.execute("DELETE FROM leaders")
    forget_commits_after(database, lambda: old.run_once(0.0))
    new.run_once(0.0)
    assert old.epoch and new.epoch and old.epoch != new.epoch
