"""Relief: while there has been no scheduler for a minute, an API process dispatches.

One process at a time (see :mod:`models.leadership`) dispatches some jobs from each lane in turn,
and reaps and promotes as the scheduler does. Windows, caps, throttles, circuits, quotas and the
share of free accounts hold. Fair share does not, and nothing is sent to a slice: that waits for a
scheduler.

The two never act at the same time: the relief's statements lock the silent leader's row, so a
takeover waits for the statement, or the statement sees the takeover and changes nothing.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Mapping

from sqlalchemy import Connection, Engine

from app.broker.publish import Publisher, release_undelivered
from app.errors import BrokerUnavailable
from app.policy.fairshare import Grant, free_slots
from app.policy.round_robin import Lane, round_robin
from app.policy.window import window
from app.scheduler.dispatching.pool_queues import PoolQueues
from app.scheduler.dispatching.pools import Pools, PoolState
from app.scheduler.dispatching.promoter import Promoter
from app.scheduler.dispatching.quotas import QuotaPacers
from app.scheduler.maintenance.feed_generations import FeedGenerations
from app.scheduler.maintenance.reaper import Reaper
from app.scheduler.role import TimedRole, run_due
from app.tenants.caps import cap_sql
from models.job_counts import CountFolder
from models.jobs.dispatch import mark
from models.jobs.held_back import DEPENDENCIES_NOT_CLOSED, THROTTLED
from models.jobs.lane_walk import lane_walk
from models.jobs.release import release
from models.leadership import Leader, ReliefLease
from models.store.errors import StateStoreError
from models.store.roles import DatabaseRole, in_role
from models.store.session import connect, fetch
from tasks.registry import JobType
from tasks.retry.guards import THROTTLED_IN_FLIGHT

logger = logging.getLogger(__name__)

#: Pause between two checks while a scheduler leads, and between two turns while none does.
CHECK_SECONDS = 3.0
TURN_SECONDS = 0.25
#: The relief's lease is renewed, and the broker pinged, this often.
RENEW_SECONDS = 2.0
#: A new process waits first: after a restart of everything, all processes begin at once.
WAIT_SECONDS = 10.0
#: Pause of reaping or promoting after the state store did not answer.
AWAY_SECONDS = 3.0
#: Lanes of a pool that one turn reads, and jobs that it marks.
MOST_LANES = 200
BATCH = 500

#: At most as many rows as the windows allow.
READ_IN_FLIGHT = """
    SELECT job.tenant_id, count(*)::int AS jobs,
           (count(*) FILTER (WHERE job.slice = ''))::int AS shared,
           coalesce((SELECT tier = 'free' FROM tenants WHERE id = job.tenant_id), false) AS free
    FROM jobs AS job
    WHERE job.status IN ('dispatched', 'running') AND job.pool = %(pool)s
    GROUP BY job.tenant_id
"""
#: The next lanes after the given one, and their tenants.
FIND_LANES = f"""{lane_walk(after="%(tenant_id)s, %(dependency)s", most="%(most)s")}
    SELECT lane.tenant_id, lane.dependency, coalesce(tenant.tier = 'free', false) AS free,
           least({cap_sql("%(pool)s::text")}, CASE
               WHEN (lane.tenant_id, lane.pool) IN ({THROTTLED})
               THEN {THROTTLED_IN_FLIGHT} END) AS cap
    FROM lane
    LEFT JOIN tenants AS tenant ON tenant.id = lane.tenant_id
    LEFT JOIN tenant_limits AS limits
        ON limits.tenant_id = lane.tenant_id AND limits.pool = %(pool)s
    ORDER BY lane.place
"""

#: Before the first lane of a pool.
START = (-1, "")


class Relief:
    def __init__(
        self,
        engine: Engine,
        publisher: Publisher,
        name: str,
        types: Mapping[str, JobType],
        wait_seconds: float = WAIT_SECONDS,
        promote_per_second: float = 2000.0,
    ) -> None:
        """The publisher must not be shared: publishers are not for concurrent use."""
        self._engine = engine
        self._publisher = publisher
        self._lease = ReliefLease(engine, name)
        self._wait_seconds = wait_seconds
        self._began: float | None = None
        self._renew_due = 0.0
        # A leader that never leads: pacers and queues write nothing.
        bystander = Leader(engine, name)
        self._pacers = QuotaPacers(engine, bystander, types)
        self._pools = Pools(engine, PoolQueues(engine, bystander))
        promoter = Promoter(engine, self._lease, self._pools, promote_per_second)
        self._reaping = TimedRole(Reaper(engine, self._lease, types, publisher.tallies), 1.0)
        self._roles = [
            self._reaping,
            TimedRole(promoter, TURN_SECONDS),
            TimedRole(FeedGenerations(engine), RENEW_SECONDS),
        ]
        self._folder = CountFolder(engine)
        #: By pool: the lane that came last.
        self._last: dict[str, tuple[int, str]] = {}

    @property
    def active(self) -> bool:
        """Whether this process is the relief."""
        return self._lease.epoch is not None

    def run_once(self, now: float) -> int:
        """Reap, promote and dispatch what fits into the windows, if nobody else can; how many jobs
        were dispatched."""
        try:
            return self._run_once(now)
        except StateStoreError:
            self._reaping.put_off()
            raise

    def _run_once(self, now: float) -> int:
        if not self._hold_lease(now):
            return 0
        run_due(self._roles, self._lease, now, AWAY_SECONDS, self._reaping)
        if refused := release_undelivered(self._engine, self._publisher):
            self._lose_broker(refused)
            return 0
        dispatched = 0
        held = self._read_held(now)
        for pool in self._pools.read(now):
            # Not if the broker was lost meanwhile.
            if self.active and pool.queued > 0 and pool.slots > 0:
                dispatched += self._dispatch(pool, held)
        return dispatched

    def end(self) -> None:
        """Give up the lease."""
        if self.active:
            logger.warning("this process no longer dispatches in place of the scheduler")
            self._publisher.close()
        self._lease.resign()

    def _hold_lease(self, now: float) -> bool:
        """Take the relief's lease or renew it; only a process that reaches the broker may."""
        if self._began is None:
            self._began = now
        if not self._lease.is_vacant() or now < self._began + self._wait_seconds:
            self.end()
            return False
        # Also without a broker: jobs are admitted, and their counts are read.
        self._folder.run_once(now)
        if self.active and now < self._renew_due:
            return True
        was = self.active
        try:
            self._publisher.ping()
        except BrokerUnavailable as error:
            self._lose_broker(error)
            return False
        if not self._lease.take():
            return False
        self._renew_due = now + RENEW_SECONDS
        if not was:
            logger.warning(
                "no scheduler for a minute: this process dispatches, without fair share, and reaps"
                " and promotes"
            )
        return True

    def _lose_broker(self, error: BrokerUnavailable) -> None:
        """Give up the lease: another process may reach the broker."""
        if self.active:
            logger.warning("the broker is unavailable, jobs stay queued: %s", error)
        self._lease.resign()

    def _read_held(self, now: float) -> dict[str, int]:
        """Jobs of each held dependency that may be dispatched in this turn."""
        not_closed = fetch(self._engine, DEPENDENCIES_NOT_CLOSED)
        return {**self._pacers.allowances(now), **{row.dependency: 0 for row in not_closed}}

    def _dispatch(self, pool: PoolState, held: dict[str, int]) -> int:
        grants = self._choose(pool, held)
        if not grants:
            return 0
        epoch = self._lease.epoch or 0
        dispatches = mark(self._engine, pool.name, grants, epoch).dispatches
        if not dispatches:
            return 0
        for dependency, jobs in Counter(each.dependency for each in dispatches).items():
            self._pacers.spend(dependency, jobs)
            if dependency in held:
                held[dependency] -= jobs
        try:
            self._publisher.publish(dispatches, pool.workers)
        except BrokerUnavailable as error:
            release(self._engine, dispatches)
            for each in dispatches:
                self._pacers.spend(each.dependency, -1)
            self._lose_broker(error)
            return 0
        return len(dispatches)

    def _choose(self, pool: PoolState, held: dict[str, int]) -> list[Grant]:
        """Jobs to dispatch from each lane."""
        with connect(self._engine) as connection:
            active = connection.exec_driver_sql(READ_IN_FLIGHT, {"pool": pool.name}).all()
            most = window(pool.slots, pool.ended_per_second)
            most = min(BATCH, most - sum(row.shared for row in active))
            if most <= 0:
                return []
            lanes = self._next_lanes(connection, pool.name)
        most_free = free_slots(pool.slots) - sum(row.shared for row in active if row.free)
        in_flight = {row.tenant_id: row.jobs for row in active}
        given = round_robin(most, lanes, in_flight, most_free, held)
        if lanes:
            last = list(given)[-1] if sum(given.values()) >= most else lanes[-1]
            self._last[pool.name] = (last.tenant_id, last.dependency)
        by_tenant: dict[int, dict[str, int]] = {}
        for lane, jobs in given.items():
            by_tenant.setdefault(lane.tenant_id, {})[lane.dependency] = jobs
        return [Grant(tenant_id, sum(of.values()), of) for tenant_id, of in by_tenant.items()]

    def _next_lanes(self, connection: Connection, pool: str) -> list[Lane]:
        """The lanes after the last one, and then those from the beginning up to it."""
        last = self._last.get(pool, START)
        lanes = find_lanes(connection, pool, last, MOST_LANES)
        if len(lanes) < MOST_LANES and last != START:
            before = find_lanes(connection, pool, START, MOST_LANES - len(lanes))
            lanes += [lane for lane in before if (lane.tenant_id, lane.dependency) <= last]
        return lanes


def find_lanes(connection: Connection, pool: str, after: tuple[int, str], most: int) -> list[Lane]:
    """At most so many lanes of a pool, in the order of the index."""
    parameters = {"pool": pool, "tenant_id": after[0], "dependency": after[1], "most": most}
    return [Lane(**row) for row in connection.exec_driver_sql(FIND_LANES, parameters).mappings()]


def keep_relief(relief: Relief, stop: threading.Event) -> None:
    """Check and dispatch until ``stop`` is set, in the role of a scheduler."""
    with in_role(DatabaseRole.SCHEDULER):
        _keep(relief, stop)


def _keep(relief: Relief, stop: threading.Event) -> None:
    while not stop.wait(TURN_SECONDS if relief.active else CHECK_SECONDS):
        try:
            relief.run_once(time.monotonic())
        except StateStoreError as error:
            logger.debug("relief: %s", error)
        except Exception:  # the thread must be there when it is needed
            logger.exception("dispatching without a scheduler failed")
    try:
        relief.end()
    except StateStoreError as error:
        logger.debug("relief: %s", error)
