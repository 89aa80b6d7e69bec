"""A half-open circuit: who gives the probes, and what becomes of it. Dispatcher and judge."""

from __future__ import annotations

import pytest

from app.reads.estimates import Estimates
from app.scheduler.dispatching.reconciler import ShareReconciler
from app.scheduler.protection.circuits import Circuits
from models.jobs.claim import JobRef
from models.jobs.settle import Ending
from models.jobs.states import FailureClass, JobStatus
from models.presence import Presence, announce
from models.tallies import Count, TallyKind, add_tallies, tenant_name
from tasks.retry.circuit import MOST_PROBES, PROBES
from tests.support.database_fixture import DatabaseFixture, FakePublisher
from tests.support.emptied import emptied

#: The tenant whose calls are rejected at once, and two whose calls take a while.
BAD, ADA, BOB = 1, 2, 3
FAILED = Ending(
    JobStatus.SCHEDULED,
    deferrals=1,
    delay_seconds=3600.0,
    error_class=FailureClass.DEPENDENCY,
    error_message="no",
)
DONE = Ending(JobStatus.SUCCEEDED, tries_spent=1, result="{}")


class HalfOpen:
    """A circuit that has just become half open, with jobs of several tenants behind it."""

    def __init__(self, database: DatabaseFixture, tenants: tuple[int, ...]) -> None:
        self.database = database
        self.circuits = Circuits(database.engine, database.leader, ["claude"])
        self.broker = FakePublisher()
        pools = database.pools()
        self.dispatcher = database.dispatcher(self.broker, pools)
        estimates = Estimates(database.engine)
        self.reconciler = ShareReconciler(database.engine, database.leader, pools.queues, estimates)
        self.now = 0.0
        #: Calls of others, not answered yet.
        self.calling: list[tuple[int, JobRef]] = []
        self.rejected = 0
        for tenant_id in tenants:
            for _ in range(40):
                database.submit(dependency="claude", tenant_id=tenant_id)
        database.execute(
            "INSERT INTO circuits VALUES ('claude', 'half_open', now() - interval '5 s')"
        )

    @property
    def state(self) -> str:
        return str(self.database.query("SELECT state FROM circuits")[0].state)

    def turn(self) -> None:
        """One turn of the scheduler; calls of the bad tenant are rejected within it."""
        self.now += 1.0
        self.database.leader.run_once(self.now)
        self.broker.sent.clear()
        self.dispatcher.run_once(self.now)
        for each in self.broker.sent:
            ref = JobRef(each.id, each.lease)
            self.database.claim(ref)
            if each.tenant_id == BAD:
                self.answer(BAD, ref, FAILED)
                self.rejected += 1
            else:
                self.calling.append((each.tenant_id, ref))
        self.reconciler.run_once(self.now)
        self.circuits.run_once(self.now)

    def answer(self, tenant_id: int, ref: JobRef, ending: Ending) -> None:
        """A call ends: settled, and counted as workers do."""
        assert self.database.settle(ref, ending, 0.01 if tenant_id == BAD else 10.0)
        bad = int(ending is FAILED)
        counts: list[Count] = [((TallyKind.DEPENDENCY, "claude"), (1, bad))]
        if bad:
            kind = TallyKind.TENANT_DEPENDENCY
            counts.append(((kind, tenant_name("claude", tenant_id)), (1, bad)))
        add_tallies(self.database.engine, counts)

    def answer_all(self, ending: Ending) -> None:
        while self.calling:
            self.answer(*self.calling.pop(), ending)


@pytest.fixture
def database(api_database: DatabaseFixture) -> DatabaseFixture:
    database = emptied(api_database)
    announce(database.engine, Presence("w1", "worker", ["medium"], slots=10))
    database.keep_present()
    return database


def test_fast_failures_of_one_tenant_do_not_hold_it_open(database: DatabaseFixture) -> None:
    circuit = HalfOpen(database, (BAD, ADA))
    for _ in range(10):
        circuit.turn()
    assert circuit.state == "half_open", "the others' probes are in flight"
    assert [tenant_id for tenant_id, _ in circuit.calling] == [ADA] * PROBES
    assert PROBES <= circuit.rejected <= MOST_PROBES
    circuit.answer_all(DONE)
    circuit.turn()
    assert circuit.state == "closed"


def test_a_probe_that_has_ended_and_is_not_counted_yet_is_waited_for(
    database: DatabaseFixture,
) -> None:
    circuit = HalfOpen(database, (BAD, ADA))
    for _ in range(5):
        circuit.turn()
    for _, ref in circuit.calling:
        database.settle(ref, DONE, 10.0)
    database.execute("UPDATE jobs SET status = 'cancelled' WHERE status = 'queued'")
    assert circuit.circuits.run_once(circuit.now) == 0
    assert circuit.state == "half_open"


def test_bad_probes_of_the_only_tenant_open_it(database: DatabaseFixture) -> None:
    circuit = HalfOpen(database, (BAD,))
    circuit.turn()
    assert (circuit.state, circuit.rejected) == ("open", PROBES)


def test_bad_probes_of_two_tenants_open_it_while_a_third_one_probes(
    database: DatabaseFixture,
) -> None:
    circuit = HalfOpen(database, (BAD, ADA, BOB))
    circuit.turn()
    assert circuit.state == "half_open"
    assert sorted(tenant_id for tenant_id, _ in circuit.calling) == [ADA, BOB]
    circuit.answer(*circuit.calling.pop(), FAILED)
    circuit.circuits.run_once(circuit.now)
    assert circuit.state == "open"
