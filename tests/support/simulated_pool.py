"""A pool on paper: slots, a broker and tenants around the real :class:`FairQueue`.

It does what the dispatcher does: a window of work at the broker, first come first served
from there, the estimate of a job by its type, a reconciliation every second. Its clock is
a number, so hours take a moment. It does not model lost messages, retries or a slow database.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from heapq import heappop, heappush

from app.policy.fairshare import FairQueue, TenantClaim
from app.policy.window import smoothed_rate, window

Length = Callable[[random.Random], float]
#: How much the last job counts in the mean of its type.
SMOOTHING = 0.02


@dataclass(frozen=True, slots=True)
class Tenant:
    """Somebody who wants as much of the pool as it can get."""

    number: int
    standing: TenantClaim
    #: Seconds of its next job.
    length: Length
    #: Jobs of one type share an estimate.
    type: str = "job"
    lane: str = ""
    #: Seconds at which its jobs arrive …
    starts: float = 0.0
    #: … and how many do.
    jobs: int | None = None


@dataclass(slots=True)
class Job:
    tenant: Tenant
    seconds: float
    estimate: float
    dispatched: float
    started: float | None = None


@dataclass(slots=True)
class Tally:
    """What a tenant got."""

    #: Slot-seconds of ended jobs, and those not yet reported to the queue.
    ended: float = 0.0
    unreported: float = 0.0
    left: int | None = None
    in_flight: set[int] = field(default_factory=set)
    #: When its first job found a slot.
    first_start: float | None = None


class Pool:
    """One pool with ``slots``, run until some second."""

    def __init__(
        self,
        slots: int,
        tenants: Iterable[Tenant],
        *,
        seed: int = 0,
        turn: float = 0.1,
        default_seconds: float = 60.0,
        held: Mapping[str, int] | None = None,
        most_free: int | None = None,
        queue: FairQueue | None = None,
    ) -> None:
        self.slots = slots
        self.now = 0.0
        self.queue = queue or FairQueue(default_seconds)
        self.held = dict(held or {})
        self.most_free = most_free
        self.tallies: dict[int, Tally] = {}
        self.most_in_flight: dict[int, int] = {}
        self._tenants = {tenant.number: tenant for tenant in tenants}
        self._chance = random.Random(seed)
        self._turn = turn
        self._default_seconds = default_seconds
        self._means: dict[str, float] = {}
        self._jobs: dict[int, Job] = {}
        self._numbers = 0
        self._broker: deque[int] = deque()
        self._running: list[tuple[float, int]] = []
        self._rate = 0.0
        self._ended = 0
        self._reconciled = 0.0
        self._to_come = sorted(self._tenants.values(), key=lambda t: (-t.starts, -t.number))
        for tenant in self._tenants.values():
            self.tallies[tenant.number] = Tally(left=tenant.jobs)
            if not self.queue.has_tenant(tenant.number):
                self.queue.set_tenant(tenant.number, tenant.standing)

    def run(self, until: float) -> None:
        """Turns of the scheduler until this second."""
        while self.now < until:
            while self._to_come and self._to_come[-1].starts <= self.now:
                tenant = self._to_come.pop()
                self.queue.add_lane(tenant.number, tenant.lane)
            if self.now - self._reconciled >= 1.0:
                self._reconcile()
            self._dispatch()
            self.now = round(self.now + self._turn, 6)
            self._work()

    def used(self) -> dict[int, float]:
        """Slot-seconds of each tenant until now, those of running jobs included."""
        used = {number: tally.ended for number, tally in self.tallies.items()}
        for _, number in self._running:
            job = self._jobs[number]
            used[job.tenant.number] += self.now - (job.started or 0.0)
        return used

    def shares(self, until: float) -> dict[int, float]:
        """Run on; the part that each tenant got of all slot-seconds from now on."""
        before = self.used()
        self.run(until)
        after = self.used()
        total = sum(after.values()) - sum(before.values())
        return {number: (after[number] - before[number]) / total for number in after}

    def _dispatch(self) -> None:
        room = window(self.slots, self._rate) - len(self._jobs)
        if room > 0:
            for grant in self.queue.allocate(
                room, slots=self.slots, held=self.held, most_free=self.most_free
            ):
                self._mark(grant.tenant_id, grant.jobs, grant.lanes)
        if len(self._jobs) < window(self.slots, self._rate) and not self.queue.any_waiting(
            [lane for lane, most in self.held.items() if not most]
        ):
            self.queue.forgive_debts()
        self._start(self.now)

    def _mark(self, number: int, jobs: int, lanes: Mapping[str, int]) -> None:
        tenant, tally = self._tenants[number], self.tallies[number]
        jobs = min(jobs, lanes.get(tenant.lane, 0))
        given = jobs if tally.left is None else min(jobs, tally.left)
        estimate = self._means.get(tenant.type, self._default_seconds)
        for _ in range(given):
            self._numbers += 1
            self._jobs[self._numbers] = Job(tenant, tenant.length(self._chance), estimate, self.now)
            self._broker.append(self._numbers)
            tally.in_flight.add(self._numbers)
        self.queue.dispatched(number, [estimate] * given)
        if tally.left is not None:
            tally.left -= given
            if given < jobs:
                self.queue.remove_lane(number, tenant.lane)
        held = len(tally.in_flight)
        self.most_in_flight[number] = max(self.most_in_flight.get(number, 0), held)

    def _start(self, now: float) -> None:
        while self._broker and len(self._running) < self.slots:
            number = self._broker.popleft()
            job = self._jobs[number]
            job.started = now
            tally = self.tallies[job.tenant.number]
            if tally.first_start is None:
                tally.first_start = now
            heappush(self._running, (now + job.seconds, number))

    def _work(self) -> None:
        """Jobs end when they end, and their slots take the next from the broker at once."""
        while self._running and self._running[0][0] <= self.now:
            ended, number = heappop(self._running)
            job = self._jobs.pop(number)
            tally = self.tallies[job.tenant.number]
            tally.in_flight.discard(number)
            tally.ended += job.seconds
            tally.unreported += job.seconds
            mean = self._means.setdefault(job.tenant.type, job.seconds)
            self._means[job.tenant.type] = mean + (job.seconds - mean) * SMOOTHING
            self._ended += 1
            self._start(ended)

    def _reconcile(self) -> None:
        self._rate = smoothed_rate(self._rate, self._ended, self.now - self._reconciled)
        self._ended = 0
        self._reconciled = self.now
        for number, tally in self.tallies.items():
            if not tally.unreported and not tally.in_flight:
                continue
            jobs = [self._jobs[job] for job in tally.in_flight]
            pending = sum(
                max(job.estimate, 0.0 if job.started is None else self.now - job.started)
                for job in jobs
            )
            self.queue.reconcile(
                number, used=tally.unreported, pending=pending, in_flight=len(jobs)
            )
            tally.unreported = 0.0
