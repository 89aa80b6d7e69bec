"""One cell, second by second: arrivals, the loss of a cell, and its three pools."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field
from random import Random

import numpy as np

from loadtest.simulation.admission import (
    FLOOD_BEGIN,
    FLOOD_PER_SECOND,
    FLOOD_SECONDS,
    SubmissionRate,
)
from loadtest.simulation.arrivals import Arrivals
from loadtest.simulation.dependencies import Dependencies, Dependency
from loadtest.simulation.lanes import Batch
from loadtest.simulation.pool import PoolSimulation
from loadtest.simulation.waits import BUCKET_SECONDS, Waits, Why
from loadtest.simulation.workers import Workers
from loadtest.simulation.world import (
    KINDS,
    NOISE,
    NOISE_SECONDS,
    PEAK_SECOND,
    POOL_NAMES,
    Counts,
    Floats,
    World,
    level,
    slot_seconds,
)

#: The dependency fails from here on.
OUTAGE_BEGIN = 16 * 3600
#: What another region took in is gathered for so many seconds.
INTAKE_SECONDS = 5


@dataclass(slots=True)
class PoolResult:
    """What happened in one pool of one cell."""

    #: Histograms of waits, see :class:`Waits`.
    by_time: Counts
    by_tier: Counts
    #: Workers, those that start included, on average of every five minutes.
    workers: list[float]
    worker_seconds: float
    #: Slot-seconds by tier in saturated periods, see :class:`ShareMeter`.
    entitled: list[float]
    got: list[float]
    off: list[float]
    succeeded: int
    dead: int
    unfinished: int
    failures: dict[str, int]


@dataclass(slots=True)
class CellResult:
    """What happened in one cell."""

    number: int
    #: Jobs per second at the peak that it was meant for.
    rate: float
    pools: dict[str, PoolResult] = field(default_factory=dict)
    arrived: int = 0
    #: By what they were refused for.
    refused: Counter[str] = field(default_factory=Counter)
    #: Taken in elsewhere and not handed over yet.
    intake: int = 0
    #: Runs that were lost with the cell, and seconds from its return to the end of all queues.
    lost_runs: int = 0
    recovered_seconds: float | None = None
    circuit_opened: int = 0
    #: Arrivals of every five minutes.
    arrivals: list[int] = field(default_factory=list)

    @property
    def accounted(self) -> int:
        """Where all that arrived is: refused, taken in, under way or ended."""
        pools = self.pools.values()
        under_way = sum(pool.succeeded + pool.dead + pool.unfinished for pool in pools)
        return sum(self.refused.values()) + self.intake + under_way


class CellSimulation:
    """Simulates one cell from the beginning of the scenario to its end."""

    def __init__(self, world: World, number: int) -> None:
        self._scenario = scenario = world.scenario
        self._cell = cell = world.cells[number]
        self._is_lost = number == world.lost and scenario.lost_seconds > 0
        # Of their own, so that what arrives does not depend on what becomes of it.
        self._noises, self._submitted, self._chance = (
            np.random.Generator(np.random.PCG64([scenario.seed, number, stream]))
            for stream in range(3)
        )
        self._dice = dice = Random(f"{scenario.seed} {number}")
        kinds = {pool: [kind for kind in KINDS if kind.pool == pool] for pool in POOL_NAMES}
        self._arrivals = {
            pool: Arrivals([kind.share for kind in own], self._submitted)
            for pool, own in kinds.items()
        }
        called = sum(kind.share for kind in KINDS if kind.dependency == "model")
        quota = max(1.0, 60 * cell.rate * called * scenario.quota_share)
        self._dependencies = Dependencies(model=Dependency("model", quota))
        first = level(scenario, scenario.begin_second) * cell.rate
        span = (scenario.begin_second, scenario.end_second)
        self._pools = {
            pool: PoolSimulation(
                *(pool, own, cell.tenants, self._dependencies),
                Workers(pool, scenario, first * slot_seconds(pool)),
                *(Waits(*span), self._chance, dice, scenario.pass_seconds),
            )
            for pool, own in kinds.items()
        }
        self._floods = {
            place: SubmissionRate(one.tier, len(one.cells), dice)
            for place, one in enumerate(cell.tenants)
            if one.floods
        }
        self._noise: Floats = np.ones(len(cell.tenants))
        self._set_rates(away=False)
        #: Jobs that another region took in: when, and by tenant and kind of each pool.
        self._intake: deque[tuple[float, dict[str, Counts]]] = deque()
        self._lost: dict[str, list[Batch]] = {}
        self._back_at: float | None = None
        #: Jobs that may be handed over now; negative after a large group of them.
        self._room = 0.0
        buckets = -(-span[1] // BUCKET_SECONDS) - span[0] // BUCKET_SECONDS
        self._workers = {pool: [0.0] * buckets for pool in POOL_NAMES}
        self.result = CellResult(number, cell.rate, arrivals=[0] * buckets)

    def run(self) -> CellResult:
        for second in range(self._scenario.begin_second, self._scenario.end_second):
            self.advance(second)
        return self.finish()

    def advance(self, second: int) -> None:
        """One second of the day."""
        since = second - PEAK_SECOND
        away = 0 <= since < self._scenario.lost_seconds
        if second % NOISE_SECONDS == 0:
            drawn = self._noises.normal(0.0, NOISE, len(self._noise))
            self._noise = np.exp(drawn - NOISE**2 / 2)
        if second % NOISE_SECONDS == 0 or since in (0, self._scenario.lost_seconds):
            self._set_rates(away)
        scale = level(self._scenario, second)
        if self._is_lost and away:
            self._be_away(second, scale, first=since == 0)
            return
        if self._is_lost and since == self._scenario.lost_seconds:
            self._return(float(second))
        self._work(second, scale)

    def _set_rates(self, away: bool) -> None:
        usual = self._cell.rates_after_loss if away else self._cell.rates
        for arrivals in self._arrivals.values():
            arrivals.set_rates(usual * self._noise)

    def _work(self, second: int, scale: float) -> None:
        now = float(second)
        self._dependencies.begin_second(now)
        outage = 0 <= second - OUTAGE_BEGIN < self._scenario.outage_seconds
        scale *= self._accepted(scale * sum(each.rate for each in self._arrivals.values()))
        given = self._flood(second)
        self._hand_over(scale * sum(each.rate for each in self._arrivals.values()))
        bucket = second // BUCKET_SECONDS - self._scenario.begin_second // BUCKET_SECONDS
        for name, pool in self._pools.items():
            pool.workers.begin_second(now)
            pool.runs.outage = outage
            arrived = pool.advance(now, self._arrivals[name], scale, given.get(name))
            self.result.arrived += arrived
            self.result.arrivals[bucket] += arrived
            workers = pool.workers.live + pool.workers.booting
            self._workers[name][bucket] += workers / BUCKET_SECONDS
        if self._back_at is not None and not self._intake:
            self._note_recovery(now)

    def _accepted(self, rate: float) -> float:
        """The part of the submissions that the engines take; the rest is answered with 503."""
        limit = self._scenario.cell_limit
        if rate <= limit:
            return 1.0
        refused = int(self._chance.poisson(rate - limit))
        self.result.arrived += refused
        self.result.refused["engine"] += refused
        return limit / rate

    def _flood(self, second: int) -> dict[str, Counts]:
        """Jobs of tenants that submit far more than they may, as far as they pass."""
        if not (self._floods and 0 <= second - FLOOD_BEGIN < FLOOD_SECONDS):
            return {}
        drawn = np.zeros((len(self._cell.tenants), len(KINDS)), np.int64)
        for place, rate in self._floods.items():
            submitted = int(self._chance.poisson(FLOOD_PER_SECOND))
            passed = rate.admit(float(second), submitted)
            self.result.arrived += submitted - passed
            self.result.refused["rate"] += submitted - passed
            drawn[place] = self._chance.multinomial(passed, [kind.share for kind in KINDS])
        return {
            pool: drawn[:, [number for number, kind in enumerate(KINDS) if kind.pool == pool]]
            for pool in POOL_NAMES
        }

    # The loss of the cell

    def _be_away(self, second: int, scale: float, *, first: bool) -> None:
        """Another region takes in what is submitted; nothing is dispatched."""
        if first:
            for name, pool in self._pools.items():
                before = pool.runs.busy
                self._lost[name] = pool.lose(float(second))
                self.result.lost_runs += before
        if second % INTAKE_SECONDS:
            return
        taken = {
            name: arrivals.draw(scale * INTAKE_SECONDS) for name, arrivals in self._arrivals.items()
        }
        jobs = sum(int(counts.sum()) for counts in taken.values())
        self.result.arrived += jobs
        self.result.intake += jobs
        self._intake.append((second + INTAKE_SECONDS / 2, taken))

    def _return(self, now: float) -> None:
        self._back_at = now
        for name, pool in self._pools.items():
            pool.restore(now, self._lost.pop(name))

    def _hand_over(self, rate: float) -> None:
        """Queue what was taken in, as fast as the engines take it beside what arrives."""
        limit = self._scenario.cell_limit
        self._room = min(limit, self._room + limit - rate)
        while self._intake and self._room > 0:
            at, taken = self._intake.popleft()
            jobs = 0
            for name, counts in taken.items():
                for tenant, kind in np.argwhere(counts).tolist():
                    many = int(counts[tenant, kind])
                    batch = Batch(at, tenant, kind, many, why=Why.CELL)
                    self._pools[name].queue.put(batch)
                    jobs += many
            self.result.intake -= jobs
            self._room -= jobs

    def _note_recovery(self, now: float) -> None:
        """Once no job waits for a slot, the loss is over."""
        if any(pool.queue.ready or pool.runs.waiting for pool in self._pools.values()):
            return
        assert self._back_at is not None
        self.result.recovered_seconds = now - self._back_at
        self._back_at = None
        for pool in self._pools.values():
            pool.why = Why.SLOT

    def finish(self) -> CellResult:
        """What happened until now."""
        for name, pool in self._pools.items():
            pool.waits.flush()
            lost = sum(batch.jobs for batch in self._lost.get(name, ()))
            self.result.pools[name] = PoolResult(
                by_time=pool.waits.by_time,
                by_tier=pool.waits.by_tier,
                workers=self._workers[name],
                worker_seconds=pool.workers.worker_seconds,
                entitled=pool.shares.entitled.tolist(),
                got=pool.shares.got.tolist(),
                off=pool.shares.off.tolist(),
                succeeded=pool.runs.succeeded,
                dead=pool.failures.dead,
                unfinished=pool.unfinished + lost,
                failures=dict(pool.failures.by_class),
            )
        self.result.circuit_opened = self._dependencies["model"].opened
        return self.result
