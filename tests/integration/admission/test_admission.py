"""Admission in groups: keys that meet, lanes that are shared, answers that are lost."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from sqlalchemy import Engine

from app.admission import Admission, Admitted, IdempotencyKey, Submission, SubmissionGroup
from app.errors import BrokerUnavailable
from models.jobs import admit
from models.jobs.admit import PREPARED, Outcome, admit_group, parameters_of
from models.jobs.ids import new_id
from models.jobs.submission import KeyReused
from models.store.arrays import text_array
from tests.support.database_fixture import DatabaseFixture, FakePublisher
from tests.support.emptied import COUNTS


@pytest.fixture
def database(api_database: DatabaseFixture) -> DatabaseFixture:
    """One database for all of them, empty."""
    api_database.execute(
        "TRUNCATE jobs, applications, idempotency_keys, express_lanes, circuits, verdicts,"
        f" {COUNTS}"
    )
    return api_database


def job(**fields: Any) -> Submission:
    values = {"tenant_id": 1, "type": "echo", "pool": "medium", "payload": "{}", **fields}
    return Submission(id=new_id(), **values)


def entry(key: str | None, *items: Submission, body: str = "a") -> SubmissionGroup:
    """A request; ``body`` stands for what was asked."""
    made = None if key is None else IdempotencyKey(key, body.encode())
    return SubmissionGroup(items or (job(),), made)


def admit_all(
    database: DatabaseFixture, *group: SubmissionGroup, express: bool = False
) -> list[Outcome]:
    return admit_group(database.engine, group, express)


def count(database: DatabaseFixture) -> int:
    return int(database.query("SELECT count(*) FROM jobs")[0][0])


def grant(database: DatabaseFixture, **credit: int) -> None:
    for pool, amount in credit.items():
        database.execute("INSERT INTO express_lanes (pool, credit) VALUES (%s, %s)", pool, amount)


def credits_left(database: DatabaseFixture) -> dict[str, int]:
    return {row[0]: row[1] for row in database.query("SELECT pool, credit FROM express_lanes")}


def test_repetition_stands_for_the_first_request(database: DatabaseFixture) -> None:
    first, again = entry("k"), entry("k")
    (one,) = admit_all(database, first)
    (two,) = admit_all(database, again)
    assert isinstance(one, Admitted) and not one.repeated
    assert isinstance(two, Admitted) and two.repeated
    assert one.ids == two.ids == (first.submissions[0].id,)
    assert two.first_at is not None and datetime.now(UTC) - two.first_at < timedelta(minutes=1)
    assert count(database) == 1


def test_another_request_under_the_key_is_refused_and_its_neighbours_are_not(
    database: DatabaseFixture,
) -> None:
    admit_all(database, entry("k"))
    outcomes = admit_all(database, entry(None), entry("k", body="b"), entry("new"), entry("k"))
    assert isinstance(outcomes[1], KeyReused)
    assert [getattr(outcome, "repeated", None) for outcome in outcomes] == [
        False,
        None,
        False,
        True,
    ]
    assert count(database) == 3


def test_the_express_lane_is_for_caps_that_it_cannot_reach(database: DatabaseFixture) -> None:
    grant(database, medium=10)

    def born(cap: int | None) -> str:
        item = job(cap=cap)
        admit_all(database, entry(None, item), express=True)
        return str(database.job(item.id).status)

    assert (born(1000), born(None)) == ("queued", "dispatched"), "the slots are not known"
    database.execute("UPDATE express_lanes SET slots = 10")
    assert [born(cap) for cap in (1, 19, 20, None)] == ["queued"] * 2 + ["dispatched"] * 2


def test_key_twice_in_one_group_is_one_job(database: DatabaseFixture) -> None:
    group = [entry("k"), entry("k"), entry("k", body="b"), entry("j")]
    outcomes = admit_all(database, *group)
    assert [type(outcome) for outcome in outcomes] == [
        Admitted,
        Admitted,
        KeyReused,
        Admitted,
    ]
    assert outcomes[1] == Admitted(outcomes[0].ids, outcomes[1].first_at)  # type: ignore[union-attr]
    assert count(database) == 2


def test_key_of_one_tenant_means_nothing_to_another(database: DatabaseFixture) -> None:
    outcomes = admit_all(database, entry("k", job(tenant_id=1)), entry("k", job(tenant_id=2)))
    assert not any(outcome.repeated for outcome in outcomes if isinstance(outcome, Admitted))
    assert count(database) == 2


def test_batch_under_a_key_is_all_there_in_order_or_not_at_all(database: DatabaseFixture) -> None:
    first = entry("k", *(job() for _ in range(30)))
    admit_all(database, first)
    (again,) = admit_all(database, entry("k", *(job() for _ in range(30))))
    assert isinstance(again, Admitted)
    assert again.ids == tuple(item.id for item in first.submissions)
    assert count(database) == 30


def test_group_written_again_after_a_lost_answer_is_no_repetition(
    database: DatabaseFixture,
) -> None:
    group = [entry("k"), entry(None), entry("b", job(), job())]
    before = admit_all(database, *group)
    assert admit_all(database, *group) == before
    assert count(database) == 4


def test_key_that_is_retired_while_it_is_looked_up_is_new(
    database: DatabaseFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    admit_all(database, entry("k"))
    read_keys = admit.read_keys

    def retire_first(*args: Any) -> Any:
        database.execute("DELETE FROM idempotency_keys")
        return read_keys(*args)

    monkeypatch.setattr(admit, "read_keys", retire_first)
    late = entry("k", body="b")
    (outcome,) = admit_all(database, late)
    assert outcome == Admitted((late.submissions[0].id,))
    assert count(database) == 2


def test_two_processes_that_share_keys_do_not_lock_each_other_out(
    database: DatabaseFixture,
) -> None:
    """Each group holds the same keys in another order; a deadlock would be an error."""
    names = [f"k{number}" for number in range(500)]
    start = threading.Barrier(2)
    outcomes: dict[int, list[Outcome]] = {}

    def run(place: int) -> None:
        group = [entry(name) for name in (names if place else reversed(names))]
        start.wait()
        outcomes[place] = admit_all(database, *group)

    for _ in range(3):
        database.execute("TRUNCATE jobs, idempotency_keys")
        threads = [threading.Thread(target=run, args=(place,)) for place in (0, 1)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert count(database) == len(names)
        ids = [{o.ids for o in outcomes[place] if isinstance(o, Admitted)} for place in (0, 1)]
        assert ids[0] == ids[1] and len(ids[0]) == len(names)


def test_what_waits_anyway_takes_no_credit_of_the_lane(database: DatabaseFixture) -> None:
    grant(database, medium=3)
    database.execute("INSERT INTO circuits (dependency, state) VALUES ('claude', 'open')")
    database.execute(
        "INSERT INTO verdicts (kind, tenant_id, pool) VALUES ('throttle', 2, 'medium')"
    )
    items = [
        job(dependency="claude"),
        job(tenant_id=2),
        job(execute_at=datetime.now(UTC) + timedelta(hours=1)),
        job(),
        job(execute_at=datetime.now(UTC) - timedelta(hours=1)),
        job(dependency="other", tenant_id=3),
    ]
    (outcome,) = admit_all(database, entry(None, *items), express=True)
    assert isinstance(outcome, Admitted)
    assert outcome.express == tuple(items[3:])
    assert [database.job(item.id).status for item in items] == [
        *("queued", "queued", "scheduled"),
        *("dispatched", "dispatched", "dispatched"),
    ]
    assert credits_left(database) == {"medium": 0}
    assert not database.miscounted()


def test_each_pool_of_a_group_has_its_own_lane(database: DatabaseFixture) -> None:
    grant(database, short=5, medium=1)
    items = [job(pool="short"), job(pool="medium"), job(pool="medium"), job(pool="long")]
    (outcome,) = admit_all(database, entry("k", *items), express=True)
    assert isinstance(outcome, Admitted)
    assert outcome.express == (items[0],)
    assert credits_left(database) == {"short": 4, "medium": 1}


def test_repetition_takes_no_credit_and_is_not_dispatched_again(database: DatabaseFixture) -> None:
    grant(database, medium=5)
    (first,) = admit_all(database, entry("k"), express=True)
    (again,) = admit_all(database, entry("k"), express=True)
    assert isinstance(first, Admitted) and len(first.express) == 1
    assert isinstance(again, Admitted) and again.express == ()
    assert credits_left(database) == {"medium": 4}


def test_processes_that_take_from_two_lanes_do_not_lock_each_other_out(
    database: DatabaseFixture,
) -> None:
    grant(database, short=100_000, medium=100_000)
    start = threading.Barrier(4)

    def run(place: int) -> None:
        start.wait()
        for _ in range(15):
            items = [job(pool="short"), job(pool="medium")]
            admit_all(database, entry(None, *(items if place % 2 else items[::-1])), express=True)

    threads = [threading.Thread(target=run, args=(place,)) for place in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert credits_left(database) == {"short": 100_000 - 60, "medium": 100_000 - 60}
    assert not database.miscounted()


texts = st.text(st.characters(codec="utf-8", exclude_characters="\x00"), max_size=20)


@settings(
    max_examples=60,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(values=st.lists(st.none() | texts, max_size=6))
@example(values=["NULL", "", "{}", 'a"b', "a\\b", '\\"', "a,b", " a ", "'", "%s", None, "null"])
def test_text_goes_through_an_array_as_it_is(
    database: DatabaseFixture, values: list[str | None]
) -> None:
    with database.engine.connect() as connection:
        (found,) = connection.exec_driver_sql(
            "SELECT %(given)s::text[]", {"given": text_array(values)}
        ).one()
    assert found == values


def test_batches_do_not_become_one_statement_of_any_length(
    database: DatabaseFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten batches at once are written in several groups, none of more rows than is healthy."""
    rows: list[int] = []
    hold = threading.Event()

    def measured(engine: Engine, group: Any, express: bool) -> list[Outcome]:
        hold.wait(10)
        rows.append(sum(len(one.submissions) for one in group))
        return admit_group(engine, group, express)

    monkeypatch.setattr("app.admission.admission.admit_group", measured)
    admission = Admission(database.engine, FakePublisher(), 30.0)
    threads = [
        threading.Thread(target=admission.admit, args=([job() for _ in range(1000)],))
        for _ in range(10)
    ]
    for thread in threads:
        thread.start()
    hold.set()
    for thread in threads:
        thread.join()
    admission.close(5)
    assert sum(rows) == count(database) == 10_000
    assert max(rows) <= 5_000


@pytest.mark.parametrize(("late", "status"), [(True, "dispatched"), (False, "queued")])
def test_express_job_whose_confirm_is_late_stays_dispatched(
    database: DatabaseFixture, late: bool, status: str
) -> None:
    class TroubledPublisher(FakePublisher):
        def publish(self, dispatches: Any, *_: Any) -> bool:
            if not late:
                raise BrokerUnavailable
            return False

    grant(database, medium=5)
    admission = Admission(database.engine, TroubledPublisher(), 30.0)
    express = job()
    admission.admit([express])
    admission.close(5)
    assert database.job(express.id).status == status


def test_the_hot_statement_is_planned_once(database: DatabaseFixture) -> None:
    """An expensive part in it would make the server plan every execution anew."""
    plans = "SELECT sum(generic_plans) AS generic FROM pg_prepared_statements WHERE name ~ '^admit'"
    with database.engine.connect() as connection:
        connection.exec_driver_sql("DEALLOCATE ALL")
        connection.info.clear()
        for cap in (None, 100):
            for _ in range(8):
                parameters = parameters_of([entry(None, job(cap=cap))], True)
                PREPARED.execute(connection, parameters)
        assert connection.exec_driver_sql(plans).scalar_one() >= 8
