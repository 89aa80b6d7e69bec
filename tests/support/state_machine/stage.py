"""The stage: the model's memory, and the comparison with the tables after every step."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, ClassVar

import pytest
from hypothesis.stateful import RuleBasedStateMachine, invariant

from models.blobs import BlobStore
from models.jobs.claim import Claim, JobRef
from models.jobs.offer import GivenJob, channel_of, told_job
from models.jobs.states import LEGAL_MOVES, JobStatus
from tests.support.database_fixture import DatabaseFixture
from tests.support.emptied import TRUNCATE
from tests.support.state_machine.clock import Clock
from tests.support.state_machine.twin import Twin

TENANTS = (1, 2)

READ_ROWS = """
    SELECT job.*, job::text AS whole, cancel_requested_at IS NOT NULL AS cancel_requested,
           ended_xid IS NOT NULL AS ended, application.score::float8 AS score,
           CASE WHEN saved.job_id IS NOT NULL
                THEN json_build_array(saved.lease, saved.state, saved.blob) END AS checkpoint,
           (SELECT json_object_agg(lease, json_build_array(worker, status, error_class))
            FROM attempts WHERE job_id = job.id) AS attempts
    FROM jobs AS job LEFT JOIN checkpoints AS saved ON saved.job_id = job.id
    LEFT JOIN applications AS application ON application.id = job.id
"""
READ_USAGE = """
    SELECT tenant_id, sum(jobs)::int, sum(runs)::int, sum(slot_seconds)::float8,
           sum(tokens_in)::int, sum(tokens_out)::int
    FROM usage GROUP BY tenant_id
"""
READ_COUNTS = f"""
    SELECT tenant_id, pool, {", ".join(f"sum({status})::int" for status in JobStatus)}
    FROM job_counts GROUP BY tenant_id, pool
"""
READ_KEYS = "SELECT tenant_id, key, digest, job_ids::text[], created_at FROM idempotency_keys"


@dataclass(slots=True)
class Hands:
    """What one worker process remembers."""

    held: dict[JobRef, Claim] = field(default_factory=dict)
    #: Everything that it ever held.
    granted: dict[JobRef, Claim] = field(default_factory=dict)
    #: Asked for without an answer.
    unanswered: set[JobRef] = field(default_factory=set)


class Stage(RuleBasedStateMachine):
    """A database, its clock, and what the model thinks of both."""

    def announce(self, name: str, renewed_at: datetime | None = None) -> None:
        """A worker reports."""
        raise NotImplementedError

    def grant(self, pool: str, credit: int) -> None:
        """The scheduler opens an express lane."""
        raise NotImplementedError

    def offer_to_run(self, name: str, pools: list[str], jobs: int) -> None:
        """A worker that is alive offers to run jobs."""
        raise NotImplementedError

    def be_given(self, name: str, job: GivenJob, *, heard: bool) -> None:
        """A worker is given a new row."""
        raise NotImplementedError

    #: Moves between states, over all examples.
    moves: ClassVar[Counter[tuple[JobStatus, JobStatus]]] = Counter()
    #: Jobs that were given to a worker, by whether it heard of them.
    given: ClassVar[Counter[bool]] = Counter()

    def __init__(self, database: DatabaseFixture, clock: Clock, blobs: BlobStore) -> None:
        super().__init__()
        self.blobs = blobs
        self.database = database
        self.engine = database.engine
        self.clock = clock
        self.twins: dict[str, Twin] = {}
        #: Request, jobs and time of the first use of each tenant's idempotency keys.
        self.keys: dict[tuple[int, str], tuple[bytes, tuple[str, ...], datetime]] = {}
        #: Every message that was ever sent; none is ever forgotten.
        self.sent: list[JobRef] = []
        #: Every claim that was ever granted.
        self.claims: dict[JobRef, Claim] = {}
        self.workers = {name: Hands() for name in ("w1", "w2", "w3")}
        #: Credit of the express lanes, and when it was granted.
        self.lanes: dict[str, tuple[int, datetime]] = {}
        #: Workers that offer to run jobs, and how many, by pool; and when each worker was heard.
        self.offers: dict[str, list[tuple[str, int]]] = defaultdict(list)
        self.heard: dict[str, datetime] = {}
        self.circuits: dict[str, str] = {}
        self.throttled: set[tuple[int, str]] = set()
        #: Jobs, runs, seconds and tokens (in, out) on each tenant's bill.
        self.bills: dict[int, list[float]] = defaultdict(lambda: [0, 0, 0.0, 0, 0])
        #: Lease and state of each job after the step before.
        self.before: dict[str, tuple[int, JobStatus]] = {}
        #: Twins of rows that were removed: they stay counted and billed.
        self.retired: list[Twin] = []
        database.execute(TRUNCATE)
        database.leader.run_once(0.0)
        self._ear = self.engine.connect()
        self._ear.detach()
        self._channels = {channel_of(name): name for name in self.workers}
        for channel in self._channels:
            self._ear.exec_driver_sql(f"LISTEN {channel}")

    def teardown(self) -> None:
        self._ear.close()

    def told(self) -> list[tuple[str, GivenJob]]:
        """What workers were told since it was asked last."""
        self._ear.exec_driver_sql("SELECT 1")  # after this, all that was sent before is there
        raw: Any = self._ear.connection.dbapi_connection
        raw.poll()
        told = [(self._channels[each.channel], told_job(each.payload)) for each in raw.notifies]
        raw.notifies.clear()
        return told

    @property
    def now(self) -> datetime:
        return self.clock.now

    def pass_time(self, by: timedelta) -> None:
        """Let time pass; the leader goes on leading."""
        self.clock.move(by)
        self.database.leader.run_once(0.0)

    def twins_in(self, *statuses: JobStatus) -> list[Twin]:
        return [twin for twin in self.twins.values() if twin.status in statuses]

    def holds(self, ref: JobRef, status: JobStatus) -> bool:
        """Whether ``ref`` names the lease of a job in this state."""
        twin = self.twins.get(ref.id)
        return twin is not None and twin.lease == ref.lease and twin.status is status

    def charge(
        self, twin: Twin, seconds: float, tokens: tuple[int, int], *, ended: bool = True
    ) -> None:
        """A run of the job goes on the bill; it counts if it has ended and not only moved on."""
        added = (not twin.live, ended, seconds, *tokens)
        self.bills[twin.tenant_id] = [
            sum(pair) for pair in zip(self.bills[twin.tenant_id], added, strict=True)
        ]

    @invariant()
    def agrees_with_the_tables(self) -> None:
        self.every_row_is_as_its_twin()
        self.every_count_is_a_recount()
        self.every_bill_is_the_sum_of_its_jobs()
        self.every_key_stands_for_its_first_request()

    def every_row_is_as_its_twin(self) -> None:
        rows = {str(row.id): row for row in self.database.query(READ_ROWS)}
        assert rows.keys() == self.twins.keys(), "a job was lost, or one came from nowhere"
        for job_id, row in rows.items():
            twin = self.twins[job_id]
            self.compare(twin, row)
            lease, status = self.before.get(job_id, (0, twin.status))
            assert row.lease >= lease, "a lease fell"
            assert status is twin.status or twin.status in LEGAL_MOVES[status]
            self.moves[status, twin.status] += 1
            self.before[job_id] = (row.lease, twin.status)

    def compare(self, twin: Twin, row: Any) -> None:
        facts = twin.facts()
        found = {name: getattr(row, name) for name in facts}
        found["attempts"] = {
            int(lease): tuple(record) for lease, record in (row.attempts or {}).items()
        }
        found["checkpoint"] = row.checkpoint and tuple(row.checkpoint)
        assert found == facts, differences(found, facts)
        if twin.status is JobStatus.SCHEDULED:
            if twin.due is not None:
                earliest, latest = twin.due
                moment = timedelta(microseconds=1)
                assert earliest - moment <= row.execute_at <= latest + moment
                twin.execute_at, twin.due = row.execute_at, None
            assert row.execute_at == twin.execute_at
        if twin.type == "score_application":
            assert (row.score is not None) == (twin.status is JobStatus.SUCCEEDED)
        if not twin.live:
            twin.ended_row = twin.ended_row or row.whole
            assert row.whole == twin.ended_row, "an ended job was changed"

    def every_count_is_a_recount(self) -> None:
        expected: Counter[tuple[int, str, JobStatus]] = Counter()
        for twin in (*self.twins.values(), *self.retired):
            for tenant_id in (0, twin.tenant_id):
                expected[tenant_id, twin.kind.pool, twin.status] += 1
                # What was replayed or discarded stays among the dead: counts of ends never fall.
                deaths = twin.replays + twin.discarded
                expected[tenant_id, twin.kind.pool, JobStatus.DEAD] += deaths
        found: dict[tuple[int, str, JobStatus], int] = {
            (row[0], row[1], status): jobs
            for row in map(tuple, self.database.query(READ_COUNTS))
            for status, jobs in zip(JobStatus, row[2:], strict=True)
            if jobs
        }
        assert found == +expected

    def every_bill_is_the_sum_of_its_jobs(self) -> None:
        found = {row[0]: list(row[1:]) for row in map(tuple, self.database.query(READ_USAGE))}
        assert found == {tenant: pytest.approx(bill) for tenant, bill in self.bills.items()}
        for tenant_id in TENANTS:
            twins = (*self.twins.values(), *self.retired)
            seconds = sum(twin.slot_seconds for twin in twins if twin.tenant_id == tenant_id)
            paid = self.bills[tenant_id][2] if tenant_id in self.bills else 0
            assert paid == pytest.approx(seconds)

    def every_key_stands_for_its_first_request(self) -> None:
        rows: Sequence[Any] = self.database.query(READ_KEYS)
        found = {(row[0], row[1]): (bytes(row[2]), tuple(row[3]), row[4]) for row in rows}
        assert found == self.keys


def differences(found: dict[str, Any], expected: dict[str, Any]) -> str:
    """What the row says and should say."""
    names: Iterable[str] = (name for name in expected if found[name] != expected[name])
    return "; ".join(f"{name} is {found[name]!r}, not {expected[name]!r}" for name in names)
