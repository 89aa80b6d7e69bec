"""What one tenant's payloads do: it feels it, and the others do not. From runs to rows and back."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from app.policy.pool_choice import VIOLATIONS
from app.scheduler.protection.circuits import Circuits
from app.scheduler.protection.classifier import Classifier
from app.scheduler.protection.restrictions import Quarantine
from models.jobs.settle import Ending
from models.jobs.states import JobStatus
from models.presence import Presence, announce
from models.tallies import TallyKind, tenant_name
from tasks.errors import DependencyFailure, Permanent
from tasks.retry.circuit import MIN_CALLS, PROBES_WANTED
from tasks.retry.guards import QUARANTINE_MIN_RUNS
from tasks.worker.decide import counts_of
from tasks.worker.outcome import Succeeded
from tests.support.database_fixture import DatabaseFixture
from tests.support.emptied import emptied
from tests.support.one_worker import OneWorker, one_worker

#: The tenant whose payloads are bad, and two others.
BAD, ADA, BOB = 1, 2, 3


@pytest.fixture
def database(api_database: DatabaseFixture) -> DatabaseFixture:
    return emptied(api_database)


@pytest.fixture
def worker(database: DatabaseFixture) -> Iterator[OneWorker]:
    with one_worker(database) as made:
        types: Any = made.worker.types
        types["echo"] = replace(types["echo"], dependency="claude")
        yield made


def run(worker: OneWorker, tenant_id: int, count: int, error: Exception | None = None) -> None:
    """Run jobs of a tenant that all end like this, and write the counts."""

    def act(ctx: Any, payload: Any) -> Any:
        if error is not None:
            raise error
        return payload

    worker.act = act
    worker.execute(worker.refs(count, tenant_id=tenant_id))
    worker.flush()


def count_runs(worker: OneWorker, tenant_id: int, runs: int, seconds: float = 0.01) -> None:
    """As if the worker had run them."""
    [claim] = worker.database.claim(*worker.refs(1, tenant_id=tenant_id))
    done = Ending(JobStatus.SUCCEEDED, tries_spent=1, result="{}")
    for _ in range(runs):
        worker.worker.tallies.add_run(
            counts_of(claim, worker.worker.types["echo"], Succeeded("{}"), done, seconds)
        )
    worker.flush()


def events(database: DatabaseFixture) -> list[tuple[int, str]]:
    rows = database.query("SELECT tenant_id, kind FROM events ORDER BY id")
    return [tuple(row) for row in rows]


def test_a_type_that_fails_for_one_tenant_is_quarantined_for_that_one(
    database: DatabaseFixture, worker: OneWorker
) -> None:
    role = Quarantine(database.engine, database.leader)
    run(worker, BAD, 2 * QUARANTINE_MIN_RUNS + 1, Permanent("broken payload"))
    count_runs(worker, ADA, QUARANTINE_MIN_RUNS)
    count_runs(worker, BOB, QUARANTINE_MIN_RUNS)
    assert role.run_once(0.0) == 1
    worker.flush()
    rules = worker.worker.heartbeat.rules
    assert rules.quarantined == frozenset(), "more than half of all runs failed, but of one tenant"
    assert rules.tenants_quarantined == {(BAD, "echo")}
    assert events(database) == [(BAD, "job_type_quarantined")], "it concerns nobody else"

    run(worker, BAD, 1, ValueError("no"))
    run(worker, ADA, 1, ValueError("no"))
    database.execute("UPDATE jobs SET execute_at = now() WHERE status = 'scheduled'")
    database.execute("UPDATE jobs SET status = 'queued' WHERE status = 'scheduled'")
    worker.execute(worker.dispatched(10))
    worker.flush()
    jobs = database.query(
        "SELECT status::text, attempt FROM jobs WHERE attempt = 2 ORDER BY tenant_id"
    )
    assert [tuple(job) for job in jobs] == [("dead", 2), ("scheduled", 2)]

    count_runs(worker, BAD, 8 * QUARANTINE_MIN_RUNS)
    database.leader.run_once(0.0)
    assert role.run_once(0.0) == 1, "it recovers by its own runs"
    assert events(database)[-1] == (BAD, "job_type_released")


def test_a_type_that_fails_for_two_tenants_is_quarantined_for_all(
    database: DatabaseFixture, worker: OneWorker
) -> None:
    run(worker, BAD, QUARANTINE_MIN_RUNS, Permanent("broken"))
    run(worker, ADA, QUARANTINE_MIN_RUNS, Permanent("broken"))
    assert Quarantine(database.engine, database.leader).run_once(0.0) == 3
    worker.flush()
    assert worker.worker.heartbeat.rules.quarantined == {"echo"}
    assert (0, "job_type_quarantined") in events(database)


def add_runs(
    database: DatabaseFixture, kind: TallyKind, name: str, ago: str, runs: int, failed: int
) -> None:
    database.execute(
        "INSERT INTO tallies (kind, bucket, name, total, amount) VALUES"
        " (%s, date_bin('5 minutes', now(), 'epoch') - %s::interval, %s, %s, %s)",
        *(kind, ago, name, runs, failed),
    )


@pytest.mark.parametrize("ago", ["55 minutes", "60 minutes", "65 minutes"])
def test_good_runs_of_an_hour_ago_are_counted_for_all_or_not_at_all(
    database: DatabaseFixture, ago: str
) -> None:
    add_runs(database, TallyKind.TYPE, "echo", ago, 10_000, 0)
    add_runs(database, TallyKind.TENANT_TYPE, tenant_name("echo", BAD), ago, 10_000, 0)
    for tenant_id, runs, failed in ((BAD, 500, 500), (ADA, 490, 100)):
        name = tenant_name("echo", tenant_id)
        add_runs(database, TallyKind.TENANT_TYPE, name, "10 minutes", runs, failed)
    add_runs(database, TallyKind.TYPE, "echo", "10 minutes", 990, 600)
    Quarantine(database.engine, database.leader).run_once(0.0)
    rows = database.query("SELECT tenant_id FROM verdicts")
    assert 0 not in [row.tenant_id for row in rows], "most runs of the other tenant succeed"


def circuit(database: DatabaseFixture) -> str:
    rows = database.query("SELECT state FROM circuits")
    return str(rows[0].state) if rows else "none"


def test_failures_of_one_tenant_open_no_circuit_that_others_use_well(
    database: DatabaseFixture, worker: OneWorker
) -> None:
    circuits = Circuits(database.engine, database.leader, ["claude"])
    run(worker, ADA, 3)
    run(worker, BAD, 5 * MIN_CALLS, DependencyFailure("claude", "too long a prompt"))
    assert circuits.run_once(0.0) == 0, "calls of others succeed"
    jobs = database.query("SELECT status::text, attempt FROM jobs WHERE tenant_id = %s", BAD)
    assert {tuple(job) for job in jobs} == {("scheduled", 0)}, "they come back later"
    run(worker, ADA, 4, DependencyFailure("claude", "down"))
    assert circuits.run_once(0.0) == 1, "now it fails for others, too"
    assert circuit(database) == "open"


def test_an_outage_that_only_one_active_tenant_sees_opens_the_circuit(
    database: DatabaseFixture, worker: OneWorker
) -> None:
    run(worker, BAD, 2)
    run(worker, BAD, MIN_CALLS, DependencyFailure("claude", "down"))
    assert Circuits(database.engine, database.leader, ["claude"]).run_once(0.0) == 1
    assert circuit(database) == "open"


def test_one_tenant_does_not_hold_everybody_s_circuit_open(
    database: DatabaseFixture, worker: OneWorker
) -> None:
    circuits = Circuits(database.engine, database.leader, ["claude"])
    database.execute("INSERT INTO circuits (dependency, state) VALUES ('claude', 'half_open')")
    probes = worker.refs(PROBES_WANTED, tenant_id=ADA, dependency="claude")
    run(worker, BAD, 2 * PROBES_WANTED, DependencyFailure("claude", "too long a prompt"))
    assert circuits.run_once(0.0) == 0, "the others' probes are in flight"
    worker.act = lambda ctx, payload: payload
    worker.execute(probes)
    worker.flush()
    assert circuits.run_once(0.0) == 1
    assert circuit(database) == "closed"


def test_long_runs_of_one_tenant_move_no_type_that_others_use(
    database: DatabaseFixture, worker: OneWorker
) -> None:
    for pool in ("short", "medium", "long"):
        announce(database.engine, Presence(f"worker of {pool}", "worker", [pool], slots=2))
    classifier = Classifier(database.engine, database.leader, database.types)
    count_runs(worker, ADA, 60, 0.1)
    count_runs(worker, BOB, 60, 0.1)
    count_runs(worker, BAD, 3 * VIOLATIONS, 30.0)
    assert classifier.run_once(0.0) == 0
    [row] = database.query("SELECT pool, p95_seconds FROM job_types WHERE type = 'echo'")
    assert row.pool == "short" and row.p95_seconds > 20, "measured it is"
    count_runs(worker, ADA, 60, 5.0)
    assert classifier.run_once(0.0) == 1, "for Ada it takes too long as well"
    [row] = database.query("SELECT pool FROM job_types WHERE type = 'echo'")
    assert row.pool == "medium"


def test_the_only_tenant_of_a_type_moves_it(database: DatabaseFixture, worker: OneWorker) -> None:
    for pool in ("short", "medium", "long"):
        announce(database.engine, Presence(f"worker of {pool}", "worker", [pool], slots=2))
    count_runs(worker, BAD, VIOLATIONS, 30.0)
    assert Classifier(database.engine, database.leader, database.types).run_once(0.0) == 1
