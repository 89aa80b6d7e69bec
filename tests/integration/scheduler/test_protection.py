"""Circuits, quarantine, throttles and spikes: from the workers' counts to rows and events."""

from __future__ import annotations

from typing import Any

import pytest

from app.admission import Admission
from app.scheduler.dispatching.promoter import Promoter
from app.scheduler.protection.circuits import Circuits
from app.scheduler.protection.restrictions import Quarantine, Spikes, Throttles
from app.scheduler.service import protection_roles
from models.jobs.claim import JobRef
from models.jobs.ids import new_id
from models.jobs.replay import replay_dead
from models.jobs.settle import Ending
from models.jobs.states import FailureClass, JobStatus
from models.jobs.submission import IdempotencyKey, Submission
from models.presence import Presence, announce
from models.tallies import TallyKind, add_tallies
from tasks.retry import circuit, guards
from tasks.worker.decide import counts_of
from tasks.worker.outcome import Succeeded
from tasks.worker.rules import read_rules
from tests.support.database_fixture import DatabaseFixture, FakePublisher
from tests.support.emptied import emptied


@pytest.fixture
def database(api_database: DatabaseFixture) -> DatabaseFixture:
    return emptied(api_database)


@pytest.fixture
def circuits(database: DatabaseFixture) -> Circuits:
    return Circuits(database.engine, database.leader, ["claude", "maps"])


def count(database: DatabaseFixture, kind: str, name: str, total: int, bad: int = 0) -> None:
    """As a worker or the reaper would."""
    add_tallies(database.engine, [((TallyKind[kind.upper()], name), (total, bad))])


def pass_time(database: DatabaseFixture, age: str) -> None:
    """As if everything had happened so much earlier."""
    database.execute("UPDATE tallies SET bucket = bucket - %s::interval", age)
    database.execute("UPDATE circuits SET changed_at = changed_at - %s::interval", age)
    database.execute("UPDATE verdicts SET since = since - %s::interval", age)


def events(database: DatabaseFixture) -> list[tuple[int, str, Any]]:
    rows = database.query("SELECT tenant_id, kind, detail FROM events ORDER BY id")
    return [(row.tenant_id, row.kind, row.detail) for row in rows]


def state(database: DatabaseFixture, dependency: str = "claude") -> str:
    rows = database.query("SELECT state FROM circuits WHERE dependency = %s", dependency)
    return str(rows[0].state) if rows else "none"


def test_a_failing_dependency_opens_its_circuit_and_good_probes_close_it(
    database: DatabaseFixture, circuits: Circuits
) -> None:
    count(database, "dependency", "claude", total=10, bad=5)
    count(database, "dependency", "maps", total=10, bad=4)
    assert circuits.run_once(0.0) == 1
    assert (state(database), state(database, "maps")) == ("open", "none")
    assert read_rules(database.engine).open_circuits == {"claude"}
    count(database, "dependency", "claude", total=3, bad=3)  # a worker that had not heard of it
    assert circuits.run_once(0.0) == 0

    pass_time(database, "60 seconds")
    assert circuits.run_once(0.0) == 1
    assert state(database) == "half_open"
    assert not read_rules(database.engine).open_circuits, "workers run the probes"

    count(database, "dependency", "claude", total=2)
    assert circuits.run_once(0.0) == 0, "one more is wanted"
    pass_time(database, "10 minutes")  # however long it takes to come
    count(database, "dependency", "claude", total=1)
    assert circuits.run_once(0.0) == 1
    assert circuits.run_once(0.0) == 0, "what led to the change is forgotten"
    assert state(database) == "closed"
    assert events(database) == [
        (0, "dependency_circuit_open", {"dependency": "claude", "calls": 10, "failed": 5}),
        (0, "dependency_circuit_closed", {"dependency": "claude", "calls": 3, "failed": 0}),
    ]


def test_a_bad_probe_opens_the_circuit_again_and_is_no_news(
    database: DatabaseFixture, circuits: Circuits
) -> None:
    database.execute("INSERT INTO circuits VALUES ('claude', 'half_open')")
    count(database, "dependency", "claude", total=5, bad=1)
    assert circuits.run_once(0.0) == 1
    assert state(database) == "open"
    assert circuits.run_once(0.0) == 0, "a minute from now"
    assert events(database) == []


def test_a_circuit_that_closed_is_not_opened_by_what_came_before(
    database: DatabaseFixture, circuits: Circuits
) -> None:
    database.execute("INSERT INTO circuits VALUES ('claude', 'half_open')")
    count(database, "dependency", "claude", total=circuit.PROBES_WANTED)
    circuits.run_once(0.0)
    count(database, "dependency", "claude", total=circuit.MIN_CALLS - 1, bad=circuit.MIN_CALLS - 1)
    assert circuits.run_once(0.0) == 0, "too few to say anything"
    assert state(database) == "closed"


def test_failures_of_a_minute_ago_open_no_circuit(
    database: DatabaseFixture, circuits: Circuits
) -> None:
    count(database, "dependency", "claude", total=20, bad=20)
    pass_time(database, "70 seconds")
    count(database, "dependency", "claude", total=5, bad=5)
    assert circuits.run_once(0.0) == 0


def test_a_dependency_that_no_type_declares_has_no_circuit(database: DatabaseFixture) -> None:
    count(database, "dependency", "blobs", total=50, bad=50)
    for timed in protection_roles(database.engine, database.leader, database.types):
        assert timed.role.run_once(0.0) == 0
    assert state(database, "blobs") == "none"


def test_a_circuit_of_a_dependency_that_nobody_declares_any_more_holds_nothing(
    database: DatabaseFixture, circuits: Circuits
) -> None:
    database.execute("INSERT INTO circuits (dependency, state) VALUES ('renamed', 'open')")
    circuits.run_once(0.0)
    assert state(database, "renamed") == "none"


def test_jobs_of_a_broken_dependency_wait_in_their_lane_and_come_back(
    database: DatabaseFixture, circuits: Circuits
) -> None:
    """Put off, promoted, parked, probed, done: one try spent in the end, and no slot meanwhile."""
    announce(database.engine, Presence("w1", "worker", ["medium"], slots=10))
    database.keep_present()
    pools, broker = database.pools(), FakePublisher()
    promoter = Promoter(database.engine, database.leader, pools, per_second=1000)
    dispatcher = database.dispatcher(broker, pools)
    jobs = [database.submit(dependency="claude") for _ in range(5)]
    dispatcher.run_once(0.0)
    away = Ending(JobStatus.SCHEDULED, deferrals=1, error_class=FailureClass.DEPENDENCY)
    for sent in broker.sent:
        database.claim(JobRef(sent.id, sent.lease))
        assert database.settle(JobRef(sent.id, sent.lease), away)
    count(database, "dependency", "claude", total=10, bad=10)
    circuits.run_once(0.0)
    broker.sent.clear()
    for turn in range(3, 12):
        promoter.run_once(turn * 0.1)
        assert dispatcher.run_once(turn * 0.1) == 0
    assert {database.job(job).status for job in jobs} == {"queued"}
    assert {(job.lease, job.attempt) for job in database.query("SELECT * FROM jobs")} == {(1, 0)}

    pass_time(database, "1 minute")
    circuits.run_once(0.0)
    pass_time(database, "3 seconds")
    assert dispatcher.run_once(2.0) == circuit.PROBES
    done = Ending(JobStatus.SUCCEEDED, tries_spent=1, result="{}")
    for sent in broker.sent:
        database.claim(JobRef(sent.id, sent.lease))
        assert database.settle(JobRef(sent.id, sent.lease), done)
        count(database, "dependency", "claude", total=1)
    circuits.run_once(0.0)
    assert state(database) == "closed"
    assert dispatcher.run_once(3.0) == 2
    assert {(job.attempt, job.deferrals) for job in database.query("SELECT * FROM jobs")} == {
        (1, 1),
        (0, 1),
    }


def test_a_type_that_mostly_fails_is_quarantined_until_it_recovers(
    database: DatabaseFixture,
) -> None:
    role = Quarantine(database.engine, database.leader)
    count(
        database, "type", "echo", total=guards.QUARANTINE_MIN_RUNS, bad=guards.QUARANTINE_MIN_RUNS
    )
    count(
        database,
        "type",
        "sleep",
        total=guards.QUARANTINE_MIN_RUNS,
        bad=guards.QUARANTINE_MIN_RUNS // 2,
    )
    assert role.run_once(0.0) == 1
    assert read_rules(database.engine).quarantined == {"echo"}
    assert role.run_once(0.0) == 0
    count(database, "type", "echo", total=2 * guards.QUARANTINE_MIN_RUNS)
    assert role.run_once(0.0) == 0, "a third still fails"
    count(database, "type", "echo", total=2 * guards.QUARANTINE_MIN_RUNS)
    assert role.run_once(0.0) == 1
    assert not read_rules(database.engine).quarantined
    assert events(database) == [
        (0, "job_type_quarantined", {"type": "echo", "runs": 50, "failed": 50}),
        (0, "job_type_released", {"type": "echo", "runs": 250, "failed": 50}),
    ]


def test_a_quarantine_ends_with_its_traffic(database: DatabaseFixture) -> None:
    role = Quarantine(database.engine, database.leader)
    count(database, "type", "echo", total=60, bad=60)
    role.run_once(0.0)
    pass_time(database, "61 minutes")
    assert role.run_once(0.0) == 1
    assert not read_rules(database.engine).quarantined


def test_a_tenant_that_kills_workers_is_throttled_until_ten_minutes_are_quiet(
    database: DatabaseFixture,
) -> None:
    role = Throttles(database.engine, database.leader)
    count(database, "crash", "7:medium", total=guards.THROTTLE_CRASHES, bad=guards.THROTTLE_CRASHES)
    count(
        database,
        "crash",
        "7:long",
        total=guards.THROTTLE_CRASHES - 1,
        bad=guards.THROTTLE_CRASHES - 1,
    )
    assert role.run_once(0.0) == 1
    pass_time(database, "9 minutes")
    assert role.run_once(0.0) == 0
    pass_time(database, "2 minutes")
    assert role.run_once(0.0) == 1
    assert events(database) == [
        (7, "tenant_throttled", {"pool": "medium", "crashes": guards.THROTTLE_CRASHES}),
        (7, "tenant_throttle_lifted", {"pool": "medium"}),
    ]
    assert not database.query("SELECT * FROM verdicts")


def test_a_spike_is_told_once_an_hour(database: DatabaseFixture) -> None:
    role = Spikes(database.engine, database.leader)
    usual = guards.SPIKE_BASELINE
    for _ in range(guards.SPIKE_MIN_HOURS):
        count(database, "submission", "7", total=usual)
        count(database, "submission", "8", total=5 * usual)
        pass_time(database, "1 hour")
    for tenant in ("7", "8", "9"):
        count(database, "submission", tenant, total=guards.SPIKE_TIMES * usual)
    assert role.run_once(0.0) == 1, "8 has another habit and 9 has none"
    assert role.run_once(0.0) == 0
    database.execute("UPDATE verdicts SET since = since - interval '1 hour'")
    assert role.run_once(0.0) == 1
    told = (7, "tenant_usage_spike", {"submissions": guards.SPIKE_TIMES * usual, "usual": usual})
    assert events(database) == [told, told]


def usual_hours(database: DatabaseFixture) -> None:
    """Some hours in which tenant 1 did what it usually does."""
    for _ in range(guards.SPIKE_MIN_HOURS):
        count(database, "submission", "1", total=guards.SPIKE_BASELINE)
        pass_time(database, "1 hour")


def test_ten_times_the_usual_submissions_are_a_spike_though_nothing_runs(
    database: DatabaseFixture,
) -> None:
    usual_hours(database)
    spikes, jobs = Spikes(database.engine, database.leader), guards.SPIKE_TIMES * 100
    admission = Admission(database.engine, FakePublisher(), 5.0)
    made = [
        Submission(new_id(), tenant, "echo", "medium", "{}")
        for tenant in (1, 2)
        for _ in range(jobs)
    ]
    key = IdempotencyKey("batch", b"digest")
    admission.admit(made[: jobs - 2], key)  # all but two
    again = [item._replace(id=new_id()) for item in made[: jobs - 2]]
    admission.admit(again, key)  # a repetition adds nothing
    admission.admit(made[jobs - 2 : jobs - 1])
    admission.admit(made[jobs:])  # another tenant's first hour
    admission.close(5.0)
    assert spikes.run_once(0.0) == 0
    admission = Admission(database.engine, FakePublisher(), 5.0)
    admission.admit(made[jobs - 1 : jobs])
    admission.close(5.0)
    assert spikes.run_once(0.0) == 1
    assert events(database)[0][2] == {"submissions": jobs, "usual": guards.SPIKE_BASELINE}


def test_an_old_backlog_that_drains_is_no_spike(database: DatabaseFixture) -> None:
    usual_hours(database)
    claim, ended = database.start(), Ending(JobStatus.SUCCEEDED)
    for _ in range(guards.SPIKE_TIMES * guards.SPIKE_BASELINE):
        add_tallies(database.engine, counts_of(claim, None, Succeeded("1"), ended, 0.1).counts)
    assert Spikes(database.engine, database.leader).run_once(0.0) == 0


def test_replayed_jobs_count_as_submitted(database: DatabaseFixture) -> None:
    usual_hours(database)
    database.execute(
        "INSERT INTO jobs (id, tenant_id, type, pool, payload, status, lease, finished_at)"
        " SELECT gen_random_uuid(), 1, 'echo', 'long', '{}', 'dead', 1, now()"
        " FROM generate_series(1, %s)",
        guards.SPIKE_TIMES * guards.SPIKE_BASELINE,
    )
    replay_dead(database.engine, 1, limit=10_000)
    assert Spikes(database.engine, database.leader).run_once(0.0) == 1


def test_a_leader_that_was_overtaken_writes_nothing(database: DatabaseFixture) -> None:
    count(database, "dependency", "claude", total=10, bad=10)
    count(database, "type", "echo", total=60, bad=60)
    count(database, "crash", "7:medium", total=9, bad=9)
    database.execute("UPDATE leaders SET epoch = epoch + 1")
    for timed in protection_roles(database.engine, database.leader, database.types):
        assert timed.role.run_once(0.0) == 0
    for table in ("circuits", "verdicts", "events"):
        assert not database.query(f"SELECT * FROM {table}")
