"""Counts of idempotency keys: what they see, what they cost, and for how long they are kept."""

from __future__ import annotations

import re

import pytest

from app.admission import key_counts
from app.admission.depth import Depth
from app.admission.key_counts import KeyCounts
from app.scheduler.maintenance.retirer import Kept, Retirer
from models.blobs import open_blobs
from models.tallies import Tallies, TallyKind
from tests.support.database_fixture import DatabaseFixture
from tests.support.emptied import emptied
from tests.support.plans import plan_of
from tests.support.statements import statements

SECONDS = 1.5
HOUR = 3600.0
MADE = """
    INSERT INTO tallies (kind, bucket, name, total, amount)
    SELECT %s, date_bin('1 hour', now(), 'epoch') - %s * interval '1 hour', %s, %s, 0
"""


@pytest.fixture
def database(api_database: DatabaseFixture) -> DatabaseFixture:
    return emptied(api_database)


def made(database: DatabaseFixture, hours_ago: int, keys: int, tenant_id: int = 1) -> None:
    kind = TallyKind.IDEMPOTENCY_KEY.value
    database.execute(MADE, kind, hours_ago, str(tenant_id), keys)


def test_keys_count_while_they_are_kept(database: DatabaseFixture) -> None:
    for hours_ago, keys in ((0, 1), (1, 10), (23, 100), (25, 1000)):
        made(database, hours_ago, keys)
    made(database, 2, 7, tenant_id=2)
    tenants = [(1, ""), (2, ""), (3, "")]
    tallies = Tallies()
    read = KeyCounts(tallies, 24 * HOUR)
    assert read(database.engine, tenants) == {(1, ""): 111, (2, ""): 7, (3, ""): 0}
    tallies.add_all([((TallyKind.IDEMPOTENCY_KEY, "3"), (4, 0))])
    assert read(database.engine, tenants)[3, ""] == 4, "not written yet"
    tallies.write(database.engine)
    assert read(database.engine, tenants)[3, ""] == 4
    assert KeyCounts(tallies, 30 * HOUR)(database.engine, tenants)[1, ""] == 1111


def test_what_is_being_written_counts(
    database: DatabaseFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    tallies, kind = Tallies(), TallyKind.IDEMPOTENCY_KEY
    tallies.add_all([((kind, "1"), (4, 0))])
    seen: list[int] = []

    def write(*_: object) -> None:
        tallies.add_all([((kind, "1"), (1, 0))])
        seen.append(tallies.unwritten(kind, "1")[0])

    monkeypatch.setattr("models.tallies.add_tallies", write)
    tallies.write(database.engine)
    assert (seen, tallies.unwritten(kind, "1")) == ([5], (1, 0))


def test_reading_looks_up_single_rows(database: DatabaseFixture) -> None:
    database.execute(
        """INSERT INTO tallies (kind, bucket, name, total, amount)
           SELECT 'idempotency_key', date_bin('1 hour', now(), 'epoch') - h * interval '1 hour',
                  n::text, 1, 0
           FROM generate_series(0, 24) AS h, generate_series(1, 2000) AS n"""
    )
    database.execute("ANALYZE tallies")
    plan = plan_of(
        database, key_counts.READ_KEYS, places="{0,1}", tenants="{1,2}", kept_seconds=24 * HOUR
    )
    assert not re.search("Seq Scan on|Bitmap Heap Scan on", plan), plan
    condition = re.search(r"Index Cond: (.*)", plan)
    assert condition and all(name in condition[1] for name in ("kind", "bucket", "name")), plan


def test_far_from_the_limit_nothing_is_read_for_a_request(database: DatabaseFixture) -> None:
    keys = Depth(database.engine, SECONDS, KeyCounts(Tallies(), 24 * HOUR), fresh_seconds=5.0)
    with statements(database) as sent:
        for _ in range(500):
            assert keys.enter((1, ""), 1, 10_000_000) == 1
            keys.settle((1, ""), 1)
        assert len(sent) <= 2


@pytest.mark.parametrize(("keys_hours", "left"), [(24, {0, 25}), (1, {0, 25}), (40, {0, 25, 41})])
def test_counts_are_kept_as_long_as_keys(
    database: DatabaseFixture, tmp_path: object, keys_hours: int, left: set[int]
) -> None:
    for hours_ago in (0, 25, 41, 50):
        made(database, hours_ago, 1)
    kept = Kept(finished=1e6, dead=1e6, events=1e6, keys=keys_hours * HOUR)
    Retirer(database.engine, database.leader, open_blobs(f"file://{tmp_path}"), kept).run_once(0.0)
    rows = database.query(
        "SELECT extract(epoch FROM date_bin('1 hour', now(), 'epoch') - bucket)::int / 3600 AS ago"
        " FROM tallies WHERE kind = 'idempotency_key'"
    )
    assert {row.ago for row in rows} == left
