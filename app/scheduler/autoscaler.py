"""Autoscaler: decides how many workers each pool should have. It starts and stops none itself.

The policy is :mod:`app.policy.scaling`; its decision is written to ``desired_workers``. The stack's
process manager (:mod:`app.stack.autoscale`) acts on it, or KEDA through ``GET /operator/scaling``.

A new leader continues from the last decision. One from before its process started counts if it is
recent and jobs still wait: otherwise everything may have been stopped meanwhile, and it continues
from the live workers.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping
from typing import Any

from sqlalchemy import Engine, Row

from app.policy.fairshare.tiers import free_slots
from app.policy.scaling import PoolReading, ScalingDecision, ScalingPolicy, ScalingState, decide
from app.reads.demand import READ_FLIGHT, Parked, QueueWatch, read_depths
from app.scheduler.dispatching.pools import Pools, PoolState, Slice
from app.scheduler.role import RoleQueries
from models.leadership import STILL_LEADER, Leader
from models.pools import POOLS
from models.store.prepared import PreparedStatement
from models.store.session import connect

logger = logging.getLogger(__name__)

EVERY_SECONDS = 1.0
#: Pause after a turn, in lengths of that turn: the dispatcher waits meanwhile.
PAUSE = 20
#: A decision of an earlier process counts if it is younger than this.
STALE_SECONDS = 60.0

#: Rows of READ_FLIGHT, by pool.
Flights = Mapping[str, Row[Any]]

READ_DECISIONS = """
    SELECT pool, workers, extract(epoch FROM now() - changed_at)::float8 AS changed_ago,
           extract(epoch FROM now() - updated_at)::float8 AS written_ago
    FROM desired_workers
"""
WRITE_DECISIONS = f"""
    INSERT INTO desired_workers AS desired (
        pool, workers, reason, living, depth, oldest_seconds, utilisation)
    SELECT * FROM unnest(
        %(pools)s::text[], %(workers)s::int[], %(reasons)s::text[], %(living)s::int[],
        %(depths)s::bigint[], %(oldest)s::float8[], %(utilisations)s::float8[])
    WHERE {STILL_LEADER}
    ON CONFLICT (pool) DO UPDATE
    SET workers = excluded.workers, reason = excluded.reason, living = excluded.living,
        depth = excluded.depth, oldest_seconds = excluded.oldest_seconds,
        utilisation = excluded.utilisation, updated_at = now(),
        changed_at = CASE WHEN desired.workers = excluded.workers THEN desired.changed_at
                          ELSE now() END
"""
PREPARED_FLIGHT = PreparedStatement("read_flight", READ_FLIGHT)
PREPARED_DECISIONS = PreparedStatement("write_decisions", WRITE_DECISIONS)


class Autoscaler(RoleQueries):
    def __init__(
        self, engine: Engine, leader: Leader, pools: Pools, policies: Mapping[str, ScalingPolicy]
    ) -> None:
        super().__init__(engine, leader)
        self._pools = pools
        self._policies = policies
        self._states: dict[str, ScalingState] = {}
        #: The epoch in which they were read.
        self._epoch: int | None = None
        self._watches = {pool: QueueWatch(pool) for pool in POOLS}
        self._due = 0.0
        self._began_at = time.monotonic()

    def run_once(self, now: float) -> int:
        """Decide for every pool, unless the last turn was long and not long ago."""
        if now < self._due:
            return 0
        begun = time.monotonic()
        readings = self._readings(now)
        if self._epoch != self._leader.epoch:
            self._states = self._restore(readings, now)
            self._epoch = self._leader.epoch
        decisions = {pool: self._decide(pool, reading, now) for pool, reading in readings.items()}
        self._write_decisions(readings, decisions)
        self._due = now + PAUSE * (time.monotonic() - begun)
        return 0

    def _readings(self, now: float) -> dict[str, PoolReading]:
        states, queues = self._pools.read(now), self._pools.queues
        lanes = self._pools.holds(now).lanes
        capped = {state.name: self._pools.capped(state.name) for state in states}
        with connect(self._engine) as connection:
            flights = {row.pool: row for row in PREPARED_FLIGHT.execute(connection, {})}
            full = {
                state.name: queues[state.name].free if state.name in queues else ()
                for state in states
                if is_free_full(state, flights, self._pools.slices(state.name))
            }
            parked = Parked(lanes, capped, full)
            depths = read_depths(connection, parked)
            waits = {
                pool: self._watches[pool].oldest_seconds(connection, parked)
                for pool in depths
                if pool in self._watches
            }
        return {
            pool.name: reading_of(pool, flights, depths, waits.get(pool.name)) for pool in states
        }

    def _decide(self, pool: str, reading: PoolReading, now: float) -> ScalingDecision:
        policy = self._policies[pool]
        before = self._states.get(pool) or ScalingState(max(policy.least, reading.workers))
        decision = decide(reading, before, policy, now)
        if decision.workers != before.workers:
            logger.warning(
                "%s should have %d workers, was %d: %s",
                *(pool, decision.workers, before.workers, decision.reason),
            )
        self._states[pool] = decision.state
        return decision

    def _restore(self, readings: Mapping[str, PoolReading], now: float) -> dict[str, ScalingState]:
        rows = self._read(READ_DECISIONS)
        lived = time.monotonic() - self._began_at
        waited_for = {pool for pool, reading in readings.items() if reading.depth}
        return {
            row.pool: ScalingState(row.workers, changed_at=now - row.changed_ago)
            for row in rows
            if row.written_ago < lived
            or (row.written_ago < STALE_SECONDS and row.pool in waited_for)
        }

    def _write_decisions(
        self, readings: Mapping[str, PoolReading], decisions: Mapping[str, ScalingDecision]
    ) -> None:
        pools = sorted(decisions)
        self._write(
            PREPARED_DECISIONS,
            pools=pools,
            workers=[decisions[pool].workers for pool in pools],
            reasons=[decisions[pool].reason for pool in pools],
            living=[readings[pool].workers for pool in pools],
            depths=[readings[pool].depth for pool in pools],
            oldest=[readings[pool].oldest_seconds for pool in pools],
            utilisations=[readings[pool].utilisation for pool in pools],
        )


def is_free_full(state: PoolState, flights: Flights, slices: Iterable[Slice]) -> bool:
    """Whether free accounts have all in flight that they may, or dedicated workers."""
    if any(one.name == "free" for one in slices):
        return True
    flight = flights.get(state.name)
    return flight is not None and state.slots > 0 and flight.free >= free_slots(state.slots)


def reading_of(
    state: PoolState, flights: Flights, depths: Mapping[str, int], wait: float | None
) -> PoolReading:
    """A pool as the policy needs it; ``wait`` is None if nothing queued waits for a slot."""
    flight = flights.get(state.name)
    beyond = max(0, state.in_flight - state.slots)
    queue = max(1, depths.get(state.name, 0)) if wait is not None else 0
    return PoolReading(
        depth=queue + beyond,
        oldest_seconds=max(wait or 0.0, flight.oldest_seconds if flight and beyond else 0.0),
        # Draining workers run jobs too, in slots that no longer count.
        running=min(flight.running, state.slots) if flight else 0,
        in_flight=state.in_flight,
        slots=state.slots,
        slots_each=POOLS[state.name].slots,
        ended_per_second=state.ended_per_second,
    )
