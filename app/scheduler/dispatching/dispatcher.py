"""Dispatcher: sends queued jobs of each pool to the broker by fair share, within the window.

Each turn the pure :class:`app.policy.fairshare.FairQueue` grants jobs to tenants, one statement
marks them, and their estimated cost is charged (corrected later by :mod:`.reconciler`). It also
grants the express lane: while nothing is queued in a pool but what is held back (see
:mod:`.held_back`), the API may dispatch in the request, up to a credit of free slots.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Mapping, Sequence

from sqlalchemy import Engine

from app.broker.publish import Publisher, release_undelivered
from app.errors import BrokerUnavailable
from app.policy.fairshare import Grant, fewest_first, free_slots, note_turn
from app.policy.window import (
    REFILL_SECONDS,
    expected_rate,
    refill_seconds,
    room_to_fill,
    seconds_to_room,
    still_in_flight,
    window,
)
from app.reads.estimates import Estimates
from app.scheduler.dispatching.express_lanes import ExpressLanes
from app.scheduler.dispatching.pool_queues import PoolQueue
from app.scheduler.dispatching.pools import Pools, PoolState, Slice
from app.scheduler.dispatching.quotas import QuotaPacers
from app.scheduler.role import RoleQueries
from models.jobs.dispatch import Dispatch, mark
from models.jobs.release import release
from models.leadership import Leader
from models.store.errors import StateStoreError
from tasks.retry.circuit import MOST_PROBES

logger = logging.getLogger(__name__)

#: Jobs marked and published in one go.
BATCH = 500
#: Slot-seconds of jobs that a tenant may get in a row: ten jobs of one tenant cost less to dispatch
#: than ten jobs of ten, and a twentieth of a second goes unnoticed.
QUANTUM_SECONDS = 0.05
#: What a tenant with fewer jobs than granted leaves over goes to others, in so many passes.
PASSES = 3
#: Pause between two attempts to reach the broker while it is unavailable, and otherwise.
BROKER_RETRY_SECONDS = 0.5
BROKER_PING_SECONDS = 2.0
#: All lanes are swept if the counts have said for so long that jobs wait, but no lane has any.
SWEEP_PAUSE_SECONDS = 1.0
#: While there is no room, the next look is when there will be, and so late at most.
MOST_PAUSE_SECONDS = 0.1
#: While no pool has a job, a turn is a look at their counts, except once in so many seconds.
REST_SECONDS = 10.0


class Dispatcher(RoleQueries):
    _leader: Leader

    def __init__(
        self,
        engine: Engine,
        leader: Leader,
        publisher: Publisher,
        pools: Pools,
        estimates: Estimates,
        pacers: QuotaPacers,
    ) -> None:
        super().__init__(engine, leader)
        self._publisher = publisher
        self._pools = pools
        self._queues = pools.queues
        self._estimates = estimates
        self._pacers = pacers
        self._lanes = ExpressLanes(engine, leader)
        self._broker_due = 0.0
        #: By pool: what the jobs that were sent last take on average; None if that is not known.
        self._lengths: dict[str, float | None] = {}
        #: No pool has room before.
        self._room_at = 0.0
        self._broker_away = False
        #: A whole turn is taken by then.
        self._whole_due = 0.0
        #: Nothing was queued; the pools are counted by then, or if a job arrives.
        self._count_due = 0.0
        #: How long the next turn can wait by what the last one found: 0 if jobs were queued or that
        #: is not known, infinite if none was in flight either.
        self.look_within = 0.0

    def run_once(self, now: float) -> int:
        """Dispatch what fits into the windows; how many jobs."""
        if now < self._room_at or self._rests(now):
            return 0
        before, self.look_within = self.look_within, 0.0
        # Also while the broker is unavailable: arrivals would pile up.
        found = self._queues.refresh(now, self._pools.holds(now).tenants)
        if not self.reach_broker(now):
            return 0
        if now < self._count_due and not found:
            self.look_within = before
            return 0
        dispatched, pauses = 0, [MOST_PAUSE_SECONDS]
        within = math.inf
        for pool in self._pools.read(now):
            queue = self._queues[pool.name]
            served = 0
            if pool.queued > 0 or queue.swept:
                within = 0.0
                served, pause = self._serve(pool, now)
                dispatched += served
                pauses.append(pause)
                queue.swept = queue.swept and queue.fair.lanes > 0
            else:
                # Counted after the arrivals were taken: later jobs have arrivals too.
                queue.clear()
            rate = self._pools.shared_rate(pool)
            is_open = (pool.ready <= 0 or pool.queued <= served) and not self._broker_away
            credit = self._lanes.grant(pool, served, rate if is_open else None, now)
            if pool.dispatched + pool.running > 0:
                within = min(within, refill_seconds(credit, rate))
        self.look_within = 0.0 if self._broker_away else within
        self._count_due = now + min(self.look_within, REFILL_SECONDS)
        if len(pauses) > 1:
            self._room_at = now + min(pauses)
        return dispatched

    def _rests(self, now: float) -> bool:
        """Whether there is nothing to do, as in the turn before; says so at the cost of a read."""
        if self.look_within < math.inf or now >= self._whole_due or not self._queues.current:
            self._whole_due = now + REST_SECONDS
            return False
        self.look_within = 0.0  # if that fails
        if not (self.reach_broker(now) and self._pools.at_rest()):
            return False
        self.look_within = math.inf
        return True

    def _serve(self, pool: PoolState, now: float) -> tuple[int, float]:
        """How many jobs of the pool were sent, and in how many seconds there will be room if there
        is none now.

        Slices first: a tenant with dedicated workers needs less of the shared ones.
        """
        self._queues.refresh_caps(pool.name)
        served = 0
        slices = self._pools.slices(pool.name)
        in_flight = self._pools.in_slices(pool.name)
        for target in slices:
            most = window(target.slots, 0.0) - in_flight.get(target.name, 0)
            if most > 0 and not self._broker_away:
                served += self._dispatch(pool, min(most, BATCH), now, target)[0]
        free_elsewhere = any(one.name == "free" for one in slices)
        length = self._lengths.get(pool.name)
        shared = self._pools.shared_rate(pool)
        rate = expected_rate(shared, pool.busy, pool.slots, length)
        taken = still_in_flight(pool.in_flight, shared)
        room = window(pool.slots, rate, pool.reserve_seconds) - taken
        most = min(BATCH, room_to_fill(room, pool.ready, rate))
        if most <= 0:
            self._queues[pool.name].contended = True
        for _ in range(PASSES):
            if most <= 0 or self._broker_away:
                break
            given, again = self._dispatch(pool, most, now, free_elsewhere=free_elsewhere)
            served += given
            most -= given
            if not again:
                break
        if slices:
            return served, 0.0
        return served, seconds_to_room(room - served, pool.ready - served, rate)

    def _dispatch(
        self,
        pool: PoolState,
        most: int,
        now: float,
        target: Slice | None = None,
        free_elsewhere: bool = False,
    ) -> tuple[int, bool]:
        """Allocate, mark, publish; how many jobs, and whether others could have some now: queues
        turned out to be shorter, or a probe was given.

        A crash in between loses messages; the reaper finds their jobs.
        """
        queue = self._queues[pool.name]
        # Read for each pool: probes and quotas count over all of them.
        holds = self._pools.holds(now)
        free = target is not None and target.tenant_id is None
        with fewest_first(queue.fair, holds.probes, MOST_PROBES, free=free):
            grants = self._allocate(pool, most, holds.lanes, target, free_elsewhere)
        if target is None:
            idle = sum(grant.jobs for grant in grants) < most
            self._note_contention(queue, idle, holds.lanes, now)
        if not grants:
            return 0, False
        name = target.name if target else ""
        try:
            epoch = self._leader.epoch or 0
            marked = mark(self._engine, pool.name, grants, epoch, name, heads=queue.heads)
        except StateStoreError:
            # It may have been committed all the same; caps must hold.
            queue.unconfirmed.update(grant.tenant_id for grant in grants)
            raise
        for lane, last in marked.last.items():
            queue.heads[lane].advance(*last)
        for lane in marked.emptied:
            queue.remove_lane(lane)
        if not marked.dispatches:
            return 0, bool(marked.emptied)
        charged = self._charge(queue, marked.dispatches, now, in_slice=target is not None)
        theirs = target or pool
        workers, slots = theirs.workers, theirs.slots // max(1, theirs.workers)
        try:
            lengths = self._estimates.known(now)
            confirmed = self._publisher.publish(marked.dispatches, workers, lengths, slots)
        except BrokerUnavailable as error:
            self._take_back(queue, marked.dispatches, charged, in_slice=target is not None)
            self._lose_broker(now, error)
            return 0, False
        self._leader.broker_seen = self._leader.broker_seen or confirmed
        probes = [each for each in marked.dispatches if each.dependency in holds.probes]
        for each in probes:
            holds.probes[each.dependency][each.tenant_id] += 1
        return len(marked.dispatches), bool(marked.emptied or probes)

    def _allocate(
        self,
        pool: PoolState,
        most: int,
        held: Mapping[str, int],
        target: Slice | None,
        free_elsewhere: bool,
    ) -> list[Grant]:
        fair = self._queues[pool.name].fair
        if target is not None:
            return fair.allocate_slice(most, target.tenant_id, held)
        most_free = 0 if free_elsewhere else free_slots(pool.slots)
        return fair.allocate(
            most, slots=pool.slots, held=held, most_free=most_free, quantum=QUANTUM_SECONDS
        )

    def _note_contention(
        self, queue: PoolQueue, idle: bool, held: Mapping[str, int], now: float
    ) -> None:
        """Without contention debts are forgiven; jobs whose arrival was missed are looked for."""
        waits = note_turn(queue.fair, idle=idle, held=held, paced=self._pacers.limited)
        queue.contended = queue.contended or waits
        if queue.fair.lanes:
            queue.without_lanes_since = None
        elif queue.without_lanes_since is None:
            # Mostly they arrived after the arrivals were taken, and are seen in the next turn.
            queue.without_lanes_since = now
        elif now - queue.without_lanes_since >= SWEEP_PAUSE_SECONDS:
            queue.without_lanes_since = now
            self._queues.sweep_soon()

    def _charge(
        self, queue: PoolQueue, dispatches: Sequence[Dispatch], now: float, *, in_slice: bool
    ) -> dict[int, list[float]]:
        """Charge the estimates to the tenants and the jobs to the quotas.

        Jobs for a slice are not charged: no other tenant could have had the slot.
        """
        charged: dict[int, list[float]] = {}
        for each in dispatches:
            seconds = self._estimates.seconds(each.type, each.pool, now)
            charged.setdefault(each.tenant_id, []).append(seconds)
        known = self._estimates.known(now)
        lengths = [known.get(each.type, math.inf) for each in dispatches]
        mean = sum(lengths) / len(lengths)
        self._lengths[dispatches[0].pool] = mean if mean < math.inf else None
        for tenant_id, seconds_each in charged.items():
            jobs = len(seconds_each)
            if in_slice:
                in_flight = queue.fair.account(tenant_id).in_flight
                queue.fair.set_in_flight(tenant_id, in_flight + jobs)
            else:
                queue.fair.dispatched(tenant_id, seconds_each)
            queue.started[tenant_id] = queue.started.get(tenant_id, 0) + jobs
            queue.active.add(tenant_id)
            if tenant_id in queue.free:
                queue.active_free.add(tenant_id)
        for dependency, count in Counter(each.dependency for each in dispatches).items():
            self._pacers.spend(dependency, count)
        return charged

    def _take_back(
        self,
        queue: PoolQueue,
        dispatches: Sequence[Dispatch],
        charged: Mapping[int, list[float]],
        *,
        in_slice: bool,
    ) -> None:
        for tenant_id, seconds_each in charged.items():
            if not in_slice:
                queue.fair.take_back(tenant_id, seconds_each)
            queue.started[tenant_id] -= len(seconds_each)
            queue.unconfirmed.add(tenant_id)
        for each in dispatches:
            self._pacers.spend(each.dependency, -1)
        release(self._engine, dispatches)

    def reach_broker(self, now: float) -> bool:
        """Ping the broker once in a while, so that nothing is marked in vain."""
        if refused := release_undelivered(self._engine, self._publisher):
            # Not at once again: a queue may refuse everything.
            self._lose_broker(now, refused)
        if now < self._broker_due:
            return not self._broker_away
        try:
            self._publisher.ping()
        except BrokerUnavailable as error:
            self._lose_broker(now, error)
            return False
        self._broker_due = now + BROKER_PING_SECONDS
        self._leader.broker_seen = True
        if self._broker_away:
            logger.info("the broker is back")
            self._broker_away = False
            self._leader.run_once(now)  # so that `/readyz` says so at once
        return True

    def _lose_broker(self, now: float, error: BrokerUnavailable) -> None:
        if not self._broker_away:
            logger.warning("the broker is unavailable, jobs stay queued: %s", error)
            self._lanes.close()
        self._broker_away = True
        self._broker_due = now + BROKER_RETRY_SECONDS
