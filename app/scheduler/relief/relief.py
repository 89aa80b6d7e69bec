"""Relief: while no scheduler has been heard of for a minute, the API keeps the line moving.

One API process at a time (see :mod:`models.leadership`) marks and publishes what the
windows have room for: a few jobs from each lane, in turn. Caps, throttles, circuits, quotas
and the share of free accounts hold. Fair share does not, nothing due is promoted, nothing lost
is reaped, nothing failed is retried and nothing goes to a slice: all of that waits for a
scheduler. ``/readyz`` and ``fairline_express_degraded`` say so, and so does the log.

A scheduler that comes back and a relief never act at the same time. The relief's statement
locks the leader's row while it is silent: a takeover waits for the statement, or the
statement sees the takeover and marks nothing. What the relief has marked by then is in flight
like anything else; its lease numbers fence it from what the scheduler makes of it later.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy import Connection, Engine

from app.broker.publish import Publisher
from app.errors import BrokerUnavailable
from app.policy.fairshare import Grant, free_slots
from app.policy.ration import Lane, ration
from app.policy.window import smoothed_rate, window
from app.scheduler.dispatching.quotas import Taps
from models.jobs.dispatch import MARK_LANES, mark
from models.jobs.held_back import DEPENDENCIES_NOT_CLOSED, THROTTLED
from models.jobs.lane_walk import lane_walk
from models.jobs.release import release
from models.leadership import SILENT, STILL_RELIEF, Leader, ReliefLease
from models.pools import POOLS
from models.presence import SERVING
from models.store.errors import StateStoreError
from models.store.session import connect
from tasks.registry import JobType
from tasks.retry import throttle

logger = logging.getLogger(__name__)

#: Pause between two looks while a scheduler leads, and between two turns while none does.
LOOK_SECONDS = 1.0
TURN_SECONDS = 0.25
#: The place is kept, and the broker looked for, this often.
KEEP_SECONDS = 2.0
#: A process that has just begun listens first: after a night off, all begin at once.
LISTEN_SECONDS = 10.0
#: Lanes of a pool that one turn looks at, and jobs that it marks.
MOST_LANES = 200
BATCH = 500

#: See MARK for the rest of it. The lock is what a takeover waits for.
RELIEVE = MARK_LANES.format(
    condition=f"""EXISTS (
                SELECT 1 FROM leaders AS leader WHERE {SILENT} FOR SHARE)
              AND {STILL_RELIEF}"""
)
READ_POOLS = f"""
    SELECT pool.name AS pool, coalesce(counts.queued, 0)::int AS queued,
           coalesce(counts.ended, 0)::bigint AS ended, coalesce(alive.slots, 0)::int AS slots,
           coalesce(alive.workers, 0)::int AS workers
    FROM unnest(%(pools)s::text[]) AS pool (name)
    LEFT JOIN (
        SELECT pool, sum(queued) AS queued, sum(succeeded + dead) AS ended
        FROM job_counts WHERE tenant_id = 0 GROUP BY pool
    ) AS counts ON counts.pool = pool.name
    LEFT JOIN (
        SELECT unnest(pools) AS pool, sum(slots) AS slots, count(*) AS workers
        FROM processes
        WHERE {SERVING}
        GROUP BY 1
    ) AS alive ON alive.pool = pool.name
"""
#: No more rows than the windows are wide.
READ_IN_FLIGHT = """
    SELECT job.tenant_id, count(*)::int AS jobs,
           (count(*) FILTER (WHERE job.slice = ''))::int AS shared,
           coalesce((SELECT tier = 'free' FROM tenants WHERE id = job.tenant_id), false) AS free
    FROM jobs AS job
    WHERE job.status IN ('dispatched', 'running') AND job.pool = %(pool)s
    GROUP BY job.tenant_id
"""
#: The next lanes after the given one, and who they belong to.
FIND_LANES = f"""{lane_walk(after="%(tenant_id)s, %(dependency)s", most="%(most)s")}
    SELECT lane.tenant_id, lane.dependency, coalesce(tenant.tier = 'free', false) AS free,
           least(limits.in_flight, CASE
               WHEN (lane.tenant_id, lane.pool) IN ({THROTTLED})
               THEN {throttle.IN_FLIGHT} END) AS cap
    FROM lane
    LEFT JOIN tenants AS tenant ON tenant.id = lane.tenant_id
    LEFT JOIN tenant_limits AS limits
        ON limits.tenant_id = lane.tenant_id AND limits.pool = %(pool)s
    ORDER BY lane.place
"""

#: Before the first lane of a pool.
START = (-1, "")


@dataclass(frozen=True, slots=True)
class Need:
    """A pool that could take more."""

    pool: str
    room: int
    slots: int
    workers: int


class Relief:
    """What one API process does about a silent scheduler."""

    def __init__(
        self,
        engine: Engine,
        publisher: Publisher,
        name: str,
        types: Mapping[str, JobType],
        listen_seconds: float = LISTEN_SECONDS,
    ) -> None:
        """The publisher is the relief's own: publishers are not for concurrent use."""
        self._engine = engine
        self._publisher = publisher
        self._place = ReliefLease(engine, name)
        self._listen_seconds = listen_seconds
        self._began: float | None = None
        self._keep_due = 0.0
        #: Of each pool: rate of endings, how many there were, when that was.
        self._rates: dict[str, tuple[float, int, float]] = {}
        #: Jobs that quotas let through. Written by a leader who never leads: not at all.
        self._taps = Taps(engine, Leader(engine, name), types)
        #: Of each pool: the lane that came last.
        self._last: dict[str, tuple[int, str]] = {}

    @property
    def at_work(self) -> bool:
        """Whether this process is the relief."""
        return self._place.epoch is not None

    def run_once(self, now: float) -> int:
        """Dispatch what the windows have room for, if nobody else can; how many."""
        if not self._stand_in(now):
            return 0
        dispatched = 0
        held = self._read_held(now)
        for need in self._read_needs(now):
            if self.at_work:  # not if the broker was lost on the way
                dispatched += self._dispatch(need, held)
        return dispatched

    def end(self) -> None:
        """Leave the place to whoever needs it."""
        if self.at_work:
            logger.warning("this process stands in for the scheduler no longer")
            self._publisher.close()
        self._place.resign()
        self._rates.clear()

    def _stand_in(self, now: float) -> bool:
        """Take the relief's place or keep it; only who reaches the broker can use it."""
        if self._began is None:
            self._began = now
        vacant = self._place.is_vacant()
        if not vacant or now < self._began + self._listen_seconds:
            self.end()
            return False
        if self.at_work and now < self._keep_due:
            return True
        was = self.at_work
        try:
            self._publisher.ping()
        except BrokerUnavailable as error:
            self._lose_broker(error)
            return False
        if not self._place.take():
            return False
        self._keep_due = now + KEEP_SECONDS
        if not was:
            logger.warning(
                "no scheduler for a minute: this process dispatches, without fair share; nothing"
                " is promoted, reaped or retried"
            )
        return True

    def _lose_broker(self, error: BrokerUnavailable) -> None:
        """Another process may reach it."""
        if self.at_work:
            logger.warning("the broker is away, jobs wait in the line: %s", error)
        self._place.resign()

    def _read_needs(self, now: float) -> list[Need]:
        with connect(self._engine) as connection:
            rows = connection.exec_driver_sql(READ_POOLS, {"pools": list(POOLS)}).all()
        needs = []
        for row in rows:
            rate, before, at = self._rates.get(row.pool, (0.0, row.ended, now))
            if now - at >= 1.0 or row.pool not in self._rates:
                rate = smoothed_rate(rate, row.ended - before, now - at)
                self._rates[row.pool] = (rate, row.ended, now)
            if row.queued > 0 and row.slots > 0:
                needs.append(Need(row.pool, window(row.slots, rate), row.slots, row.workers))
        return needs

    def _read_held(self, now: float) -> dict[str, int]:
        """Jobs that each held dependency may give in this turn."""
        with connect(self._engine) as connection:
            not_closed = connection.exec_driver_sql(DEPENDENCIES_NOT_CLOSED).scalars().all()
        return {**self._taps.rooms(now), **dict.fromkeys(not_closed, 0)}

    def _dispatch(self, need: Need, held: dict[str, int]) -> int:
        grants = self._choose(need, held)
        if not grants:
            return 0
        epoch = self._place.epoch or 0
        dispatches = mark(self._engine, need.pool, grants, epoch, statement=RELIEVE).dispatches
        if not dispatches:
            return 0
        for dependency, jobs in Counter(each.dependency for each in dispatches).items():
            self._taps.spend(dependency, jobs)
            if dependency in held:
                held[dependency] -= jobs
        try:
            self._publisher.publish(dispatches, need.workers)
        except BrokerUnavailable as error:
            release(self._engine, dispatches)
            for each in dispatches:
                self._taps.give_back(each.dependency, 1)
            self._lose_broker(error)
            return 0
        return len(dispatches)

    def _choose(self, need: Need, held: dict[str, int]) -> list[Grant]:
        """What each lane is to give."""
        with connect(self._engine) as connection:
            flying = connection.exec_driver_sql(READ_IN_FLIGHT, {"pool": need.pool}).all()
            room = min(BATCH, need.room - sum(row.shared for row in flying))
            if room <= 0:
                return []
            lanes = self._next_lanes(connection, need.pool)
        free_room = free_slots(need.slots) - sum(row.shared for row in flying if row.free)
        in_flight = {row.tenant_id: row.jobs for row in flying}
        rations = ration(room, lanes, in_flight, free_room, held)
        spent = sum(each.jobs for each in rations) >= room
        if spent:
            self._last[need.pool] = (rations[-1].tenant_id, rations[-1].dependency)
        elif lanes:
            self._last[need.pool] = (lanes[-1].tenant_id, lanes[-1].dependency)
        by_tenant: dict[int, dict[str, int]] = {}
        for each in rations:
            by_tenant.setdefault(each.tenant_id, {})[each.dependency] = each.jobs
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
    asked = {"pool": pool, "tenant_id": after[0], "dependency": after[1], "most": most}
    rows = connection.exec_driver_sql(FIND_LANES, asked)
    return [Lane(row.tenant_id, row.dependency, free=row.free, cap=row.cap) for row in rows]


def keep_relief(relief: Relief, stop: threading.Event) -> None:
    """Look and act until ``stop`` is set."""
    while not stop.wait(TURN_SECONDS if relief.at_work else LOOK_SECONDS):
        try:
            relief.run_once(time.monotonic())
        except StateStoreError as error:
            logger.debug("relief: %s", error)
        except Exception:  # the thread must be there when it is needed
            logger.exception("the relief failed")
    try:
        relief.end()
    except StateStoreError as error:
        logger.debug("relief: %s", error)
