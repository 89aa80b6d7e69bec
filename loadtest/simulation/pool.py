"""One pool of one cell: the queue, the window and the slots around the product's policy objects.

A step in which all jobs find a slot moves counts only. Otherwise every turn of the scheduler is
simulated: the fair queue grants, the window bounds, the broker hands out in order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from random import Random

import numpy as np

from app.policy.pacing import Pace
from app.scheduler.dispatching.pools import PoolState
from loadtest.simulation.arrivals import Arrivals
from loadtest.simulation.claims import Claims
from loadtest.simulation.dependencies import Dependencies
from loadtest.simulation.dispatching import Dispatching
from loadtest.simulation.failures import WORKER_LIFE_SECONDS, Failures
from loadtest.simulation.lanes import Batch
from loadtest.simulation.runs import Runs
from loadtest.simulation.shares import ShareMeter
from loadtest.simulation.waits import TURN_SECONDS, Waits, Why
from loadtest.simulation.workers import Workers
from loadtest.simulation.world import Counts, JobKind, Tenant
from models.pools import POOLS

#: Turns per second while not all jobs find a slot. The scheduler's own are as long as those of
#: ``short``; jobs of the others take so much longer that fewer show the same.
TURNS = {"short": round(1 / TURN_SECONDS), "medium": 2, "long": 1}
#: A pool has a slot for every job while there are so many standard deviations more than needed.
DEVIATIONS = 4.0
#: Settings.promote_per_second.
PROMOTE_PER_SECOND = 2000.0


class PoolSimulation:
    """Simulates one pool, a second at a time."""

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
        pass_seconds: float,
    ) -> None:
        self.name, self.workers, self.waits = name, workers, waits
        self._dependencies, self._chance = dependencies, chance
        lanes = [kind.dependency for kind in kinds]
        self._kinds_in = {
            lane: [number for number, own in enumerate(lanes) if own == lane]
            for lane in sorted(set(lanes))
        }
        self._claims = Claims(name, tenants)
        self.failures = Failures(POOLS[name].tries, dice)
        tiers = self._claims.tiers.tolist()
        self.runs = Runs(kinds, tiers, self.failures, dependencies, chance, dice)
        self.shares = ShareMeter(name, tenants)
        self.queue = Dispatching(
            kinds, self._claims, dependencies, self.runs, self.shares, pass_seconds
        )
        self.lanes = self.queue.lanes
        self._pace = Pace(PROMOTE_PER_SECOND)
        #: What all its jobs wait for: a slot, or the cell after a loss.
        self.why = Why.SLOT

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
        calm = not self.lanes.jobs and not self.runs.waiting
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
        fits = roomy or (not self.queue.ready and runs.busy + runs.waiting + jobs <= slots)
        left: Counts | None = arrivals
        if fits:
            left = self._held_back(arrivals, dt, slots, now)
            starts = arrivals if left is None else arrivals - left
            self.waits.add_at_once(now, self._claims.by_tier(starts.sum(1)), self.why)
            runs.start(starts, dt)
        if left is not None:
            for tenant, kind in np.argwhere(left).tolist():
                jobs = int(left[tenant, kind])
                self.queue.put(Batch(now + dt / 2, tenant, kind, jobs, why=self.why))
        self._promote(now, dt, slots)
        if self.lanes.jobs:
            self.queue.dispatch(now, dt, slots, fits)
        # What fits would have been sent by one of the scheduler's turns within this step.
        start, least = (now, TURN_SECONDS) if fits else (now + dt, 0.0)
        runs.fill(start, least, dt, slots, self.waits)
        runs.settle(now + dt)

    def _held_back(self, arrivals: Counts, dt: float, slots: int, now: float) -> Counts | None:
        """Arrivals that wait although slots are free: behind others of their lane, for a cap, for
        the slice of free accounts, or for a dependency."""
        left: Counts | None = None
        # A slot takes more than one job in a step that is longer than a run.
        more = dt / self.runs.mean_seconds
        over = self._claims.exceeded(arrivals.sum(1) + self.runs.in_flight, slots, more)
        held = self._dependencies.held(now)
        waiting_lanes = {lane for _, lane in self.lanes}
        for lane, kinds in self._kinds_in.items():
            waits = over
            if lane in waiting_lanes:
                behind = self.lanes.by_tenant(lane) > 0
                waits = behind if over is None else over | behind
            if waits is not None:
                left = np.zeros_like(arrivals) if left is None else left
                left[:, kinds] = arrivals[:, kinds] * waits[:, None]
            if lane in held:
                asked = int(arrivals[:, kinds].sum())
                asked -= 0 if left is None else int(left[:, kinds].sum())
                if asked > held[lane]:
                    left = np.zeros_like(arrivals) if left is None else left
                    left[:, kinds] = arrivals[:, kinds]
                elif asked:
                    self._dependencies[lane].spend(asked, 0, now)
        return left

    def _promote(self, now: float, dt: float, slots: int) -> None:
        """Queue retries that are due, as far as the pace allows."""
        if not self.failures.is_due(now + dt):
            return
        most, self._pace = self._pace.turn(
            queued=self.lanes.jobs + max(0, self.runs.waiting + self.runs.busy - slots),
            slots=slots,
            ended_per_second=self.queue.meter.ended_per_second,
            seconds=dt,
        )
        for at, job in self.failures.take(now + dt, most):
            self.queue.put(Batch(at, job.tenant, job.kind, 1, job.history, self.why))

    def _end_second(self, now: float, slots: int) -> None:
        runs = self.runs
        self.queue.end_second(now, slots)
        self._scale(now, slots)
        deaths = int(self._chance.poisson(self.workers.live / WORKER_LIFE_SECONDS))
        for _ in range(deaths):
            self.workers.lose(1)
            runs.crash(math.ceil(runs.busy / max(1, self.workers.live + 1)), now)

    def _scale(self, now: float, slots: int) -> None:
        wait, depth = self.queue.demand(now)
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
            ended_per_second=self.queue.meter.ended_per_second,
            reserve_seconds=self.queue.meter.reserve_seconds,
            ready=depth,
        )
        self.workers.decide(now, state, runs.oldest(now), wait)

    def lose(self, now: float) -> list[Batch]:
        """The cell is lost: what was in flight has to run again."""
        self.workers.lose_all()
        return self.runs.lose_all(now)

    def restore(self, now: float, lost: list[Batch]) -> None:
        """The cell is back: its rows are, and workers start."""
        self.queue.begin_term()
        self._pace = Pace(PROMOTE_PER_SECOND)
        self.why = Why.CELL
        self.workers.restore(now)
        for lane in self.lanes.values():
            for batch in lane.batches:
                batch.why = Why.CELL
        for batch in lost:
            batch.why = Why.CELL
            self.queue.put(batch)
