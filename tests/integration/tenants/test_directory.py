"""The directory: what a process knows of keys and tenants, and how soon it hears of changes."""

from __future__ import annotations

import threading
import time
from datetime import datetime, timedelta

import pytest
from sqlalchemy import Engine

from app.errors import Unauthenticated
from app.tenants import directory as module
from app.tenants.changes import CreatedKey, change_tenant, create_tenant, issue_key, revoke_key
from app.tenants.directory import Caller, Directory
from app.tenants.key_uses import WRITE_SECONDS
from app.tenants.keys import new_key
from app.tenants.tenant import PoolLimits
from app.tenants.terms import Change
from models.settings import DatabaseSettings
from models.store.clock import DATABASE_CLOCK
from models.store.errors import StateStoreUnavailable
from models.store.session import fetch, open_engine, transaction
from tests.support.database_fixture import DatabaseFixture


class Clock:
    """A clock that stands until it is set."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Counting(Directory):
    """A directory that is refreshed by the test, and counts what it asks."""

    def __init__(self, engine: Engine) -> None:
        self.time = Clock()
        self.asked: list[set[str]] = []
        super().__init__(engine, 2.0, refresh_seconds=0, clock=self.time)

    def _read_keys(self, keys: set[str]) -> dict[str, Caller]:  # type: ignore[override]  # narrower
        self.asked.append(set(keys))
        return super()._read_keys(keys)


@pytest.fixture(autouse=True)
def acme(api_database: DatabaseFixture) -> str:
    """A tenant of the test's own."""
    api_database.execute("DELETE FROM api_keys; DELETE FROM tenant_limits")
    api_database.execute("DELETE FROM tenants WHERE name = 'acme'")
    create_tenant(api_database.engine, "acme")
    # Long ago, or its creation would be what the first looks find.
    api_database.execute("UPDATE tenants SET changed_at = now() - interval '1 hour'")
    return "acme"


@pytest.fixture
def engine(api_database: DatabaseFixture) -> Engine:
    return api_database.engine


@pytest.fixture
def directory(engine: Engine) -> Counting:
    return Counting(engine)


@pytest.fixture
def issued(engine: Engine, acme: str) -> CreatedKey:
    return issue_key(engine, acme)


def bearer(key: str) -> str:
    return f"Bearer {key}"


def test_a_key_issued_a_moment_ago_works_at_once(directory: Counting, issued: CreatedKey) -> None:
    with pytest.raises(Unauthenticated):
        directory.caller(bearer(new_key()))
    caller = directory.caller(bearer(issued.key))
    assert caller.tenant is not None and caller.tenant.name == "acme"
    assert caller.key == issued.id


def test_an_operators_key_has_no_tenant(directory: Counting, engine: Engine) -> None:
    assert directory.caller(bearer(issue_key(engine, None).key)).tenant is None


def test_only_a_digest_is_stored(database_rows: list[str], issued: CreatedKey) -> None:
    assert issued.key.split("_")[2] not in "".join(database_rows)


@pytest.fixture
def database_rows(api_database: DatabaseFixture, issued: CreatedKey) -> list[str]:
    return [str(row[0]) for row in api_database.query("SELECT api_keys::text FROM api_keys")]


def test_a_known_key_is_looked_up_once(directory: Counting, issued: CreatedKey) -> None:
    first = directory.caller(bearer(issued.key))
    assert all(directory.caller(bearer(issued.key)) is first for _ in range(10))
    assert directory.asked == [{issued.id}]


def test_the_right_short_part_with_another_secret_opens_nothing(
    directory: Counting, issued: CreatedKey
) -> None:
    directory.caller(bearer(issued.key))
    other = f"fair_{issued.id}_{new_key().split('_')[2]}"
    with pytest.raises(Unauthenticated, match="not known"):
        directory.caller(bearer(other))
    assert len(directory.asked) == 1  # a guess costs the database nothing


def test_a_revoked_key_is_refused_after_the_next_look(
    directory: Counting, engine: Engine, issued: CreatedKey
) -> None:
    directory.caller(bearer(issued.key))
    # Another process revokes it; this one has not looked yet.
    revoke_key(engine, issued.id)
    directory.caller(bearer(issued.key))
    directory.refresh()
    with pytest.raises(Unauthenticated, match="revoked"):
        directory.caller(bearer(issued.key))
    with pytest.raises(Unauthenticated, match="revoked"):
        Counting(engine).caller(bearer(issued.key))


def test_a_running_directory_hears_of_a_revocation_by_itself(
    engine: Engine, issued: CreatedKey
) -> None:
    heard = threading.Event()
    running = Directory(engine, 2.0, refresh_seconds=0.05)
    running.on_ended = lambda keys: heard.set() if issued.id in keys else None
    try:
        running.caller(bearer(issued.key))
        revoke_key(engine, issued.id)
        assert heard.wait(15)
        with pytest.raises(Unauthenticated):
            running.caller(bearer(issued.key))
    finally:
        running.close()
    assert module.REFRESH_SECONDS <= 1.0


def test_a_revocation_that_a_lookup_overtook_is_heard_again(
    directory: Counting, engine: Engine, issued: CreatedKey
) -> None:
    stale = directory.caller(bearer(issued.key))
    revoke_key(engine, issued.id)
    directory.refresh()
    # As if the lookup had read before the revocation and answered after the refresh.
    directory._callers[issued.id] = stale
    directory.refresh()
    with pytest.raises(Unauthenticated, match="revoked"):
        directory.caller(bearer(issued.key))


def test_whoever_listens_is_told_of_revoked_keys(
    directory: Counting, engine: Engine, issued: CreatedKey
) -> None:
    told: list[set[str]] = []
    directory.on_ended = lambda keys: told.append(set(keys))
    directory.caller(bearer(issued.key))
    directory.refresh()
    assert told == []
    revoke_key(engine, issued.id)
    directory.refresh()
    assert told == [{issued.id}]


def test_changed_terms_are_those_of_the_next_look(
    directory: Counting, engine: Engine, issued: CreatedKey
) -> None:
    header = bearer(issued.key)
    before = directory.caller(header).tenant
    assert before is not None and before.limits_of("medium") == PoolLimits()
    change_tenant(
        engine, "acme", Change({"tier": "pro", "weight": 50}, {"medium": {"in_flight": 3}})
    )
    directory.refresh()
    after = directory.caller(header).tenant
    assert after is not None
    assert (after.tier, after.weight, after.limits_of("medium").in_flight) == ("pro", 50.0, 3)
    # Limits alone raise the date of change too.
    change_tenant(engine, "acme", Change({}, {"medium": {"in_flight": None, "depth": 9}}))
    directory.refresh()
    last = directory.caller(header).tenant
    assert last is not None and last.limits == {"medium": PoolLimits(depth=9)}


def test_who_calls_without_a_key_has_fresh_terms_too(directory: Counting, engine: Engine) -> None:
    keyless = directory.keyless("acme")
    assert keyless is not None and keyless.key == ""
    assert directory.keyless("acme") is keyless
    change_tenant(engine, "acme", Change({"tier": "pro"}))
    directory.refresh()
    changed = directory.keyless("acme")
    assert changed is not None and changed.tenant is not None and changed.tenant.tier == "pro"
    assert directory.keyless("nobody") is None


def test_an_unknown_key_is_asked_for_once_in_a_while(directory: Counting) -> None:
    header = bearer(new_key())
    for _ in range(5):
        with pytest.raises(Unauthenticated):
            directory.caller(header)
    assert len(directory.asked) == 1
    directory.time.now += module.UNKNOWN_SECONDS
    with pytest.raises(Unauthenticated):
        directory.caller(header)
    assert len(directory.asked) == 2


def test_unknown_keys_take_bounded_memory(
    directory: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_UNKNOWN", 5)
    for number in range(20):
        directory._look_up_keys([f"nobody{number:02}"])
    assert list(directory._unknown) == [f"nobody{number:02}" for number in range(15, 20)]


def test_callers_that_come_together_are_looked_up_together(
    engine: Engine, directory: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = [issue_key(engine, "acme").key for _ in range(20)]
    reading, go_on = threading.Event(), threading.Event()
    read = Directory._read_keys

    def slowly(self: Directory, ids: set[str]) -> dict[str, Caller]:
        reading.set()
        go_on.wait(10)
        return read(self, ids)

    monkeypatch.setattr(Directory, "_read_keys", slowly)
    threads = [threading.Thread(target=directory.caller, args=(bearer(key),)) for key in keys]
    threads[0].start()
    assert reading.wait(10)
    for thread in threads[1:]:
        thread.start()
    deadline = time.monotonic() + 10
    while len(directory._key_reads._waiting) < 19 and time.monotonic() < deadline:
        time.sleep(0.001)
    go_on.set()
    for thread in threads:
        thread.join(10)
    assert [len(asked) for asked in directory.asked] == [1, 19]


def test_known_keys_work_while_the_state_store_is_away(
    directory: Counting, issued: CreatedKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory.caller(bearer(issued.key))
    nowhere = DatabaseSettings(
        database_url="postgresql+psycopg2://fairline@127.0.0.1:1/fairline", db_connect_seconds=0.2
    )
    away = open_engine(nowhere)
    monkeypatch.setattr(directory, "_engine", away)
    with pytest.raises(StateStoreUnavailable):
        directory.refresh()
    assert directory.caller(bearer(issued.key)).key == issued.id
    with pytest.raises(StateStoreUnavailable):
        directory.caller(bearer(new_key()))
    away.dispose()


def test_a_sweep_finds_what_a_clock_set_back_has_hidden(
    directory: Counting, engine: Engine, api_database: DatabaseFixture, issued: CreatedKey
) -> None:
    gone = issue_key(engine, "acme")
    for key in (issued, gone):
        directory.caller(bearer(key.key))
    api_database.execute(
        "UPDATE api_keys SET revoked_at = now() - interval '1 hour' WHERE id = %s", issued.id
    )
    api_database.execute("DELETE FROM api_keys WHERE id = %s", gone.id)
    told: set[str] = set()
    directory.on_ended = told.update
    directory.refresh()
    directory.caller(bearer(issued.key))
    directory.time.now += module.SWEEP_SECONDS
    directory.refresh()
    assert told == {issued.id, gone.id}
    for key, why in ((issued, "revoked"), (gone, "not known")):
        with pytest.raises(Unauthenticated, match=why):
            directory.caller(bearer(key.key))


def test_a_key_that_was_gone_works_when_it_is_back(
    directory: Counting, api_database: DatabaseFixture, issued: CreatedKey
) -> None:
    """Its tenant moved to another cell, and came back."""
    directory.caller(bearer(issued.key))
    read = "SELECT id, tenant_id, digest FROM api_keys WHERE id = %(id)s"
    [row] = fetch(api_database.engine, read, {"id": issued.id})
    api_database.execute("DELETE FROM api_keys WHERE id = %s", issued.id)
    directory.time.now += module.SWEEP_SECONDS
    directory.refresh()
    with pytest.raises(Unauthenticated, match="not known"):
        directory.caller(bearer(issued.key))
    api_database.execute("INSERT INTO api_keys (id, tenant_id, digest) VALUES (%s, %s, %s)", *row)
    directory.time.now += module.UNKNOWN_SECONDS
    assert directory.caller(bearer(issued.key)).key == issued.id


def test_changes_committed_late_are_within_the_overlap(
    directory: Counting, engine: Engine, api_database: DatabaseFixture, issued: CreatedKey
) -> None:
    directory.caller(bearer(issued.key))
    directory.refresh()
    seen = directory._seen
    assert seen is not None
    # Dated before the last look, committed after it.
    api_database.execute(
        "UPDATE api_keys SET revoked_at = %s WHERE id = %s", seen - timedelta(seconds=20), issued.id
    )
    directory.refresh()
    with pytest.raises(Unauthenticated, match="revoked"):
        directory.caller(bearer(issued.key))


def test_the_look_at_changes_reads_by_its_indexes(engine: Engine) -> None:
    with engine.connect() as connection:
        connection.exec_driver_sql(
            "WITH many AS (INSERT INTO tenants (name, changed_at)"
            " SELECT 'many-' || n, now() - interval '1 day' FROM generate_series(1, 3000) AS n"
            " RETURNING id)"
            " INSERT INTO api_keys (id, tenant_id, digest, revoked_at)"
            " SELECT 'k' || id, id, '', now() - interval '1 day' FROM many"
        )
        connection.exec_driver_sql("ANALYZE tenants, api_keys")
        now = connection.exec_driver_sql("SELECT now()").scalar()
        rows = connection.exec_driver_sql("EXPLAIN " + module.READ_CHANGES, {"seen": now})
        plan = "\n".join(row[0] for row in rows)
        connection.exec_driver_sql("TRUNCATE api_keys")
        connection.exec_driver_sql("DELETE FROM tenants WHERE name LIKE 'many-%%'")
    assert "tenants_changed" in plan and "api_keys_revoked" in plan, plan


def test_an_expired_key_is_refused_at_once_and_whoever_listens_is_told_for_a_while(
    directory: Counting, engine: Engine
) -> None:
    told: list[set[str]] = []
    directory.on_ended = lambda keys: told.append(set(keys))
    soon = DATABASE_CLOCK.now() + timedelta(seconds=30)
    issued = issue_key(engine, "acme", expires_at=soon)
    directory.caller(bearer(issued.key))
    directory.refresh()
    assert told == []
    directory.time.now += 31  # neither a refresh nor the state store is needed
    with pytest.raises(Unauthenticated, match="expired at 20"):
        directory.caller(bearer(issued.key))
    for _ in range(2):
        directory.refresh()
    assert told == [{issued.id}] * 2
    directory.time.now += module.TOLD_SECONDS + module.SWEEP_SECONDS
    directory.refresh()
    directory.refresh()
    assert told == [{issued.id}] * 3
    assert not directory._expiring


def test_a_key_that_expired_before_it_was_read_is_refused(
    directory: Counting, engine: Engine, api_database: DatabaseFixture, issued: CreatedKey
) -> None:
    api_database.execute("UPDATE api_keys SET expires_at = now() - interval '1 second'")
    with pytest.raises(Unauthenticated, match="expired"):
        directory.caller(bearer(issued.key))


def test_the_last_use_of_a_key_is_written_in_the_background_once_a_minute(
    directory: Counting, api_database: DatabaseFixture, engine: Engine, issued: CreatedKey
) -> None:
    unused = issue_key(engine, "acme")

    def last_use(key: CreatedKey) -> datetime | None:
        sql = "SELECT last_used_at FROM api_keys WHERE id = %s"
        used: datetime | None = api_database.query(sql, key.id)[0].last_used_at
        return used

    directory.caller(bearer(issued.key))
    assert last_use(issued) is None  # not in the path of a request
    directory.refresh()
    first = last_use(issued)
    assert first is not None and last_use(unused) is None
    api_database.execute("UPDATE api_keys SET last_used_at = last_used_at - interval '1 hour'")
    directory.caller(bearer(issued.key))
    directory.time.now += WRITE_SECONDS - 1
    directory.refresh()
    assert last_use(issued) == first - timedelta(hours=1)
    directory.time.now += 1
    directory.refresh()
    second = last_use(issued)
    assert second is not None and second > first
    # Another process saw it too: the row is younger than a minute.
    other = Counting(engine)
    other.caller(bearer(issued.key))
    other.refresh()
    assert last_use(issued) == second
    # Nothing was used since: nothing is written.
    api_database.execute("UPDATE api_keys SET last_used_at = NULL")
    directory.time.now += WRITE_SECONDS
    directory.refresh()
    assert last_use(issued) is None


def test_refused_keys_are_not_used_and_a_locked_row_delays_no_other(
    directory: Counting, api_database: DatabaseFixture, engine: Engine, issued: CreatedKey
) -> None:
    locked, wrong = issue_key(engine, "acme"), f"fair_{issued.id}_{new_key().split('_')[2]}"
    with pytest.raises(Unauthenticated):
        directory.caller(bearer(wrong))
    assert not directory._uses.used
    for key in (issued, locked):
        directory.caller(bearer(key.key))
    with transaction(engine) as connection:
        connection.exec_driver_sql(f"SELECT FROM api_keys WHERE id = '{locked.id}' FOR UPDATE")
        directory.refresh()
    used = api_database.query("SELECT id FROM api_keys WHERE last_used_at IS NOT NULL")
    assert [row.id for row in used] == [issued.id]


def test_scopes_are_those_of_the_row_as_far_as_the_kind_of_key_may_have_them(
    directory: Counting, engine: Engine, api_database: DatabaseFixture, issued: CreatedKey
) -> None:
    narrow = issue_key(engine, "acme", scopes=["read"])
    everything = issue_key(engine, "acme", scopes=["submit", "read"])
    api_database.execute(
        "UPDATE api_keys SET scopes = '{submit,operate,new}' WHERE id = %s", everything.id
    )
    operator, watcher = issue_key(engine, None), issue_key(engine, None, scopes=["read"])
    for key, scopes in (
        (issued, {"submit", "read"}),
        (narrow, {"read"}),
        (everything, {"submit"}),
        (operator, {"read", "operate", "scale"}),
        (watcher, {"read"}),
    ):
        assert directory.caller(bearer(key.key)).scopes == scopes
