"""The limits of tenants on a real database: buckets that processes share, depths, refusals."""

from __future__ import annotations

import re
import threading
import time
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest

from app.admission import IdempotencyKey
from app.admission import depth as depth_module
from app.admission.depth import READ_DEPTHS, REFUSE_SECONDS, Depth, TenantQueue
from app.admission.gate import READ_KNOWN, Gate
from app.admission.rate import LEASE, TAKE, Rate, TokenRequest, lease_existing
from app.admission.refusals import MOST_KEPT, Refusals, read_refusals
from app.errors import QueueDepthExceeded, RateLimited
from app.policy.rate_limit import limit_of
from app.tenants.tenant import PoolLimits, TenantProfile
from loadtest.fakes.token_bucket import lease, take
from models.settings import DatabaseSettings
from models.store.errors import StateStoreUnavailable
from models.store.session import open_engine, transaction
from tests.support.database_fixture import DatabaseFixture
from tests.support.emptied import COUNTS, emptied
from tests.support.plans import plan_of
from tests.support.statements import statements
from tests.support.waiting import wait_for

#: What a statement gets; enough on a busy machine.
SECONDS = 10.0
NOWHERE = "postgresql+psycopg2://nobody@127.0.0.1:1/nothing"


@pytest.fixture
def database(api_database: DatabaseFixture) -> DatabaseFixture:
    return emptied(api_database)


def passes(rate: Rate, tenant_id: int, per_second: float, burst: float, tokens: int = 1) -> bool:
    try:
        rate.take(tenant_id, limit_of(per_second, burst), tokens)
    except RateLimited:
        return False
    return True


# ---- Rate


#: Seconds since the bucket was spent, rate, burst, need, want.
LEASES = [
    (1000.0, 100.0, 100.0, 1, 1),
    (1000.0, 100.0, 100.0, 1, 10),
    (0.5, 100.0, 100.0, 1, 10),
    (0.15, 100.0, 100.0, 1, 10),
    (0.15, 100.0, 100.0, 16, 16),
    (1000.0, 100.0, 100.0, 1000, 1000),
    (0.9, 100.0, 100.0, 1000, 1),
    (1000.0, 0.1, 10.0, 7, 1),
    (0.2, 100.0, 100.0, 7, 12),
    (-9.0, 100.0, 100.0, 1, 10),
    (1 / 3, 3.0, 1.0, 1, 1),
    (0.333, 3.0, 1.0, 1, 1),
    (1.7, 0.5, 1.0, 1, 1),
    (7.0, 0.5, 1.0, 1, 1),
]


@pytest.mark.parametrize(("statement", "model"), [(LEASE, lease), (TAKE, take)])
def test_the_statement_does_what_the_bucket_says(
    database: DatabaseFixture, statement: str, model: Any
) -> None:
    asked = [
        TokenRequest(n, limit_of(of[1], of[2]), of[3], of[4]) for n, of in enumerate(LEASES, 1)
    ]
    with transaction(database.engine) as connection:  # in which now() stands still
        for n, (seconds, *_) in enumerate(LEASES, 1):
            connection.exec_driver_sql(
                "INSERT INTO rate_buckets VALUES (%s, now() - make_interval(secs => %s))",
                (n, seconds),
            )
        found = lease_existing(connection, asked, statement)
        rows = connection.exec_driver_sql(
            "SELECT tenant_id, extract(epoch FROM spent_until - now())::float8 FROM rate_buckets"
        )
        spent = {row[0]: row[1] for row in rows}
    for one, (seconds, *_) in zip(asked, LEASES, strict=True):
        spent_until, grant = model(-seconds, 0.0, one.limit, one.need, one.want)
        got = found[one.tenant_id]
        assert got.tokens == grant.tokens, one
        assert got.left == pytest.approx(grant.left, abs=1e-3), one
        assert got.good_seconds == pytest.approx(grant.good_seconds, abs=1e-5), one
        assert spent[one.tenant_id] == pytest.approx(spent_until, abs=1e-5), one


def test_processes_share_the_burst_of_a_tenant(database: DatabaseFixture) -> None:
    first, second = Rate(database.engine, SECONDS), Rate(database.engine, SECONDS)
    passed = [passes(rate, 1, 0.01, 10) for _ in range(10) for rate in (first, second)]
    assert sum(passed) == 10
    assert passes(first, 2, 0.01, 10), "another tenant has a bucket of its own"


def test_two_processes_hold_the_limit_under_a_flood_with_few_statements(
    database: DatabaseFixture,
) -> None:
    rates = [Rate(database.engine, SECONDS) for _ in range(2)]
    full, burst = time.monotonic(), 0
    for rate in rates:
        while passes(rate, 1, 100, 25):
            burst += 1
    asked: list[float] = []
    passed: list[float] = []
    begin = time.monotonic()
    end = begin + 2.0

    def flood(rate: Rate) -> None:
        while (now := time.monotonic()) < end:
            asked.append(now)
            if passes(rate, 1, 100, 25):
                passed.append(now)
            time.sleep(0.0005)

    with statements(database) as sent:
        threads = [threading.Thread(target=flood, args=(rate,)) for rate in rates for _ in "ab"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    now = time.monotonic()
    seconds = now - begin
    # Nobody asked meanwhile: the machine was busy, and tokens beyond the burst are lost.
    stalled = sum(gap for one, next_ in pairwise(sorted(asked)) if (gap := next_ - one) > 0.1)
    assert 0.9 * 100 * (seconds - stalled) - 10 <= len(passed)
    assert burst + len(passed) <= 25 + 1.1 * 100 * (now - full)
    assert len(sent) <= 2 * 14 * seconds
    assert set(sent) == {LEASE}


def test_concurrent_callers_share_a_question(database: DatabaseFixture) -> None:
    rate = Rate(database.engine, SECONDS)
    gate = threading.Barrier(60)
    passed: list[bool] = []

    def call() -> None:
        gate.wait()
        passed.append(passes(rate, 1, 100, 50))

    with statements(database) as sent:
        threads = [threading.Thread(target=call) for _ in range(60)]
        began = time.monotonic()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        seconds = time.monotonic() - began
    assert 50 <= sum(passed) <= 60
    assert sent.count(LEASE) <= 20 + 14 * seconds


def test_a_bucket_that_somebody_has_locked_holds_up_its_own_tenant_only(
    database: DatabaseFixture,
) -> None:
    rate = Rate(database.engine, 4.0)
    assert passes(rate, 1, 1000, 1), "there is a bucket"
    outcome: list[bool] = []
    blocked = threading.Thread(target=lambda: outcome.append(passes(rate, 1, 1000, 1)))
    with transaction(database.engine) as connection:
        connection.exec_driver_sql("SELECT FROM rate_buckets WHERE tenant_id = 1 FOR UPDATE")
        blocked.start()
        database.wait_until_waiting()
        assert all(passes(rate, tenant_id, 100, 10) for tenant_id in range(2, 12))
        assert blocked.is_alive()
    blocked.join(10)
    assert outcome == [True]


def test_a_tenant_that_is_changed_has_its_new_limit_at_once(database: DatabaseFixture) -> None:
    rate = Rate(database.engine, SECONDS)
    assert [passes(rate, 1, 0.01, 2) for _ in range(3)] == [True, True, False]
    assert passes(rate, 1, 1000.0, 1000), "the time that was spent at the old rate is another"


def test_without_a_database_nobody_is_refused_for_its_rate() -> None:
    away = open_engine(DatabaseSettings(database_url=NOWHERE, db_connect_seconds=0.5))
    rate = Rate(away, 0.7)
    errors: list[type[Exception]] = []

    def call() -> None:
        try:
            passes(rate, 1, 10, 10)
        except Exception as error:  # noqa: BLE001 - which one is the question
            errors.append(type(error))

    threads = [threading.Thread(target=call) for _ in range(20)]
    began = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == [StateStoreUnavailable] * 20
    assert time.monotonic() - began < 7.0, "they wait together"


def test_lost_answer_costs_no_token_that_was_at_hand(database: DatabaseFixture) -> None:
    rate = Rate(database.engine, SECONDS)
    limit = limit_of(0.01, 10)
    assert rate.take(1, limit).remaining == 9
    database.execute("ALTER TABLE rate_buckets RENAME TO elsewhere")
    try:
        with pytest.raises(Exception, match="rate_buckets"):
            rate.take(1, limit)
    finally:
        database.execute("ALTER TABLE elsewhere RENAME TO rate_buckets")
    assert rate.take(1, limit).remaining == 8


def test_hot_statements_of_the_gate_walk_indexes(database: DatabaseFixture) -> None:
    database.execute("INSERT INTO rate_buckets SELECT n FROM generate_series(1, 5000) AS n")
    database.execute(
        "INSERT INTO job_count_keys SELECT n, 'medium', '' FROM generate_series(1, 5000) AS n"
    )
    database.execute(
        "INSERT INTO job_count_sums SELECT tenant_id, pool, dependency, 0, 0, 0, 0, 0, 0, 0, 0, 0"
        " FROM job_count_keys"
    )
    database.execute(
        "INSERT INTO job_count_deltas OVERRIDING SYSTEM VALUE"
        " SELECT tenant_id, pool, dependency, n, 0, 0, 0, 0, 0, 0, 0, 0"
        " FROM job_count_keys, generate_series(1, 4) AS n"
    )
    database.execute(
        "INSERT INTO idempotency_keys (tenant_id, key, digest, job_ids)"
        " SELECT 1, n::text, '', ARRAY[gen_random_uuid()] FROM generate_series(1, 5000) AS n"
    )
    database.execute(f"ANALYZE rate_buckets, {COUNTS}, idempotency_keys")
    asked = {"tenants": "{1,2}", "rates": "{1,1}", "bursts": "{1,1}"}
    plans = [
        plan_of(database, LEASE.partition(";")[2], **asked, needs="{1,1}", wants="{1,1}"),
        plan_of(database, READ_DEPTHS, places="{0,1}", tenants="{1,2}", pools="{medium,short}"),
        plan_of(database, READ_KNOWN, places="{0,1}", tenants="{1,2}", keys="{a,b}"),
    ]
    for plan in plans:
        assert not re.search("Seq Scan on", plan), plan


# ---- Depth


def enter(depth: Depth, database: DatabaseFixture, limit: int, jobs: int = 1) -> int:
    """Let jobs in and write them."""
    entered = depth.enter((1, "medium"), jobs, limit)
    for _ in range(entered):
        database.submit()
    depth.settle((1, "medium"), entered)
    return entered


def test_processes_share_a_depth(database: DatabaseFixture) -> None:
    first, second = Depth(database.engine, SECONDS), Depth(database.engine, SECONDS)
    entered = [enter(depth, database, 5) for _ in range(5) for depth in (first, second)]
    assert entered == [1] * 5 + [0] * 5
    assert first.enter((1, "short"), 1, 5) == first.enter((2, "medium"), 1, 5) == 1


def test_depth_is_what_is_scheduled_and_queued(database: DatabaseFixture) -> None:
    database.start()  # runs
    database.submit(execute_at=datetime.now(UTC) + timedelta(hours=1))
    database.submit(dependency="claude")
    database.submit(pool="long")
    assert Depth(database.engine, SECONDS).enter((1, "medium"), 100, 10) == 8


def test_a_line_that_got_shorter_takes_more(database: DatabaseFixture) -> None:
    depth = Depth(database.engine, SECONDS)
    job_id = database.submit()
    assert depth.enter((1, "medium"), 1, 1) == 0
    database.execute("UPDATE jobs SET status = 'cancelled' WHERE id = %s", job_id)
    wait_for(lambda: depth.enter((1, "medium"), 1, 1) == 1)


def test_what_is_on_its_way_counts(database: DatabaseFixture) -> None:
    depth = Depth(database.engine, SECONDS)
    assert [depth.enter((1, "medium"), 1, 3) for _ in range(5)] == [1, 1, 1, 0, 0]


def test_what_did_not_join_the_line_does_not_count(database: DatabaseFixture) -> None:
    depth = Depth(database.engine, SECONDS)
    assert depth.enter((1, "medium"), 4, 3) == 3
    depth.settle((1, "medium"), 3, joined=False)
    assert depth.enter((1, "medium"), 3, 3) == 3


def test_a_line_that_is_forgotten_while_it_is_read_is_as_long_as_it_was(
    database: DatabaseFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    depth = Depth(database.engine, SECONDS)
    database.submit()
    assert depth.enter((2, "medium"), 1, 1) == 1  # on its way
    assert depth.enter((3, "medium"), 0, 1) == 0
    monkeypatch.setattr(depth_module, "MOST_QUEUES", 1)
    submit = depth._reads.submit

    def crowded(line: TenantQueue, timeout: float) -> int:
        read = submit(line, timeout)
        if line[0] == 1:
            del depth._readings[line]  # others came
        return read

    monkeypatch.setattr(depth._reads, "submit", crowded)
    assert depth.enter((1, "medium"), 1, 1) == 0
    assert (3, "medium") not in depth._readings
    assert depth.enter((2, "medium"), 1, 2) == 1, "what is on its way is not forgotten"


def test_far_from_the_limit_nothing_is_read_for_a_request(database: DatabaseFixture) -> None:
    depth = Depth(database.engine, SECONDS)
    with statements(database) as sent:
        for _ in range(500):
            assert depth.enter((1, "medium"), 1, 10_000_000) == 1
            depth.settle((1, "medium"), 1)
        assert len(sent) <= 2


def test_a_flood_at_the_limit_is_refused_from_memory(database: DatabaseFixture) -> None:
    depth = Depth(database.engine, SECONDS)
    database.submit()
    with statements(database) as sent:
        began = time.monotonic()
        while len(sent) < 4:
            assert depth.enter((1, "medium"), 1, 1) == 0
            assert time.monotonic() < began + 15, "it is read again after a moment"
    assert time.monotonic() - began >= 3 * REFUSE_SECONDS


# ---- Refusals, and all of it together


def refused_rows(database: DatabaseFixture) -> list[tuple[int, str, int]]:
    rows = database.query("SELECT tenant_id, code, refused FROM refusals ORDER BY 1, 2")
    return [(row[0], row[1], row[2]) for row in rows]


def test_refusals_are_written_together_and_summed_up(database: DatabaseFixture) -> None:
    refusals = Refusals(database.engine, flush_seconds=0)
    with statements(database) as sent:
        for _ in range(3):
            refusals.count(2, "A")
        refusals.count(1, "B", 5)
        refusals.count(1, "A")
        refusals.flush()
        refusals.flush()
    assert len(sent) == 1
    refusals.count(2, "A")
    refusals.flush()
    assert refused_rows(database) == [
        (0, "A", 5),
        (0, "B", 5),
        (1, "A", 1),
        (1, "B", 5),
        (2, "A", 4),
    ]
    with database.engine.connect() as connection:
        today = datetime.now(UTC).date().isoformat()
        assert read_refusals(connection, 1, 7) == {today: {"A": 1, "B": 5}}
        connection.exec_driver_sql("UPDATE refusals SET day = day - 7")
        assert read_refusals(connection, 1, 7) == {}
        assert list(read_refusals(connection, 1, 8).values()) == [{"A": 1, "B": 5}]


def test_refusals_outlive_an_outage_in_bounded_memory(database: DatabaseFixture) -> None:
    away = open_engine(DatabaseSettings(database_url=NOWHERE, db_connect_seconds=0.5))
    refusals = Refusals(away, flush_seconds=0)
    for tenant_id in range(1, MOST_KEPT + 50):
        refusals.count(tenant_id, "A")
    for _ in range(2):
        with pytest.raises(StateStoreUnavailable):
            refusals.flush()
    refusals.count(1, "A")
    refusals._engine = database.engine  # it is back
    refusals.flush()
    rows = refused_rows(database)
    assert rows[:2] == [(0, "A", MOST_KEPT + 1), (1, "A", 2)]
    assert len(rows) == MOST_KEPT + 1


def test_refusals_are_written_by_themselves(database: DatabaseFixture) -> None:
    refusals = Refusals(database.engine, flush_seconds=0.01)
    refusals.count(1, "A")
    wait_for(lambda: bool(refused_rows(database)))
    refusals.count(1, "A")
    refusals.close()
    assert refused_rows(database)[-1] == (1, "A", 2)


def test_a_gate_takes_a_tenants_limits_before_the_deployments(database: DatabaseFixture) -> None:
    gate = Gate(
        *(database.engine, SECONDS),
        per_second=50.0,
        burst=80.0,
        queue_depth=1000,
        flush_seconds=0,
    )
    assert gate.limit(TenantProfile(1, "a")) == limit_of(50.0, 80.0)
    assert gate.limit(TenantProfile(1, "a", submit_burst=60.0)) == limit_of(50.0, 60.0)
    assert gate.limit(TenantProfile(1, "a", submit_per_second=10.0)) == limit_of(10.0)
    own = TenantProfile(
        1, "a", limits={"medium": PoolLimits(depth=7), "long": PoolLimits(in_flight=1)}
    )
    assert gate.depth_limit(own, "medium") == 7
    assert gate.depth_limit(own, "long") == gate.depth_limit(own, "short") == 1000
    assert isinstance(gate.too_deep(own, "medium"), QueueDepthExceeded)
    assert not gate.repeats(own, None) and not gate.repeats(own, IdempotencyKey("k", b""))
    unlimited = Gate(
        *(database.engine, SECONDS),
        per_second=0.0,
        burst=0.0,
        queue_depth=1000,
        flush_seconds=0,
    )
    with statements(database) as sent:
        assert unlimited.pass_rate(TenantProfile(1, "a")) is None
    assert not sent
