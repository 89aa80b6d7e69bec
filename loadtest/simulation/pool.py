"""One pool of one cell: the queue, the window and the slots around the product's policy objects.

A step in which all jobs find a slot moves counts only. Otherwise every turn of the scheduler is
simulated: the fair queue grants, the window bounds, the broker hands out in order.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from random import Random

import numpy as np

from app.policy.fairshare import FairQueue, Tier, fewest_first, free_slots, note_turn
from app.policy.pacing import Pace
from app.policy.pool_meter import PoolMeter
from app.policy.window import expected_rate, room_to_fill, window
from app.scheduler.dispatching.dispatcher import BATCH, PASSES, QUANTUM_SECONDS
from app.scheduler.dispatching.pools import PoolState
from loadtest.simulation.arrivals import Arrivals
from loadtest.simulation.claims import Claims
from loadtest.simulation.dependencies import Dependencies
from loadtest.simulation.failures import WORKER_LIFE_SECONDS, Failures
from loadtest.simulation.lanes import Batch, Lanes
from loadtest.simulation.runs import Runs
from loadtest.simulation.shares import ShareMeter
from loadtest.simulation.waits import TURN_SECONDS, Waits, Why
from loadtest.simulation.workers import Workers
from loadtest.simulation.world import Counts, JobKind, Tenant
from models.pools import POOLS
from models.presence import PRESENCE_SECONDS
from tasks.retry.circuit import MOST_PROBES

#: Turns per second while not all jobs find a slot. The scheduler's own are as long as those of
#: ``short``; jobs of the others take so much longer that fewer show the same.
TURNS = {"short": round(1 / TURN_SECONDS), "medium": 2, "long": 1}
#: Jobs that one core of the scheduler dispatches per second (``make lab-cost``).
DISPATCHED_PER_SECOND = 15_400
#: What a turn takes besides, and each of its statements. Assumed.
TURN_COST_SECONDS, PASS_COST_SECONDS = 0.005, 0.002
#: A pool has a slot for every job while there are so many standard deviations more than needed.
DEVIATIONS = 4.0
#: Settings.promote_per_second.
PROMOTE_PER_SECOND = 2000.0


class PoolSimulation:
    def __init__(
        self,
        name: str,
        kinds: Sequence[JobKind],
        tenants: Sequence[Tenant],
        dependencies: Dependencies,
        workers: Workers,
        waits: Waits,
        chance: np.random.Generator,
        dice: Random,
    ) -> None:
        self.name, self.workers, self.waits = name, workers, waits
        self._dependencies, self._chance = dependencies, chance
        self._lane_of = [kind.dependency for kind in kinds]
        self._lane_names = sorted(set(self._lane_of))
        self._kinds_in = {
            lane: [number for number, own in enumerate(self._lane_of) if own == lane]
            for lane in self._lane_names
        }
        self._seconds = [kind.seconds for kind in kinds]
        self._claims = Claims(name, tenants)
        self._is_free = self._claims.is_free
        self.failures = Failures(POOLS[name].tries, dice)
        self.runs = Runs(
            kinds, self._claims.tiers.tolist(), self.failures, dependencies, chance, dice
        )
        self.lanes = Lanes(len(tenants))
        self.shares = ShareMeter(name, tenants)
        #: Until when lanes, tenants (by number) and free accounts were held back.
        self._held_until: dict[object, float] = {}
        #: What all its jobs wait for: a slot, or the cell after a loss.
        self.why = Why.SLOT
        self.begin_term()

    def begin_term(self) -> None:
        """A scheduler leads that has nothing in memory."""
        self._fair = FairQueue(sum(self._seconds) / len(self._seconds))
        self._meter = PoolMeter(PRESENCE_SECONDS)
        self._pace = Pace(PROMOTE_PER_SECOND)
        #: In flight as the fair queue knows it; -1: it does not know the tenant.
        self._told: Counts = np.full(len(self._claims), -1, np.int64)
        #: Jobs wait that only lack a slot.
        self.ready = False
        #: Mean run time of the jobs sent last.
        self._length: float | None = None

    @property
    def unfinished(self) -> int:
        """Queued, at the broker, running or scheduled to run again."""
        return self.lanes.jobs + self.runs.waiting + self.runs.busy + len(self.failures)

    def advance(self, now: float, arrivals: Arrivals, scale: float, given: Counts | None) -> int:
        """One second with ``scale`` times the arrivals, and those ``given`` besides.

        How many jobs arrived.
        """
        slots = self.workers.slots
        demand = max(scale * arrivals.slots(self.runs.seconds), float(self.runs.busy))
        calm = not self.ready and not self.runs.waiting
        roomy = calm and demand + DEVIATIONS * math.sqrt(demand) + 1 < slots
        turns = 1 if roomy else TURNS[self.name]
        arrived = 0
        for turn in range(turns):
            drawn = arrivals.draw(scale / turns)
            if turn == 0 and given is not None:
                drawn = drawn + given
            jobs = int(drawn.sum())
            arrived += jobs
            self._turn(now + turn / turns, 1.0 / turns, drawn, jobs, slots, roomy)
        self._end_second(now + 1.0, slots)
        return arrived

    def _turn(
        self, now: float, dt: float, arrivals: Counts, jobs: int, slots: int, roomy: bool
    ) -> None:
        runs = self.runs
        runs.end_some(dt, now + dt)
        self._promote(now, dt, slots)
        fits = roomy or (not self.ready and runs.busy + runs.waiting + jobs <= slots)
        if fits:
            left = self._held_back(arrivals, dt, slots, now)
            self.waits.add_at_once(now, self._claims.by_tier(arrivals - left), self.why)
            runs.start(arrivals - left, dt)
            arrivals = left
        for tenant, kind in np.argwhere(arrivals).tolist():
            batch = Batch(now + dt / 2, tenant, kind, int(arrivals[tenant, kind]), why=self.why)
            self.put(batch)
        if self.lanes.jobs:
            self._dispatch(now, dt, slots, fits)
        # What fits would have been sent by one of the scheduler's turns within this step.
        start = now + min(dt, TURN_SECONDS) if fits else now + dt
        runs.fill(start, dt, slots, self.waits)
        runs.settle(now + dt)

    def _held_back(self, arrivals: Counts, dt: float, slots: int, now: float) -> Counts:
        """Arrivals that wait although slots are free: behind others of their lane, for a cap, for
        the slice of free accounts, or for a dependency."""
        left = np.zeros_like(arrivals)
        # A slot takes more than one job in a step that is longer than a run.
        more = dt / float(self.runs.seconds.mean())
        over = self._claims.exceeded(arrivals.sum(1), self.runs.in_flight, slots, more)
        held = self._dependencies.held(now)
        for lane in self._lane_names:
            kinds = self._kinds_in[lane]
            waiting = over
            if any(key[1] == lane for key in self.lanes):
                waiting = over | (self.lanes.by_tenant(lane) > 0)
            left[:, kinds] = arrivals[:, kinds] * waiting[:, None]
            asked = int((arrivals - left)[:, kinds].sum()) if lane in held else 0
            if asked > held.get(lane, asked):
                left[:, kinds] = arrivals[:, kinds]
            elif asked:
                self._dependencies[lane].spend(asked, 0, now)
        return left

    def put(self, batch: Batch) -> None:
        """Queue jobs."""
        lane = self._lane_of[batch.kind]
        if self.lanes.add(lane, batch):
            self._know(batch.tenant)
            self._fair.add_lane(batch.tenant + 1, lane)

    def _know(self, tenant: int) -> None:
        if self._told[tenant] < 0:
            self._fair.set_tenant(tenant + 1, self._claims[tenant])
            self._told[tenant] = 0

    def _promote(self, now: float, dt: float, slots: int) -> None:
        """Queue retries that are due, as far as the pace allows."""
        if not self.failures.is_due(now + dt):
            return
        most, self._pace = self._pace.turn(
            queued=self.lanes.jobs + max(0, self.runs.waiting + self.runs.busy - slots),
            slots=slots,
            ended_per_second=self._meter.ended_per_second,
            seconds=dt,
        )
        for at, job in self.failures.take(now + dt, most):
            self.put(Batch(at, job.tenant, job.kind, 1, job.history, self.why))

    def _dispatch(self, now: float, dt: float, slots: int, fits: bool) -> None:
        """Send what the window has room for and the scheduler has time for, turn by turn."""
        self._tell(self.runs.in_flight)
        left = dt
        while left > 0 and self.lanes.jobs:
            left -= TURN_COST_SECONDS
            most = self._room(slots, fits, now)
            sent, passes = 0, PASSES
            while most > 0 and passes > 0 and left > 0:
                jobs = self._send_batch(min(BATCH, most), slots, now)
                left -= PASS_COST_SECONDS + jobs / DISPATCHED_PER_SECOND
                sent, most = sent + jobs, most - jobs
                # Lanes may turn out to be shorter than what they were granted: others get the rest.
                passes = passes - 1 if jobs else 0
            if not sent:
                break
        self._note_held(now, now + dt)

    def _room(self, slots: int, fits: bool, now: float) -> int:
        """Jobs that may be sent in a turn."""
        if fits:
            held = self._dependencies.held(now)
            able = sum(
                min(int(self.lanes.by_tenant(lane).sum()), held.get(lane, self.lanes.jobs))
                for lane in self._lane_names
            )
            return min(BATCH, able)
        in_flight = self.runs.busy + self.runs.waiting
        rate = expected_rate(self._meter.ended_per_second, self.runs.busy, slots, self._length)
        room = window(slots, rate, self._meter.reserve_seconds) - in_flight
        return min(BATCH, room_to_fill(room, self.lanes.jobs, rate))

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
        known = self._told >= 0
        changed = (flight != self._told) & (known | (self._is_free & (flight > 0)))
        for tenant in np.nonzero(changed)[0].tolist():
            self._know(tenant)
            self._fair.set_in_flight(tenant + 1, int(flight[tenant]))
            self._told[tenant] = flight[tenant]

    def _send(self, tenant: int, jobs: int, limits: Mapping[str, int], now: float) -> int:
        charged: list[float] = []
        for lane, batch in self.lanes.take(tenant, jobs, limits):
            batch.why = max(batch.why, self._reason(tenant, lane, batch.at))
            self.runs.send(batch)
            charged += [self._seconds[batch.kind]] * batch.jobs
            if lane in self._dependencies:
                self._dependencies[lane].spend(batch.jobs, tenant + 1, now)
        for lane in limits:
            if (tenant, lane) not in self.lanes:
                self._fair.remove_lane(tenant + 1, lane)
        if charged:
            self._fair.dispatched(tenant + 1, charged)
            self._told[tenant] += len(charged)
            self.shares.sent(tenant, math.fsum(charged))
            self._length = math.fsum(charged) / len(charged)
        return len(charged)

    def _reason(self, tenant: int, lane: str, at: float) -> Why:
        keys = (lane or None, tenant, Tier.FREE if self._is_free[tenant] else None)
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
            self.shares.turn(waiting - capped)

    def _end_second(self, now: float, slots: int) -> None:
        runs = self.runs
        self._meter.count(runs.ended, now)
        self._meter.adapt(self.lanes.jobs, runs.busy, slots, now)
        if self.lanes.jobs:
            self._reconcile()
        else:
            self.ready = False
            self._fair.clear()
        runs.used[:] = 0.0
        if self.ready:
            self.shares.end_second(self._fair)
        else:
            self.shares.restart()
        self._scale(now, slots)
        deaths = int(self._chance.poisson(self.workers.live / WORKER_LIFE_SECONDS))
        for _ in range(deaths):
            self.workers.lose(1)
            runs.crash(math.ceil(runs.busy / max(1, self.workers.live + 1)), now)

    def _reconcile(self) -> None:
        """Replace estimates by what was used, as the scheduler does once a second.

        Use counts only of tenants that wait, unless others had to wait for a slot.
        """
        flight, pending = self.runs.in_flight, self.runs.pending
        active = (flight > 0) | (self._told > 0) | (self.runs.used > 0)
        if not self.ready:
            active = sum(self.lanes.by_tenant(lane) for lane in self._lane_names) > 0
        known = (self._told >= 0) & active
        for tenant in np.nonzero(known)[0].tolist():
            self._fair.reconcile(
                tenant + 1,
                used=float(self.runs.used[tenant]),
                pending=float(pending[tenant]),
                in_flight=int(flight[tenant]),
            )
            self._told[tenant] = flight[tenant]

    def _scale(self, now: float, slots: int) -> None:
        wait, depth = self._demand(now)
        runs = self.runs
        state = PoolState(
            name=self.name,
            scheduled=len(self.failures),
            queued=self.lanes.jobs,
            dispatched=runs.waiting,
            running=runs.busy,
            ended=runs.ended,
            slots=slots,
            workers=self.workers.live,
            credit=0,
            in_slices=0,
            busy=runs.busy,
            ended_per_second=self._meter.ended_per_second,
            reserve_seconds=self._meter.reserve_seconds,
            ready=depth,
        )
        self.workers.decide(now, state, runs.oldest(now), wait)

    def _demand(self, now: float) -> tuple[float | None, int]:
        """The longest wait of jobs that only lack a slot, and how many they are."""
        if not self.lanes.jobs:
            return None, 0
        held, capped = self._dependencies.held(now), set(self._fair.at_cap())
        free_full = self._fair.free_full
        oldest, depths = math.inf, dict.fromkeys(held, 0)
        for (tenant, name), lane in self.lanes.items():
            parked = tenant + 1 in capped or (free_full and self._is_free[tenant])
            if held.get(name, 1) > 0 and not parked:
                oldest = min(oldest, lane.batches[0].at)
                depths[name] = depths.get(name, 0) + lane.jobs
        depth = sum(min(jobs, held.get(name, jobs)) for name, jobs in depths.items())
        return (None, 0) if math.isinf(oldest) else (now - oldest, depth)

    def lose(self, now: float) -> list[Batch]:
        """The cell is lost: what was in flight has to run again."""
        self.workers.lose_all()
        return self.runs.lose_all(now)

    def restore(self, now: float, lost: list[Batch]) -> None:
        """The cell is back: its rows are, and workers start."""
        self.begin_term()
        self.why = Why.CELL
        self.workers.restore(now)
        for (tenant, name), lane in self.lanes.items():
            self._know(tenant)
            self._fair.add_lane(tenant + 1, name)
            for batch in lane.batches:
                batch.why = Why.CELL
        for batch in lost:
            batch.why = Why.CELL
            self.put(batch)
