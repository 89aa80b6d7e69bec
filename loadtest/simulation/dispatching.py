"""Dispatch in a simulated pool: queued jobs are granted by the product's fair queue and sent."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from app.policy.fairshare import FairQueue, Tier, fewest_first, free_slots, note_turn
from app.policy.pool_meter import PoolMeter
from app.policy.window import expected_rate, room_to_fill, window
from app.scheduler.dispatching.dispatcher import BATCH, PASSES, QUANTUM_SECONDS
from loadtest.simulation.claims import Claims
from loadtest.simulation.dependencies import Dependencies
from loadtest.simulation.lanes import Batch, Lanes
from loadtest.simulation.runs import Runs
from loadtest.simulation.shares import ShareMeter
from loadtest.simulation.waits import Why
from loadtest.simulation.world import Counts, JobKind
from loadtest.sizing.inputs import SCHEDULER_PER_SECOND
from models.presence import PRESENCE_SECONDS
from tasks.retry.circuit import MOST_PROBES

#: What a turn takes besides, in statements.
TURN_PASSES = 2.5


class Dispatching:
    """The queue of one pool, and the scheduler that sends from it."""

    def __init__(
        self,
        kinds: Sequence[JobKind],
        claims: Claims,
        dependencies: Dependencies,
        runs: Runs,
        shares: ShareMeter,
        pass_seconds: float,
    ) -> None:
        self._claims, self._dependencies, self._runs = claims, dependencies, runs
        self._shares, self._pass_seconds = shares, pass_seconds
        self._lane_of = [kind.dependency for kind in kinds]
        self._seconds = [kind.seconds for kind in kinds]
        self.lanes = Lanes(len(claims))
        #: Until when lanes, tenants (by number) and free accounts were held back.
        self._held_until: dict[object, float] = {}
        self.begin_term()

    def begin_term(self) -> None:
        """A scheduler leads that has nothing in memory."""
        self._fair = FairQueue(sum(self._seconds) / len(self._seconds))
        self.meter = PoolMeter(PRESENCE_SECONDS)
        #: In flight as the fair queue knows it; -1: it does not know the tenant.
        self._told: Counts = np.full(len(self._claims), -1, np.int64)
        #: Jobs wait that only lack a slot.
        self.ready = False
        #: Mean run time of the jobs sent last.
        self._length: float | None = None
        for tenant, lane in self.lanes:
            self._add_lane(tenant, lane)

    def put(self, batch: Batch) -> None:
        """Queue jobs."""
        lane = self._lane_of[batch.kind]
        if self.lanes.add(lane, batch):
            self._add_lane(batch.tenant, lane)

    def _add_lane(self, tenant: int, lane: str) -> None:
        self._know(tenant)
        self._fair.add_lane(tenant + 1, lane)

    def _know(self, tenant: int) -> None:
        if self._told[tenant] < 0:
            self._fair.set_tenant(tenant + 1, self._claims[tenant])
            self._told[tenant] = 0

    def dispatch(self, now: float, dt: float, slots: int, fits: bool) -> None:
        """Send what the window has room for and the scheduler has time for, turn by turn.

        ``fits``: there is a slot for every job, so the window need not be asked.
        """
        self._tell(self._runs.in_flight)
        left = dt
        while left > 0 and self.lanes.jobs:
            left -= TURN_PASSES * self._pass_seconds
            most = min(BATCH, self._able(now) if fits else self._room(slots))
            sent, passes = 0, PASSES
            while most > 0 and passes > 0 and left > 0:
                jobs = self._send_batch(most, slots, now)
                left -= self._pass_seconds + jobs / SCHEDULER_PER_SECOND
                sent, most = sent + jobs, most - jobs
                # Lanes may turn out to be shorter than what they were granted: others get the rest.
                passes = passes - 1 if jobs else 0
            if not sent:
                break
        self._note_held(now, now + dt)

    def _able(self, now: float) -> int:
        """Queued jobs, of held lanes as many as these may give."""
        held = self._dependencies.held(now)
        names = set(self._lane_of)
        queued = {lane: int(self.lanes.by_tenant(lane).sum()) for lane in names}
        return sum(min(jobs, held.get(lane, jobs)) for lane, jobs in queued.items())

    def _room(self, slots: int) -> int:
        """Jobs that the window lets in, if it is worth a turn."""
        runs, meter = self._runs, self.meter
        rate = expected_rate(meter.ended_per_second, runs.busy, slots, self._length)
        room = window(slots, rate, meter.reserve_seconds) - runs.busy - runs.waiting
        return room_to_fill(room, self.lanes.jobs, rate)

    def _send_batch(self, most: int, slots: int, now: float) -> int:
        held = self._dependencies.held(now)
        with fewest_first(self._fair, self._dependencies.given_probes(), MOST_PROBES):
            grants = self._fair.allocate(
                most,
                slots=slots,
                held=held,
                most_free=free_slots(slots),
                quantum=QUANTUM_SECONDS,
            )
        idle = sum(one.jobs for one in grants) < most
        note_turn(self._fair, idle=idle, held=held, paced=held)
        return sum(self._send(one.tenant_id - 1, one.jobs, one.lanes, now) for one in grants)

    def _tell(self, flight: Counts) -> None:
        """Say what tenants have in flight where the fair queue thinks otherwise."""
        known = (self._told >= 0) | (self._claims.is_free & (flight > 0))
        for tenant in np.flatnonzero((flight != self._told) & known).tolist():
            self._know(tenant)
            self._fair.set_in_flight(tenant + 1, int(flight[tenant]))
            self._told[tenant] = flight[tenant]

    def _send(self, tenant: int, jobs: int, limits: Mapping[str, int], now: float) -> int:
        charged: list[float] = []
        for lane, batch in self.lanes.take(tenant, jobs, limits):
            batch.why = max(batch.why, self._reason(tenant, lane, batch.at))
            self._runs.send(batch)
            charged += [self._seconds[batch.kind]] * batch.jobs
            if lane in self._dependencies:
                self._dependencies[lane].spend(batch.jobs, tenant + 1, now)
        for lane in limits:
            if (tenant, lane) not in self.lanes:
                self._fair.remove_lane(tenant + 1, lane)
        if charged:
            self._fair.dispatched(tenant + 1, charged)
            self._told[tenant] += len(charged)
            self._shares.sent(tenant, math.fsum(charged))
            self._length = math.fsum(charged) / len(charged)
        return len(charged)

    def _reason(self, tenant: int, lane: str, at: float) -> Why:
        """What a job waited for: at most one of them is a slot."""
        keys = (lane or None, tenant, Tier.FREE if self._claims.is_free[tenant] else None)
        return Why.HELD if any(self._held_until.get(key, -1.0) > at for key in keys) else Why.SLOT

    def _note_held(self, now: float, until: float) -> None:
        """After a turn: what the jobs that are left wait for."""
        held = self._dependencies.held(now)
        closed = {lane for lane, allowed in held.items() if allowed <= 0}
        capped = {tenant - 1 for tenant in self._fair.at_cap()}
        self._held_until.update(dict.fromkeys([*closed, *capped], until))
        if self._fair.free_full:
            self._held_until[Tier.FREE] = until
        self.ready = self.lanes.jobs > 0 and self._fair.any_waiting(closed)
        if self.ready:
            waiting = {tenant for tenant, lane in self.lanes if lane not in closed}
            self._shares.turn(waiting - capped)

    def end_second(self, now: float, slots: int) -> None:
        """What the scheduler does once a second: measure, and replace estimates."""
        self.meter.count(self._runs.ended, now)
        self.meter.adapt(self.lanes.jobs, self._runs.busy, slots, now)
        if self.lanes.jobs:
            self._reconcile()
        else:
            self.ready = False
            self._fair.clear()
        self._runs.used[:] = 0.0
        if self.ready:
            self._shares.end_second(self._fair)
        else:
            self._shares.restart()

    def _reconcile(self) -> None:
        """Replace estimates by what was used.

        Use counts only of tenants that wait, unless others had to wait for a slot.
        """
        flight, pending, used = self._runs.in_flight, self._runs.pending, self._runs.used
        active = (flight > 0) | (self._told > 0) | (used > 0)
        if not self.ready:
            active = np.zeros(len(self._told), bool)
            active[sorted({tenant for tenant, _ in self.lanes})] = True
        for tenant in np.flatnonzero((self._told >= 0) & active).tolist():
            self._fair.reconcile(
                tenant + 1,
                used=float(used[tenant]),
                pending=float(pending[tenant]),
                in_flight=int(flight[tenant]),
            )
            self._told[tenant] = flight[tenant]

    def demand(self, now: float) -> tuple[float | None, int]:
        """The longest wait of jobs that only lack a slot, if any do, and how many they are."""
        if not self.lanes.jobs:
            return None, 0
        held, capped = self._dependencies.held(now), set(self._fair.at_cap())
        free_full = self._fair.free_full
        oldest, depths = math.inf, dict.fromkeys(held, 0)
        for (tenant, name), lane in self.lanes.items():
            parked = tenant + 1 in capped or (free_full and self._claims.is_free[tenant])
            if held.get(name, 1) > 0 and not parked:
                oldest = min(oldest, lane.batches[0].at)
                depths[name] = depths.get(name, 0) + lane.jobs
        depth = sum(min(jobs, held.get(name, jobs)) for name, jobs in depths.items())
        return (None, 0) if math.isinf(oldest) else (now - oldest, depth)
