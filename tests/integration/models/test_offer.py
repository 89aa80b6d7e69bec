"""Offers of workers: taken once, by jobs that come alone; what workers are told of them."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import Connection

from models.encryption.key_ring import EncryptionKey, KeyRing
from models.encryption.values import use_key_ring
from models.jobs.admit_alone import admit_alone
from models.jobs.claim import JobRef, claim_group
from models.jobs.ids import new_id
from models.jobs.offer import (
    MOST_BYTES,
    MOST_OFFERS,
    GivenJob,
    channel_of,
    offer,
    offer_of,
    probe,
    read_ours,
    told_job,
    withdraw,
)
from models.jobs.submission import (
    Admitted,
    IdempotencyKey,
    KeyReused,
    Submission,
    SubmissionGroup,
    TenantAway,
)
from models.presence import Presence, announce
from models.store.errors import StatementTooSlow
from tests.support.database_fixture import DatabaseFixture
from tests.support.locks import held_lock

WORKERS = ("w1", "w2")


class Ear:
    """What workers are told."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._names = {channel_of(name): name for name in WORKERS}
        for channel in self._names:
            connection.exec_driver_sql(f"LISTEN {channel}")

    def messages(self) -> list[tuple[str, str]]:
        self._connection.exec_driver_sql("SELECT 1")
        raw: Any = self._connection.connection.dbapi_connection
        raw.poll()
        found = [(self._names[each.channel], each.payload) for each in raw.notifies]
        raw.notifies.clear()
        return found

    def told(self) -> list[tuple[str, GivenJob]]:
        return [(name, told_job(payload)) for name, payload in self.messages()]


@pytest.fixture
def ear(database: DatabaseFixture) -> Iterator[Ear]:
    database.execute("INSERT INTO express_lanes (pool, credit) VALUES ('medium', 1000)")
    for name in WORKERS:
        announce(database.engine, Presence(name, "worker", ["medium"], slots=4))
    with database.engine.connect() as connection:
        connection.detach()
        yield Ear(connection)


def admit(database: DatabaseFixture, *, give: bool = True, **fields: Any) -> Admitted:
    values = {"tenant_id": 1, "type": "echo", "pool": "medium", "payload": "{}", **fields}
    item = Submission(id=new_id(), **values)
    return admit_alone(database.engine, SubmissionGroup((item,)), True, give)


def test_the_worker_that_offered_first_has_the_job_as_if_it_had_claimed_it(
    database: DatabaseFixture, ear: Ear
) -> None:
    for name in WORKERS:
        assert offer(database.engine, name, ["medium"])
    payload = {"text": "ä\u2028", "n": [1.5, 10**15, None]}
    trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    admitted = admit(database, payload=json.dumps(payload), traceparent=trace, dependency="")
    assert admitted.given and admitted.offered and len(admitted.express) == 1
    row = database.job(admitted.ids[0])
    assert (row.status, row.lease, row.worker) == ("running", 1, "w1")
    assert row.started_at == row.dispatched_at == row.created_at
    assert row.lease_expires_at > row.started_at and row.waiting_lease is None
    [(name, job)] = ear.told()
    assert name == "w1" and job.claim is not None
    # What a worker asks for that did not hear of it.
    ref = JobRef(str(row.id), 1)
    [(claimed,)] = claim_group(database.engine, "w1", [(ref,)], frozenset({ref}))
    assert job.claim._replace(wait_seconds=None) == claimed._replace(wait_seconds=None)
    assert job.claim.payload == payload and job.claim.traceparent == trace
    assert not database.miscounted()


def test_another_worker_does_not_get_a_job_that_was_given_away(
    database: DatabaseFixture, ear: Ear
) -> None:
    offer(database.engine, "w1", ["medium"])
    ref = JobRef(admit(database).ids[0], 1)
    assert claim_group(database.engine, "w2", [(ref,)], frozenset({ref})) == [()]


def test_an_offer_stands_once_and_is_taken_once(database: DatabaseFixture, ear: Ear) -> None:
    for _ in range(3):
        offer(database.engine, "w1", ["medium"])
    first, second = admit(database), admit(database)
    assert (first.given, second.given, second.offered) == (True, False, False)
    assert database.job(second.ids[0]).status == "dispatched"
    assert len(ear.told()) == 1


def test_workers_that_offer_to_run_several_jobs_take_turns(
    database: DatabaseFixture, ear: Ear
) -> None:
    offer(database.engine, "w1", ["medium"], 11)
    offer(database.engine, "w2", ["medium"], 2)
    given = [admit(database).given for _ in range(14)]
    assert given == [True] * 13 + [False]
    told = [name for name, _ in ear.told()]
    assert told == ["w1", "w2", "w1", "w2", *["w1"] * 9]
    assert database.query("SELECT offers FROM express_lanes")[0].offers == []


def test_an_offer_takes_the_place_of_the_one_before(database: DatabaseFixture, ear: Ear) -> None:
    for jobs in (5, 2):
        offer(database.engine, "w1", ["medium"], jobs)
    assert [admit(database).given for _ in range(3)] == [True, True, False]


def test_entries_of_an_earlier_version_are_for_one_job(database: DatabaseFixture, ear: Ear) -> None:
    database.execute("UPDATE express_lanes SET offers = ARRAY[%s]", offer_of("w1"))
    assert [admit(database).given for _ in range(2)] == [True, False]
    database.execute("UPDATE express_lanes SET offers = ARRAY[%s]", offer_of("w1"))
    withdraw(database.engine, "w1")
    assert not admit(database).given


def test_a_locked_lane_is_not_waited_for(database: DatabaseFixture, ear: Ear) -> None:
    """Claims and heartbeats use the same connections."""
    offer(database.engine, "w1", ["medium"], 5)
    with held_lock(database, "SELECT FROM express_lanes FOR UPDATE"):
        with pytest.raises(StatementTooSlow, match="lock timeout"):
            offer(database.engine, "w1", ["medium"], 2)
        with pytest.raises(StatementTooSlow, match="lock timeout"):
            withdraw(database.engine, "w1")


def test_a_job_that_is_not_to_be_given_away_leaves_the_offers(
    database: DatabaseFixture, ear: Ear
) -> None:
    offer(database.engine, "w1", ["medium"], 3)
    assert admit(database, give=False).offered
    assert database.query("SELECT offers FROM express_lanes")[0].offers == [f"{offer_of('w1')} 3"]


def test_jobs_that_come_at_once_do_not_share_an_offer(database: DatabaseFixture, ear: Ear) -> None:
    for _ in range(30):
        for name in WORKERS:
            offer(database.engine, name, ["medium"])
        start, found = threading.Barrier(4), []

        def race(start: threading.Barrier = start, found: list[Admitted] = found) -> None:
            start.wait()
            found.append(admit(database))

        threads = [threading.Thread(target=race) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sum(each.given for each in found) == 2
        told = ear.told()
        assert sorted(name for name, _ in told) == ["w1", "w2"]
        for name, job in told:
            assert database.job(job.ref.id).worker == name
    assert not database.miscounted()


def test_a_lane_keeps_the_latest_offers(database: DatabaseFixture, ear: Ear) -> None:
    for number in range(MOST_OFFERS + 5):
        offer(database.engine, f"lost-{number}", ["medium"])
    offer(database.engine, "w1", ["medium"])
    offer(database.engine, "w1", ["medium"])
    [row] = database.query("SELECT offers FROM express_lanes")
    assert len(row.offers) == MOST_OFFERS
    assert row.offers[-1] == f"{offer_of('w1')} 1" and row.offers[0].startswith("lost-6 ")


def test_numbers_are_told_as_the_row_has_them(database: DatabaseFixture, ear: Ear) -> None:
    offer(database.engine, "w1", ["medium"])
    admit(database, payload="[123456789012345678901234567890, 1e400, 0.1]")
    [(_, job)] = ear.told()
    [(claimed,)] = claim_group(database.engine, "w1", [(job.ref,)], frozenset({job.ref}))
    assert job.claim is not None and job.claim.payload == claimed.payload


def test_what_was_taken_back_is_not_taken(database: DatabaseFixture, ear: Ear) -> None:
    for name in WORKERS:
        offer(database.engine, name, ["medium"])
    withdraw(database.engine, "w1")
    assert admit(database).given
    assert [name for name, _ in ear.told()] == ["w2"]
    assert not admit(database).given


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE processes SET heartbeat_at = now() - interval '7 seconds' WHERE name = 'w1'",
        "UPDATE processes SET draining = true WHERE name = 'w1'",
        "DELETE FROM processes WHERE name = 'w1'",
    ],
    ids=["silent", "draining", "gone"],
)
def test_an_offer_of_a_worker_that_may_be_lost_is_dropped(
    database: DatabaseFixture, ear: Ear, change: str
) -> None:
    for name in WORKERS:
        offer(database.engine, name, ["medium"], 3)
    database.execute(change)
    lost, given = admit(database), admit(database)
    assert (lost.given, given.given) == (False, True)
    assert database.job(lost.ids[0]).status == "dispatched"
    assert [name for name, _ in ear.told()] == ["w2"]


def test_without_a_lane_or_its_credit_nothing_is_given(database: DatabaseFixture, ear: Ear) -> None:
    assert not offer(database.engine, "w1", ["medium", "long"]), "there is one lane only"
    database.execute("UPDATE express_lanes SET credit = 0")
    queued = admit(database)
    assert not queued.given and database.job(queued.ids[0]).status == "queued"
    database.execute("UPDATE express_lanes SET credit = 1")
    assert not admit(database, express=False).given, "of a free account"
    kept = admit(database, give=False)
    assert (kept.given, kept.offered) == (False, True)
    assert ear.told() == []


def test_a_large_payload_is_asked_for(database: DatabaseFixture, ear: Ear) -> None:
    offer(database.engine, "w1", ["medium"])
    admitted = admit(database, payload=json.dumps("ä" * MOST_BYTES))
    [(_, job)] = ear.told()
    assert admitted.given and job == GivenJob(JobRef(admitted.ids[0], 1), "echo")
    assert read_ours(database.engine, "w1") == [job]
    assert read_ours(database.engine, "w2") == []


def test_a_payload_that_just_fits_is_told(database: DatabaseFixture, ear: Ear) -> None:
    offer(database.engine, "w1", ["medium"])
    trace = "00-" + "a" * 600
    text = json.dumps("\\" * ((MOST_BYTES - 2) // 2))
    admit(database, payload=text, traceparent=trace, type="t" * 200)
    [(_, job)] = ear.told()
    assert job.claim is not None and len(json.dumps(job.claim.payload)) == len(text)


def test_what_is_told_is_encrypted_as_the_row_is(database: DatabaseFixture, ear: Ear) -> None:
    offer(database.engine, "w1", ["medium"])
    before = use_key_ring(KeyRing([EncryptionKey("k", bytes(32))]))
    try:
        admit(database, payload='"secret word"')
    finally:
        use_key_ring(before)
    [(_, text)] = ear.messages()
    assert "secret" not in text


def test_an_answer_that_was_lost_gives_nothing_twice(database: DatabaseFixture, ear: Ear) -> None:
    for name in WORKERS:
        offer(database.engine, name, ["medium"])
    item = Submission(id=new_id(), tenant_id=1, type="echo", pool="medium", payload="{}")
    first = admit_alone(database.engine, SubmissionGroup((item,)), True, True)
    again = admit_alone(database.engine, SubmissionGroup((item,)), True, True)
    assert first.given and not again.given and again.express == ()
    assert len(ear.told()) == 1 and database.job(item.id).worker == "w1"


def test_a_job_under_a_new_key_is_given_away_and_its_repetition_is_not(
    database: DatabaseFixture, ear: Ear
) -> None:
    offer(database.engine, "w1", ["medium"], 5)
    entries = [keyed("k", b"1"), keyed("k", b"1"), keyed("k", b"2"), keyed("other", b"1")]
    first, again, reused, other = [
        admit_alone(database.engine, entry, True, True) for entry in entries
    ]
    assert isinstance(first, Admitted) and first.given
    assert isinstance(again, Admitted) and again.repeated and not again.given
    assert again.ids == first.ids and isinstance(reused, KeyReused)
    assert isinstance(other, Admitted) and other.given
    assert [job.ref.id for _, job in ear.told()] == [first.ids[0], other.ids[0]]
    assert database.query("SELECT offers FROM express_lanes")[0].offers == [f"{offer_of('w1')} 3"]
    lost = admit_alone(database.engine, entries[0], True, True)
    assert lost == Admitted(first.ids), "the answer to the first was lost"


def keyed(key: str, digest: bytes) -> SubmissionGroup:
    item = Submission(id=new_id(), tenant_id=1, type="echo", pool="medium", payload="{}")
    return SubmissionGroup((item,), IdempotencyKey(key, digest))


def test_of_requests_under_one_key_at_once_one_is_given_away(
    database: DatabaseFixture, ear: Ear
) -> None:
    for number in range(20):
        offer(database.engine, "w1", ["medium"], 9)
        start, found = threading.Barrier(4), []

        def race(
            key: str = f"k{number}",
            start: threading.Barrier = start,
            found: list[Any] = found,
        ) -> None:
            start.wait()
            found.append(admit_alone(database.engine, keyed(key, b"1"), True, True))

        threads = [threading.Thread(target=race) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len({each.ids for each in found}) == 1
        assert sum(each.given for each in found) == 1
        assert len(ear.told()) == 1
    assert not database.miscounted()


@pytest.mark.parametrize("key", [None, IdempotencyKey("k", b"1", placement=1)])
def test_nothing_of_a_tenant_that_is_away_is_given(
    database: DatabaseFixture, ear: Ear, key: IdempotencyKey | None
) -> None:
    offer(database.engine, "w1", ["medium"])
    database.execute("INSERT INTO away_tenants (tenant_id, away, version) VALUES (1, true, 2)")
    item = Submission(id=new_id(), tenant_id=1, type="echo", pool="medium", payload="{}")
    found = admit_alone(database.engine, SubmissionGroup((item,), key), True, True)
    assert isinstance(found, TenantAway)
    assert ear.told() == [] and not database.query("SELECT 1 FROM jobs")
    assert not database.query("SELECT 1 FROM idempotency_keys")


def test_a_probe_is_an_empty_message(database: DatabaseFixture, ear: Ear) -> None:
    probe(database.engine, "w2")
    assert ear.messages() == [("w2", "")]
