"""A database for tests: adds jobs to the table and acts on them as the processes do."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Engine, Row

from app.broker.publish import NOTHING_KNOWN, Publisher
from app.policy.fairshare import Grant
from app.policy.lane_heads import OPEN, LaneHeads
from app.reads.estimates import Estimates
from app.scheduler.dispatching.dispatcher import Dispatcher
from app.scheduler.dispatching.pool_queues import SWEEP, PoolQueues
from app.scheduler.dispatching.pools import Pools
from app.scheduler.dispatching.quotas import QuotaPacers
from loadtest.chaos.facts import MISCOUNTED
from models.jobs.admit import admit_group
from models.jobs.claim import Claim, JobRef, claim_group
from models.jobs.dispatch import Dispatch, mark
from models.jobs.heartbeat import note_begun
from models.jobs.ids import new_id
from models.jobs.settle import Ending, Settlement, settle_group, settle_statement
from models.jobs.submission import Submission, SubmissionGroup
from models.leadership import Leader
from models.store.session import execute
from tasks.registry import JobType, load_types, projections_of

WAITING = """
    SELECT count(*) AS statements FROM pg_stat_activity
    WHERE datname = current_database() AND wait_event_type = 'Lock'
"""
EXTEND = """
    UPDATE leaders SET expires_at = now() + interval '1 minute'
    WHERE role = 'scheduler' AND holder = %(holder)s AND epoch = %(epoch)s
"""


class PatientLeader(Leader):
    """A leader with a lease of a minute: a test seldom renews it, and takes longer than a usual
    lease on a busy machine."""

    def run_once(self, now: float) -> int:
        moved = super().run_once(now)
        if self.epoch is not None:
            execute(self._engine, EXTEND, {"holder": self._name, "epoch": self.epoch})
        return moved


class DatabaseFixture:
    """One test's jobs, with a leader in place."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.leader = PatientLeader(engine, "leader")
        self.leader.run_once(0.0)
        self.types: Mapping[str, JobType] = load_types()

    def submit(self, *, express: bool = False, **fields: Any) -> str:
        """Admit one job; its id."""
        values: dict[str, Any] = {
            "id": new_id(),
            "tenant_id": 1,
            "type": "echo",
            "pool": "medium",
            "payload": "{}",
            **fields,
        }
        admit_group(self.engine, [SubmissionGroup((Submission(**values),))], express)
        return str(values["id"])

    def submit_application(self, candidate: str = "Ada", **fields: Any) -> str:
        """Admit one application."""
        work = {"candidate": candidate, "role": "general", "payload": {}}
        return self.submit(
            type="score_application",
            payload=json.dumps(work),
            candidate=candidate,
            role=fields.pop("role", "general"),
            **fields,
        )

    def dispatch(
        self,
        pool: str = "medium",
        room: int = 100,
        lanes: Mapping[str, int] | None = None,
        rooms: Mapping[int, int] | None = None,
    ) -> list[Dispatch]:
        """Mark what is in line, at most ``room`` of each tenant.

        ``lanes`` and ``rooms`` say otherwise for a dependency or a tenant.
        """
        found: dict[int, dict[str, LaneHeads]] = {}
        swept = SWEEP.replace("%(pools)s", f"'{{{pool}}}'").replace("%(after)s", "'{-1}'")
        for row in self.query(swept):
            lane = found.setdefault(row.tenant_id, {}).setdefault(row.dependency, LaneHeads())
            lane.add(row.priority, row.id, OPEN)
        grants = []
        for tenant_id, names in found.items():
            jobs = (rooms or {}).get(tenant_id, room)
            limits = {name: min(jobs, (lanes or {}).get(name, jobs)) for name in names}
            grants.append(Grant(tenant_id, jobs, limits))
        heads = {
            (tenant_id, lane): of for tenant_id in found for lane, of in found[tenant_id].items()
        }
        return mark(self.engine, pool, grants, self.leader.epoch or 0, heads=heads).dispatches

    def pools(self) -> Pools:
        """The scheduler's view, with queues that were not refreshed yet."""
        return Pools(self.engine, PoolQueues(self.engine, self.leader))

    def dispatcher(self, broker: Publisher, pools: Pools | None = None) -> Dispatcher:
        """A dispatcher, and if given, on the queues of ``pools``."""
        pools = pools or self.pools()
        pacers = QuotaPacers(self.engine, self.leader, self.types)
        estimates = Estimates(self.engine)
        return Dispatcher(self.engine, self.leader, broker, pools, estimates, pacers)

    def claim(self, *refs: JobRef, worker: str = "w1") -> tuple[Claim, ...]:
        """Claim as one message; runs that have to begin on record have."""
        claims = claim_group(self.engine, worker, [refs])[0]
        note_begun(self.engine, worker, [(claim.ref, 0.0) for claim in claims if claim.crashes])
        return claims

    def start(self, **fields: Any) -> Claim:
        """Submit, dispatch and claim one job."""
        job_id = self.submit(**fields)
        (dispatch,) = [d for d in self.dispatch(fields.get("pool", "medium")) if d.id == job_id]
        (claim,) = self.claim(JobRef(dispatch.id, dispatch.lease))
        return claim

    def settle(
        self, ref: JobRef, ending: Ending, run_seconds: float = 0.1, worker: str = "w1"
    ) -> bool:
        """Write an ending; whether it was taken."""
        statement = settle_statement(projections_of(self.types.values()))
        group = [Settlement(ref, ending, run_seconds)]
        return settle_group(self.engine, statement, worker, group)[0]

    def job(self, job_id: str) -> Row[Any]:
        """The row."""
        return self.query("SELECT * FROM jobs WHERE id = %s", job_id)[0]

    def query(self, sql: str, *parameters: Any) -> Sequence[Row[Any]]:
        """Rows of a statement."""
        with self.engine.connect() as connection:
            return connection.exec_driver_sql(sql, parameters).all()

    def execute(self, sql: str, *parameters: Any) -> None:
        """A statement without rows."""
        with self.engine.connect() as connection:
            connection.exec_driver_sql(sql, parameters)

    def expire_leases(self) -> None:
        """As if the lease time of everything in flight had passed."""
        self.execute(
            "UPDATE jobs SET lease_expires_at = now() - interval '1 second'"
            " WHERE lease_expires_at IS NOT NULL"
        )

    def keep_present(self) -> None:
        """Nobody reports for the processes that a test has announced: for a minute they count as
        alive all the same, however busy the machine is."""
        self.execute("UPDATE processes SET heartbeat_at = now() + interval '1 minute'")

    def wait_until_waiting(self, statements: int = 1) -> None:
        """Until so many statements are held up by somebody's lock."""
        deadline = time.monotonic() + 30
        while self.query(WAITING)[0].statements < statements:
            assert time.monotonic() < deadline, "nobody waits for a lock"

    def miscounted(self) -> Sequence[Row[Any]]:
        """Counters of live states that differ from a recount; none if all is well."""
        return self.query(MISCOUNTED)


class FakePublisher(Publisher):
    """A broker that keeps what it is given, or is away."""

    def __init__(self) -> None:
        self.sent: list[Dispatch] = []
        self.away = False

    def publish(
        self,
        dispatches: Sequence[Dispatch],
        workers: int = 1,
        lengths: Mapping[str, float] = NOTHING_KNOWN,
        slots: int = 0,
    ) -> bool:
        self.ping()
        self.sent.extend(dispatches)
        return True

    def undelivered(self) -> list[Dispatch]:
        return []

    def ping(self) -> None:
        from app.errors import BrokerUnavailable

        if self.away:
            raise BrokerUnavailable
