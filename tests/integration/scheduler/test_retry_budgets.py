"""Retry budgets: the leader judges, workers read the few restrictions that are in force."""

from __future__ import annotations

import time

import pytest

from app.scheduler.protection.restrictions import RetryBudgets
from app.scheduler.role import MOST_PAUSE_SECONDS, TimedRole, run_due
from app.scheduler.service import PAUSE_FACTOR
from models.tallies import TallyKind, add_tallies
from tasks.retry.guards import BUDGET_FLOOR
from tasks.worker.rules import read_rules
from tests.support.database_fixture import DatabaseFixture
from tests.support.emptied import emptied
from tests.support.one_worker import one_worker
from tests.support.statements import statements

#: How a worker of the previous version reads its rules.
READ_RULES_PREVIOUSLY = """
    SELECT 'circuit' AS kind, dependency AS name, 0 AS runs, 0 AS retries, 0 AS closed_ms
    FROM circuits WHERE state = 'open'
    UNION ALL
    SELECT 'quarantine', name, 0, 0, 0 FROM verdicts WHERE kind = 'quarantine'
    UNION ALL
    SELECT kind, name, sum(total)::bigint, sum(amount)::bigint, 0 FROM tallies
    WHERE kind = 'retry' AND bucket > now() - interval '600 seconds'
    GROUP BY kind, name HAVING sum(amount) > 0
    UNION ALL
    SELECT 'quota', dependency, 0, 0,
           coalesce(extract(epoch FROM closed_until - now()) * 1000, 0)::bigint FROM quotas
"""


@pytest.fixture
def database(api_database: DatabaseFixture) -> DatabaseFixture:
    return emptied(api_database)


@pytest.fixture
def budgets(database: DatabaseFixture) -> RetryBudgets:
    return RetryBudgets(database.engine, database.leader)


def count(database: DatabaseFixture, tenant_id: int, first_runs: int, retries: int) -> None:
    key = (TallyKind.RETRY, str(tenant_id))
    add_tallies(database.engine, [(key, (first_runs, retries))])


def restricted(database: DatabaseFixture) -> list[int]:
    rows = database.query("SELECT tenant_id FROM verdicts WHERE kind = 'retry_budget' ORDER BY 1")
    return [row.tenant_id for row in rows]


def test_the_leader_restricts_who_has_no_budget_left_and_lifts_it_again(
    database: DatabaseFixture, budgets: RetryBudgets
) -> None:
    count(database, 7, first_runs=10, retries=BUDGET_FLOOR)
    count(database, 8, first_runs=11, retries=BUDGET_FLOOR)
    count(database, 9, first_runs=500, retries=0)
    assert budgets.run_once(0.0) == 1
    assert restricted(database) == [7]
    rules = read_rules(database.engine)
    assert rules.without_budget == {7}
    assert budgets.run_once(40.0) == 0
    assert rules.version == read_rules(database.engine).version, "nothing changed"
    count(database, 7, first_runs=1, retries=0)
    assert budgets.run_once(80.0) == 0, "a tenth of its budget has to be there again"
    count(database, 7, first_runs=1, retries=0)
    assert budgets.run_once(120.0) == 1
    assert restricted(database) == []
    assert not read_rules(database.engine, rules).without_budget


def test_old_retries_are_forgotten(database: DatabaseFixture, budgets: RetryBudgets) -> None:
    count(database, 7, first_runs=0, retries=BUDGET_FLOOR)
    budgets.run_once(0.0)
    database.execute("UPDATE tallies SET bucket = bucket - interval '11 minutes'")
    assert budgets.run_once(40.0) == 1
    assert restricted(database) == []


def test_a_leader_that_was_overtaken_writes_nothing(
    database: DatabaseFixture, budgets: RetryBudgets
) -> None:
    count(database, 7, first_runs=0, retries=BUDGET_FLOOR)
    database.execute("INSERT INTO verdicts (kind, tenant_id) VALUES ('retry_budget', 8)")
    database.execute("UPDATE leaders SET epoch = epoch + 1")
    assert budgets.run_once(0.0) == 0
    assert restricted(database) == [8]


def test_workers_read_no_counts_and_only_restrictions_that_changed(
    database: DatabaseFixture,
) -> None:
    for tenant_id in range(1, 50):
        count(database, tenant_id, first_runs=1, retries=1)
    database.execute("INSERT INTO verdicts (kind, tenant_id) VALUES ('retry_budget', 8)")
    with statements(database) as sent:
        rules = read_rules(database.engine)
        assert len(sent) == 2
        for _ in range(3):
            rules = read_rules(database.engine, rules)
        assert len(sent) == 5, "one statement, and its rows do not depend on the tenants"
        assert not any("tallies" in sql for sql in sent)
    assert rules.without_budget == {8}


@pytest.mark.parametrize(
    "change",
    [
        "INSERT INTO verdicts (kind, name) VALUES ('quarantine', 'sleep')",
        "UPDATE verdicts SET tenant_id = 9 WHERE kind = 'retry_budget'",
        "DELETE FROM verdicts WHERE kind = 'retry_budget'",
        "WITH gone AS (DELETE FROM verdicts RETURNING 1) SELECT count(*) FROM gone",
    ],
)
def test_every_change_is_seen_whoever_makes_it(database: DatabaseFixture, change: str) -> None:
    database.execute("INSERT INTO verdicts (kind, tenant_id) VALUES ('retry_budget', 8)")
    before = read_rules(database.engine)
    database.execute("DELETE FROM verdicts WHERE kind = 'spike'")
    assert read_rules(database.engine, before).version == before.version, "nothing was deleted"
    database.execute(change)
    after = read_rules(database.engine, before)
    assert after.version != before.version
    assert after == read_rules(database.engine)


def test_a_tenant_without_budget_gets_no_retry_and_others_do(database: DatabaseFixture) -> None:
    def fail(*_: object) -> None:
        raise ValueError("no")

    database.execute("INSERT INTO verdicts (kind, tenant_id) VALUES ('retry_budget', 2)")
    with one_worker(database) as worker:
        worker.act = fail
        worker.flush()
        worker.execute(worker.refs(1, tenant_id=1))
        worker.execute(worker.refs(1, tenant_id=2))
        worker.flush()
    jobs = database.query("SELECT status::text, error_message FROM jobs ORDER BY tenant_id")
    assert [job.status for job in jobs] == ["scheduled", "dead"]
    assert jobs[1].error_message.endswith("(retry budget spent)")


def test_between_two_beats_a_process_grants_no_more_than_a_budget(
    database: DatabaseFixture,
) -> None:
    def fail(*_: object) -> None:
        raise ValueError("no")

    with one_worker(database) as worker:
        worker.act = fail
        worker.worker.tallies.add_all([((TallyKind.RETRY, "1"), (0, BUDGET_FLOOR - 1))])
        for _ in range(2):
            worker.execute(worker.refs(1))
    jobs = database.query("SELECT status::text FROM jobs ORDER BY id")
    assert [job.status for job in jobs] == ["scheduled", "dead"], "it knows what it granted"


def test_workers_of_the_previous_version_go_on_judging_for_themselves(
    database: DatabaseFixture,
) -> None:
    count(database, 7, first_runs=10, retries=BUDGET_FLOOR)
    database.execute("INSERT INTO verdicts (kind, tenant_id) VALUES ('retry_budget', 7)")
    database.execute(
        "INSERT INTO verdicts (kind, tenant_id, name) VALUES ('tenant_quarantine', 7, 'echo')"
    )
    rows = database.query(READ_RULES_PREVIOUSLY)
    assert [(row.kind, row.name, row.runs, row.retries) for row in rows] == [
        ("retry", "7", 10, BUDGET_FLOOR)
    ], "one tenant's quarantine is nobody else's"


def test_judging_takes_a_small_part_of_a_core_however_many_tenants_there_are(
    database: DatabaseFixture,
) -> None:
    class Slow:
        def run_once(self, now: float) -> int:
            time.sleep(0.02)
            return 0

    slow, quick = TimedRole(Slow(), 2.0, pause_factor=PAUSE_FACTOR), TimedRole(Slow(), 2.0)
    run_due([slow, quick], database.leader, 100.0)
    assert 104.0 <= slow.due <= 100.0 + MOST_PAUSE_SECONDS
    assert quick.due == 102.0
