"""What is in flight in a pool: jobs at the broker, in order, and jobs in slots until they end.

First runs are counts by tenant and kind with exponential run times: of those that run, each ends
within a step with the same chance. Jobs that run again are few and are kept one by one, because
what becomes of them depends on their history.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from heapq import heappop, heappush
from random import Random

import numpy as np

from loadtest.simulation.arrivals import part_of
from loadtest.simulation.dependencies import Dependencies
from loadtest.simulation.failures import FAILED_SHARE, NEW, Failures, Retry
from loadtest.simulation.lanes import Batch
from loadtest.simulation.waits import Waits, Why
from loadtest.simulation.world import Counts, Floats, JobKind

#: A call to a dependency that is down fails after this time.
REFUSED_SECONDS = 0.2


class Runs:
    """The jobs of one pool that are dispatched or running."""

    def __init__(
        self,
        kinds: Sequence[JobKind],
        tiers: Sequence[int],
        failures: Failures,
        dependencies: Dependencies,
        chance: np.random.Generator,
        dice: Random,
    ) -> None:
        self._tiers, self._failures, self._dependencies = tiers, failures, dependencies
        self._chance, self._dice = chance, dice
        self._lane_of = [kind.dependency for kind in kinds]
        #: Of all kinds alike.
        self.mean_seconds = sum(kind.seconds for kind in kinds) / len(kinds)
        self._usual: Floats = np.array([kind.seconds for kind in kinds])
        self._refused: Floats = np.array(
            [REFUSED_SECONDS if kind.dependency else kind.seconds for kind in kinds]
        )
        shape = (len(tiers), len(kinds))
        self.running: Counts = np.zeros(shape, np.int64)
        self.at_broker: Counts = np.zeros(shape, np.int64)
        self._broker: deque[Batch] = deque()
        #: First runs, and jobs at the broker, of all tenants.
        self._first_runs = self.waiting = 0
        #: Jobs that run again, by their end, and how many by tenant.
        self._repeats: list[tuple[float, int, Batch]] = []
        self._repeating: Counts = np.zeros(len(tiers), np.int64)
        self._numbers = 0
        #: First runs that ended in this step, and other jobs that did.
        self._ended: Counts = np.zeros(shape, np.int64)
        self._ended_again: list[Batch] = []
        #: Slot-seconds by tenant since they were last read.
        self.used: Floats = np.zeros(len(tiers))
        self.ended = self.succeeded = 0
        #: The dependency is down.
        self.outage = False
        self._known_chances: dict[tuple[float, bool], tuple[Floats, Floats]] = {}

    @property
    def seconds(self) -> Floats:
        """Mean run times by kind."""
        return self._refused if self.outage else self._usual

    @property
    def in_flight(self) -> Counts:
        """By tenant."""
        flight: Counts = self.running.sum(1) + self._repeating
        return flight + self.at_broker.sum(1) if self.waiting else flight

    @property
    def pending(self) -> Floats:
        """Slot-seconds that are expected of what is in flight, by tenant."""
        again = self._repeating * self.mean_seconds
        return np.asarray((self.running + self.at_broker) @ self._usual + again)

    @property
    def busy(self) -> int:
        return self._first_runs + len(self._repeats)

    def oldest(self, now: float) -> float:
        """How long the first at the broker has waited in all."""
        return now - self._broker[0].at if self._broker else 0.0

    def end_some(self, dt: float, until: float) -> None:
        """Runs end that began before this step."""
        self._ended[:] = 0
        self._ended_again.clear()
        if self._first_runs:
            ends = part_of(self.running, self._chances(dt)[0], self._chance)
            self.running -= ends
            self._ended += ends
            self._first_runs -= int(ends.sum())
        while self._repeats and self._repeats[0][0] <= until:
            batch = heappop(self._repeats)[2]
            self._repeating[batch.tenant] -= 1
            self._ended_again.append(batch)

    def start(self, jobs: Counts, dt: float) -> None:
        """First runs begin at any moment of the step; some end in it."""
        ends = part_of(jobs, self._chances(dt)[1], self._chance)
        started = jobs - ends
        self.running += started
        self._ended += ends
        self._first_runs += int(started.sum())

    def send(self, batch: Batch) -> None:
        self._broker.append(batch)
        self.at_broker[batch.tenant, batch.kind] += batch.jobs
        self.waiting += batch.jobs

    def fill(self, start: float, least: float, dt: float, slots: int, waits: Waits) -> None:
        """Free slots take what is at the broker; what ends in the same step makes room again.

        ``least``: seconds that every job has waited.
        """
        if not self._broker:
            return
        free = slots - self.busy
        at_once = self._chances(dt)[1][0]
        while free > 0 and self._broker:
            batch = self._broker[0]
            jobs = min(free, batch.jobs)
            wait = max(least, start - batch.at)
            waits.add(start, self._tiers[batch.tenant], Why(batch.why), wait, jobs)
            self.at_broker[batch.tenant, batch.kind] -= jobs
            self.waiting -= jobs
            ended = 0
            if batch.history is None:
                ended = int(self._chance.binomial(jobs, at_once[batch.kind]))
                self.running[batch.tenant, batch.kind] += jobs - ended
                self._ended[batch.tenant, batch.kind] += ended
                self._first_runs += jobs - ended
            else:
                self._repeat(batch, start)
            free -= jobs - ended
            if jobs == batch.jobs:
                self._broker.popleft()
            else:
                batch.jobs -= jobs

    def _repeat(self, batch: Batch, start: float) -> None:
        length = self._dice.expovariate(1.0 / float(self.seconds[batch.kind]))
        self._numbers += 1
        heappush(self._repeats, (start + length, self._numbers, batch))
        self._repeating[batch.tenant] += 1

    def _chances(self, dt: float) -> tuple[Floats, Floats]:
        """The chance that a run ends in a step of that length, by tenant and kind: of one that
        began before it, and of one that begins at any moment of it."""
        key = (dt, self.outage)
        if key not in self._known_chances:
            seconds = self.seconds
            before = 1.0 - np.exp(-dt / seconds)
            shape = self.running.shape
            self._known_chances[key] = (
                np.broadcast_to(before, shape).copy(),
                np.broadcast_to(1.0 - before * seconds / dt, shape).copy(),
            )
        return self._known_chances[key]

    def settle(self, now: float) -> None:
        """What ended in this step has succeeded or failed."""
        totals = self._ended.sum(0).tolist()
        for kind, jobs in enumerate(totals):
            if jobs:
                self._settle_first(kind, jobs, now)
        self.used += self._ended @ self.seconds
        for batch in self._ended_again:
            self.used[batch.tenant] += float(self.seconds[batch.kind])
            self._settle_again(batch, now)
        self.ended += sum(totals) + len(self._ended_again)

    def _settle_first(self, kind: int, jobs: int, now: float) -> None:
        lane = self._lane_of[kind]
        refused = self.outage and bool(lane)
        failed = jobs if refused else int(self._chance.binomial(jobs, FAILED_SHARE))
        if lane:
            self._dependencies[lane].record(jobs, failed if refused else 0)
        self.succeeded += jobs - failed
        if failed:
            # Which of the jobs, counted tenant by tenant.
            picked = np.sort(self._chance.choice(jobs, failed, replace=False, shuffle=False))
            tenants = np.searchsorted(np.cumsum(self._ended[:, kind]), picked, side="right")
            for tenant in tenants.tolist():
                why = "DEPENDENCY" if refused else self._failures.draw_class()
                self._failures.fail(Retry(tenant, kind, NEW), why, now)

    def _settle_again(self, batch: Batch, now: float) -> None:
        lane = self._lane_of[batch.kind]
        refused = self.outage and bool(lane)
        if lane:
            self._dependencies[lane].record(1, int(refused))
        if refused or self._dice.random() < FAILED_SHARE:
            why = "DEPENDENCY" if refused else self._failures.draw_class()
            history = batch.history or NEW
            self._failures.fail(Retry(batch.tenant, batch.kind, history), why, now)
        else:
            self.succeeded += 1

    def crash(self, slots: int, now: float) -> None:
        """A worker dies with what runs in so many slots."""
        flat = self.running.ravel()
        most = min(slots, self._first_runs)
        if not most:
            return
        lost = self._chance.multivariate_hypergeometric(flat, most, method="marginals")
        self.running -= lost.reshape(self.running.shape)
        self._first_runs -= most
        kinds = self.running.shape[1]
        for place in np.nonzero(lost)[0].tolist():
            for _ in range(int(lost[place])):
                job = Retry(place // kinds, place % kinds, NEW)
                self._failures.fail(job, "WORKER_CRASH", now)

    def lose_all(self, now: float) -> list[Batch]:
        """Everything in flight, to be queued again: the leases of the runs expire."""
        lost = [batch for _, _, batch in self._repeats] + list(self._broker)
        for tenant, kind in zip(*np.nonzero(self.running), strict=True):
            jobs = int(self.running[tenant, kind])
            lost.append(Batch(now, int(tenant), int(kind), jobs))
        self.running[:] = 0
        self.at_broker[:] = 0
        self._repeating[:] = 0
        self._first_runs = self.waiting = 0
        self._repeats.clear()
        self._broker.clear()
        return lost
