"""Autoscaler: says how many workers each pool should have. It starts and stops none itself.

The policy is :mod:`app.policy.scaling`; here it is fed and its answer written, with what it
was told, by one fenced statement. Who acts on it reads the table: the stack's own process
manager (:mod:`app.stack.autoscale`), or KEDA through ``GET /operator/scaling``.

A new leader goes on from the last answer; only a quiet begins anew with it. What was wanted
before its process began counts if that was a moment ago and jobs still wait: else everything
may have been stopped meanwhile, and the workers that live are what it goes on from. Telemetry: a
line in the log for each change, ``fairline_desired_workers``.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterable, Mapping

from sqlalchemy import Engine

from app.policy.fairshare.tiers import free_slots
from app.policy.scaling import PoolReading, ScalingDecision, ScalingPolicy, ScalingState, decide
from app.reads.demand import Flight, LineWatch, Parked, read_depths, read_flight
from app.scheduler.dispatching.pools import Pools, PoolState, Slice
from models.leadership import STILL_LEADER, Leader
from models.pools import POOLS
from models.store.session import connect

logger = logging.getLogger(__name__)

EVERY_SECONDS = 1.0
#: Rest after a look, in lengths of that look: the dispatcher waits meanwhile.
REST = 20
#: The moment.
STALE_SECONDS = 60.0

READ_STANDINGS = """
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


class Autoscaler:
    """Watches the pools and writes what they should have."""

    def __init__(
        self, engine: Engine, leader: Leader, pools: Pools, policies: Mapping[str, ScalingPolicy]
    ) -> None:
        self._engine = engine
        self._leader = leader
        self._pools = pools
        self._policies = policies
        self._standings: dict[str, ScalingState] = {}
        #: The epoch in which they were read.
        self._epoch: int | None = None
        self._watches = {pool: LineWatch(pool) for pool in POOLS}
        self._due = 0.0
        self._began_at = time.monotonic()

    def run_once(self, now: float) -> int:
        """Decide for every pool, unless the last look was long and not long ago."""
        if now < self._due:
            return 0
        begun = time.monotonic()
        readings = self._read(now)
        if self._epoch != self._leader.epoch:
            self._standings = self._restore(readings, now)
            self._epoch = self._leader.epoch
        decisions = {pool: self._decide(pool, reading, now) for pool, reading in readings.items()}
        self._write(readings, decisions)
        self._due = now + REST * (time.monotonic() - begun)
        return 0

    def _read(self, now: float) -> dict[str, PoolReading]:
        states = self._pools.read(now)
        lanes = self._pools.holds(now).lanes
        capped = {state.name: self._pools.capped(state.name) for state in states}
        with connect(self._engine) as connection:
            flights = read_flight(connection)
            full = {
                state.name: self._free_accounts(state.name)
                for state in states
                if is_free_full(state, flights, self._pools.slices(state.name, now))
            }
            parked = Parked(lanes, capped, full)
            depths = read_depths(connection, parked)
            waits = {
                pool: self._watches[pool].oldest_seconds(connection, parked)
                for pool in depths
                if pool in self._watches
            }
        return {
            state.name: reading_of(
                state, flights.get(state.name, Flight()), depths, waits.get(state.name)
            )
            for state in states
        }

    def _free_accounts(self, pool: str) -> Collection[int]:
        return self._pools.queues[pool].free if pool in self._pools.queues else ()

    def _decide(self, pool: str, reading: PoolReading, now: float) -> ScalingDecision:
        policy = self._policies[pool]
        before = self._standings.get(pool) or ScalingState(max(policy.least, reading.workers))
        decision = decide(reading, before, policy, now)
        if decision.workers != before.workers:
            logger.warning(
                "%s should have %d workers, was %d: %s",
                *(pool, decision.workers, before.workers, decision.reason),
            )
        self._standings[pool] = decision.standing
        return decision

    def _restore(self, readings: Mapping[str, PoolReading], now: float) -> dict[str, ScalingState]:
        with connect(self._engine) as connection:
            rows = connection.exec_driver_sql(READ_STANDINGS).all()
        lived = time.monotonic() - self._began_at
        waited_for = {pool for pool, reading in readings.items() if reading.depth}
        return {
            row.pool: ScalingState(row.workers, changed_at=now - row.changed_ago)
            for row in rows
            if row.written_ago < lived
            or (row.written_ago < STALE_SECONDS and row.pool in waited_for)
        }

    def _write(
        self, readings: Mapping[str, PoolReading], decisions: Mapping[str, ScalingDecision]
    ) -> None:
        pools = sorted(decisions)
        with connect(self._engine) as connection:
            connection.exec_driver_sql(
                WRITE_DECISIONS,
                {
                    "pools": pools,
                    "workers": [decisions[pool].workers for pool in pools],
                    "reasons": [decisions[pool].reason for pool in pools],
                    "living": [readings[pool].workers for pool in pools],
                    "depths": [readings[pool].depth for pool in pools],
                    "oldest": [readings[pool].oldest_seconds for pool in pools],
                    "utilisations": [readings[pool].utilisation for pool in pools],
                    "epoch": self._leader.epoch,
                },
            )


def is_free_full(state: PoolState, flights: Mapping[str, Flight], slices: Iterable[Slice]) -> bool:
    """Whether free accounts together have all that they may, or workers of their own."""
    if any(piece.name == "free" for piece in slices):
        return True
    flight = flights.get(state.name)
    return flight is not None and state.slots > 0 and flight.free >= free_slots(state.slots)


def reading_of(
    state: PoolState, flight: Flight, depths: Mapping[str, int], wait: float | None
) -> PoolReading:
    """A pool as the policy wants it; without a wait in the queue nothing in it is demand."""
    beyond = max(0, state.in_flight - state.slots)
    queue = max(1, depths.get(state.name, 0)) if wait is not None else 0
    return PoolReading(
        depth=queue + beyond,
        oldest_seconds=max(wait or 0.0, flight.oldest_seconds if beyond else 0.0),
        # Draining workers run jobs too, in slots that no longer count.
        running=min(flight.running, state.slots),
        in_flight=state.in_flight,
        slots=state.slots,
        slots_each=POOLS[state.name].slots,
        ended_per_second=state.ended_per_second,
    )
