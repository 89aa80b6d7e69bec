"""A tenant that is away: its cell admits, dispatches, ticks and replays nothing."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from app.scheduler.maintenance.replayer import Replayer
from app.tenants.caps import cap_of
from app.tenants.changes import create_tenant
from app.tenants.tenant import TenantProfile
from models.cells.away import StillAdmitting, read_away, wait_for_older_statements
from models.jobs import admit_alone as alone
from models.jobs import replay_requests
from models.jobs.admit import JobsOfAwayTenants, admit_group, insert_jobs
from models.jobs.admit_alone import admit_alone, is_away
from models.jobs.ids import new_id
from models.jobs.replay_requests import ReplayRequest
from models.jobs.settle import Ending
from models.jobs.states import JobStatus
from models.jobs.submission import (
    Admitted,
    IdempotencyKey,
    KeyReused,
    Submission,
    SubmissionGroup,
    TenantAway,
)
from models.presence import Presence, announce
from models.store.session import transaction
from tests.integration.scheduler.test_recurring_jobs import keep, role
from tests.support.away_tenants import close_tenant, open_tenant
from tests.support.database_fixture import DatabaseFixture, FakePublisher
from tests.support.emptied import emptied


@pytest.fixture
def database(api_database: DatabaseFixture) -> DatabaseFixture:
    found = emptied(api_database)
    found.execute("DELETE FROM tenants WHERE id > 1")
    found.execute("UPDATE leaders SET expires_at = now() + interval '1 hour'")
    return found


@pytest.fixture
def acme(database: DatabaseFixture) -> int:
    """A tenant that is away."""
    tenant_id = create_tenant(database.engine, "acme").id
    assert close_tenant(database.engine, tenant_id, 3)
    return tenant_id


def entry(tenant_id: int, key: str | None = None, placement: int | None = None) -> SubmissionGroup:
    job = Submission(new_id(), tenant_id, "score_application", "medium", "{}", candidate="Ada")
    made = None if key is None else IdempotencyKey(key, b"digest")
    if made is not None and placement is not None:
        made = made._replace(placement=placement)
    return SubmissionGroup((job._replace(role="x"),), made)


def stored(database: DatabaseFixture) -> list[str]:
    rows = database.query("SELECT id::text AS id FROM jobs ORDER BY id")
    return [row.id for row in rows]


@pytest.mark.parametrize("keys", [False, True])
@pytest.mark.parametrize("express", [False, True])
def test_of_a_group_the_others_are_admitted(
    database: DatabaseFixture, acme: int, keys: bool, express: bool
) -> None:
    database.execute("INSERT INTO express_lanes (pool, credit, slots) VALUES ('medium', 100, 10)")
    group = [
        entry(tenant_id, f"k{place}" if keys and place % 2 else None)
        for place, tenant_id in enumerate((1, 1, acme, acme, 1, acme))
    ]
    outcomes = admit_group(database.engine, group, express)
    admitted = [place for place, outcome in enumerate(outcomes) if isinstance(outcome, Admitted)]
    assert admitted == [0, 1, 4]
    assert all(isinstance(outcomes[place], TenantAway) for place in (2, 3, 5))
    ids = [group[place].submissions[0].id for place in admitted]
    assert stored(database) == ids
    assert len(database.query("SELECT FROM applications")) == 3
    tenants = [row.tenant_id for row in database.query("SELECT tenant_id FROM idempotency_keys")]
    assert tenants == ([1] if keys else [])
    [lane] = database.query("SELECT credit FROM express_lanes")
    assert lane.credit == (97 if express else 100), "nothing was taken for the others"
    assert not database.miscounted()
    open_tenant(database.engine, acme, 3)
    again = admit_group(database.engine, group, express)
    assert all(isinstance(outcome, Admitted) for outcome in again)
    assert len(stored(database)) == 6


def test_a_job_that_comes_alone_is_refused_too(database: DatabaseFixture, acme: int) -> None:
    outcome = admit_alone(database.engine, entry(acme), express=True, give=True)
    assert isinstance(outcome, TenantAway)
    assert isinstance(admit_alone(database.engine, entry(1), True, True), Admitted)
    assert len(stored(database)) == 1


@pytest.mark.parametrize("key", [None, "k"])
def test_a_job_whose_tenant_is_brought_back_meanwhile_is_inserted(
    database: DatabaseFixture, acme: int, key: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the statement that inserts nothing and the one that asks why."""

    def brought_back(*asked: Any) -> bool:
        open_tenant(database.engine, acme, 3)
        return is_away(*asked)

    monkeypatch.setattr(alone, "is_away", brought_back)
    first = entry(acme, key)
    for _ in range(2):  # the second time as if its answer had been lost
        outcome = admit_alone(database.engine, first, express=True, give=True)
        assert isinstance(outcome, Admitted) and not outcome.repeated
        assert stored(database) == list(outcome.ids)


def test_a_key_that_was_used_before_is_refused_while_its_tenant_is_away(
    database: DatabaseFixture, acme: int
) -> None:
    open_tenant(database.engine, acme, 3)
    first = entry(acme, "k")
    admit_group(database.engine, [first], False)
    close_tenant(database.engine, acme, 4)
    assert [*map(type, admit_group(database.engine, [entry(acme, "k")], False))] == [TenantAway]
    open_tenant(database.engine, acme, 4)
    [again] = admit_group(database.engine, [entry(acme, "k")], False)
    assert isinstance(again, Admitted) and again.ids == (first.submissions[0].id,)


def test_keys_of_callers_who_know_an_earlier_placement_are_refused(
    database: DatabaseFixture, acme: int
) -> None:
    open_tenant(database.engine, acme, 5)
    old, new, without = entry(acme, "old", 4), entry(acme, "new", 5), entry(acme)
    later = entry(acme, "later", 6)
    outcomes = admit_group(database.engine, [old, new, without, later], False)
    assert [*map(type, outcomes)] == [TenantAway, Admitted, Admitted, Admitted]
    assert len(stored(database)) == 3
    [row] = admit_group(database.engine, [entry(acme, "new", 4)], False)
    assert isinstance(row, TenantAway), "a repetition may belong elsewhere as well"
    other = SubmissionGroup(entry(acme).submissions, IdempotencyKey("new", b"other", 5))
    assert [*map(type, admit_group(database.engine, [other], False))] == [KeyReused]


def test_an_earlier_placement_changes_nothing(database: DatabaseFixture, acme: int) -> None:
    assert not open_tenant(database.engine, acme, 2)
    assert [row.tenant_id for row in read_away(database.engine)] == [acme]
    assert open_tenant(database.engine, acme, 4)
    assert not close_tenant(database.engine, acme, 3), "a runner that comes late"
    assert not read_away(database.engine)


def test_jobs_of_a_transaction_are_all_inserted_or_none(
    database: DatabaseFixture, acme: int
) -> None:
    jobs = [entry(tenant_id).submissions[0] for tenant_id in (1, acme)]
    with pytest.raises(JobsOfAwayTenants), transaction(database.engine) as connection:
        insert_jobs(connection, jobs)
    assert not stored(database)


def test_queued_jobs_are_not_dispatched(database: DatabaseFixture, acme: int) -> None:
    open_tenant(database.engine, acme, 3)
    theirs, ours = database.submit(tenant_id=acme), database.submit(tenant_id=1)
    announce(database.engine, Presence("w1", "worker", ["medium"], slots=10))
    dispatcher = database.dispatcher(FakePublisher())
    close_tenant(database.engine, acme, 4)
    # As a dispatcher that has not noticed it would.
    assert [one.id for one in database.dispatch()] == [ours]
    database.execute("UPDATE jobs SET status = 'queued' WHERE id = %s", ours)
    for turn in range(3):
        dispatcher.run_once(10.0 * turn)
    rows = database.query("SELECT id::text AS id FROM jobs WHERE status = 'queued'")
    assert [row.id for row in rows] == [theirs]
    open_tenant(database.engine, acme, 5)
    for turn in range(3):
        dispatcher.run_once(100.0 + 10.0 * turn)
    assert not database.query("SELECT FROM jobs WHERE status = 'queued'")


def test_schedules_tick_again_when_their_tenant_is_back(
    database: DatabaseFixture, acme: int
) -> None:
    schedule = keep(database, tenant_id=acme)
    keep(database, tenant_id=1)
    scheduler = role(database)
    assert scheduler.run_once(0.0) == 1
    assert [row.tenant_id for row in database.query("SELECT tenant_id FROM jobs")] == [1]
    open_tenant(database.engine, acme, 3)
    assert scheduler.run_once(1.0) == 1
    [row] = database.query("SELECT made, paused FROM schedules WHERE id = %s", schedule)
    assert row.made == 1 and not row.paused
    assert len(stored(database)) == 2


def test_a_tick_is_not_lost_if_its_tenant_is_sent_away_meanwhile(
    database: DatabaseFixture, acme: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_tenant(database.engine, acme, 3)
    schedule = keep(database, tenant_id=acme)
    before = database.query("SELECT next_at FROM schedules WHERE id = %s", schedule)
    scheduler = role(database)
    save = scheduler._save

    def late(*arguments: object) -> None:
        close_tenant(database.engine, acme, 4)
        save(*arguments)  # type: ignore[arg-type]  # as they come

    monkeypatch.setattr(scheduler, "_save", late)
    assert scheduler.run_once(0.0) == 0
    assert not stored(database)
    after = database.query("SELECT next_at FROM schedules WHERE id = %s AND NOT paused", schedule)
    assert after == before, "it is still due, wherever the schedule goes"


def test_replays_wait(database: DatabaseFixture, acme: int) -> None:
    open_tenant(database.engine, acme, 3)
    claim = database.start(tenant_id=acme)
    assert database.settle(claim.ref, Ending(JobStatus.DEAD, 1))
    assert replay_requests.create(database.engine, ReplayRequest(acme), 1) is not None
    close_tenant(database.engine, acme, 4)
    limits = role(database)._tenant_limits
    replayer = Replayer(database.engine, database.leader, limits)
    assert replayer.run_once(0.0) == 0
    open_tenant(database.engine, acme, 5)
    assert replayer.run_once(10.0) == 1


def test_older_statements_are_waited_for(database: DatabaseFixture, acme: int) -> None:
    wait_for_older_statements(database.engine)
    ended = threading.Event()

    def waits(work: Callable[[], object]) -> threading.Thread:
        def run() -> None:
            work()
            ended.set()

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        return thread

    with transaction(database.engine) as connection:
        connection.exec_driver_sql("SELECT 1")
        with pytest.raises(StillAdmitting):
            wait_for_older_statements(database.engine, 0.2)
        thread = waits(lambda: wait_for_older_statements(database.engine))
        assert not ended.wait(0.3)
    thread.join(15)
    assert ended.is_set()


def test_later_statements_are_not_waited_for(database: DatabaseFixture) -> None:
    """Otherwise a busy cell would never be known to be closed."""
    stop = threading.Event()

    def busy() -> None:
        while not stop.is_set():
            with transaction(database.engine) as connection:
                connection.exec_driver_sql("SELECT pg_sleep(0.05)")

    threads = [threading.Thread(target=busy, daemon=True) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        wait_for_older_statements(database.engine, 5.0)
    finally:
        stop.set()
        for thread in threads:
            thread.join()


@pytest.mark.parametrize(("share", "cap"), [(1.0, 10), (0.5, 5), (0.25, 3), (0.01, 1)])
def test_the_cap_of_a_spread_tenant_is_divided(
    database: DatabaseFixture, acme: int, share: float, cap: int
) -> None:
    from app.tenants.listing import read_tenant
    from models.store.session import connect

    open_tenant(database.engine, acme, 3)
    database.execute(
        "INSERT INTO tenant_limits (tenant_id, pool, in_flight) VALUES (%s, 'medium', 10)", acme
    )
    database.execute("UPDATE tenants SET share = %s WHERE id = %s", share, acme)
    with connect(database.engine) as connection:
        found = read_tenant(connection, "acme")
    assert found is not None
    profile: TenantProfile = found.tenant
    assert cap_of(profile, "medium") == cap
    for _ in range(12):
        database.submit(tenant_id=acme)
    announce(database.engine, Presence("w1", "worker", ["medium"], slots=40))
    dispatcher = database.dispatcher(FakePublisher())
    for turn in range(5):
        dispatcher.run_once(10.0 * turn)
    assert len(database.query("SELECT FROM jobs WHERE status = 'dispatched'")) == cap
