"""Counts of keys and blobs: what they see, what they cost, and for how long they are kept."""

from __future__ import annotations

import re
import time

import pytest

from app.admission.depth import REFUSE_SECONDS, Depth
from app.admission.holdings import READ_BLOBS, READ_KEYS, Holdings
from app.scheduler.maintenance.retirer import Kept, Retirer
from models.blobs import open_blobs
from models.tallies import Tallies, TallyKind
from tests.support.database_fixture import DatabaseFixture
from tests.support.emptied import emptied
from tests.support.plans import plan_of
from tests.support.statements import statements

#: What a statement gets; enough on a busy machine.
SECONDS = 10.0
HOUR = 3600.0
MADE = """
    INSERT INTO tallies (kind, bucket, name, total, amount)
    SELECT %s, date_bin('1 hour', now(), 'epoch') - %s * interval '1 hour', %s, 0, %s
"""


@pytest.fixture
def database(api_database: DatabaseFixture) -> DatabaseFixture:
    return emptied(api_database)


def made(database: DatabaseFixture, hours_ago: int, keys: int, tenant_id: int = 1) -> None:
    kind = TallyKind.IDEMPOTENCY_KEY.value
    database.execute(MADE, kind, hours_ago, str(tenant_id), keys)


def key_holdings(tallies: Tallies, hours: float = 24) -> Holdings:
    kind = TallyKind.IDEMPOTENCY_KEY
    return Holdings(tallies, kind, READ_KEYS, kept_seconds=hours * HOUR)


def test_keys_count_while_they_are_kept(database: DatabaseFixture) -> None:
    for hours_ago, keys in ((0, 1), (1, 10), (23, 100), (25, 1000)):
        made(database, hours_ago, keys)
    made(database, 2, 7, tenant_id=2)
    tenants = [(1, ""), (2, ""), (3, "")]
    tallies = Tallies()
    read = key_holdings(tallies)
    assert read(database.engine, tenants) == {(1, ""): 111, (2, ""): 7, (3, ""): 0}
    tallies.add_all([((TallyKind.IDEMPOTENCY_KEY, "3"), (4, 4))])
    assert read(database.engine, tenants)[3, ""] == 4, "not written yet"
    tallies.write(database.engine)
    assert read(database.engine, tenants)[3, ""] == 4
    assert key_holdings(tallies, 30)(database.engine, tenants)[1, ""] == 1111


def test_what_is_being_written_counts(
    database: DatabaseFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    tallies, kind = Tallies(), TallyKind.IDEMPOTENCY_KEY
    tallies.add_all([((kind, "1"), (4, 4))])
    seen: list[int] = []

    def write(*_: object) -> None:
        tallies.add_all([((kind, "1"), (1, 1))])
        seen.append(tallies.unwritten(kind, "1")[1])

    monkeypatch.setattr("models.tallies.add_tallies", write)
    tallies.write(database.engine)
    assert (seen, tallies.unwritten(kind, "1")) == ([5], (1, 1))


STORED = """
    INSERT INTO tallies (kind, bucket, name, total, amount)
    SELECT %s, date_bin('5 minutes', now(), 'epoch') - %s * interval '5 minutes', %s, 1, %s
"""


def test_blobs_are_those_of_the_last_count_and_what_was_stored_since(
    database: DatabaseFixture,
) -> None:
    kind, tenants = TallyKind.STORED_BLOB, [(1, ""), (2, ""), (3, "")]
    for ago, size in ((0, 1), (2, 10), (10, 100), (20, 1000)):
        database.execute(STORED, kind.value, ago, "1", size)
    tallies = Tallies()
    read = Holdings(tallies, kind, READ_BLOBS)
    assert read(database.engine, tenants) == {(1, ""): 1111, (2, ""): 0, (3, ""): 0}, "no count yet"
    database.execute(
        "INSERT INTO blob_counts SELECT tenant_id, bytes, now() - interval '30 minutes'"
        " FROM (VALUES (0, 55000), (1, 50000), (2, 5000)) AS counted (tenant_id, bytes)"
    )
    assert read(database.engine, tenants) == {(1, ""): 50_011, (2, ""): 5000, (3, ""): 0}
    tallies.add_all([((kind, "3"), (1, 70_000))])
    assert read(database.engine, tenants)[3, ""] == 70_000
    database.execute("DELETE FROM blob_counts WHERE tenant_id = 1")
    assert read(database.engine, tenants)[1, ""] == 11, "it has no old ones any more"
    database.execute("UPDATE blob_counts SET counted_at = now() - interval '3 days'")
    database.execute(STORED, kind.value, 400, "1", 7)
    assert read(database.engine, tenants)[1, ""] == 1111, "not more than a day is summed up"


@pytest.mark.parametrize(
    ("kind", "statement"),
    [(TallyKind.IDEMPOTENCY_KEY, READ_KEYS), (TallyKind.STORED_BLOB, READ_BLOBS)],
)
def test_reading_looks_up_single_rows(
    database: DatabaseFixture, kind: TallyKind, statement: str
) -> None:
    database.execute(
        """INSERT INTO tallies (kind, bucket, name, total, amount)
           SELECT %s, date_bin('1 hour', now(), 'epoch') - h * interval '1 hour', n::text, 1, 1
           FROM generate_series(0, 24) AS h, generate_series(1, 2000) AS n""",
        kind.value,
    )
    database.execute("INSERT INTO blob_counts SELECT n, 1, now() FROM generate_series(0, 2000) n")
    database.execute("ANALYZE tallies, blob_counts")
    plan = plan_of(database, statement, places="{0,1}", tenants="{1,2}", kept_seconds=24 * HOUR)
    assert not re.search("Seq Scan on|Bitmap Heap Scan on", plan), plan
    conditions = re.findall(r"Index Cond: (.*)", plan)
    looked_up = [all(name in one for name in ("kind", "bucket", "name")) for one in conditions]
    assert any(looked_up), plan


def test_far_from_the_limit_nothing_is_read_for_a_request(database: DatabaseFixture) -> None:
    keys = Depth(database.engine, SECONDS, key_holdings(Tallies()), fresh_seconds=5.0)
    with statements(database) as sent:
        for _ in range(500):
            assert keys.enter((1, ""), 1, 10_000_000) == 1
            keys.settle((1, ""), 1)
        assert len(sent) <= 2


def test_a_flood_of_what_does_not_fit_is_refused_from_memory(database: DatabaseFixture) -> None:
    read = Holdings(Tallies(), TallyKind.STORED_BLOB, READ_BLOBS)
    blobs = Depth(database.engine, SECONDS, read, exact=False)
    with statements(database) as sent:
        began = time.monotonic()
        while len(sent) < 4:
            assert blobs.enter((1, ""), 100_000, 70_000) <= 70_000
            blobs.settle((1, ""), 70_000, joined=False)
            assert time.monotonic() < began + 15, "it is read again after a moment"
    assert time.monotonic() - began >= 3 * REFUSE_SECONDS


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
