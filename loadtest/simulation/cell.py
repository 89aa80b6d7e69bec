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
)

#: The dependency fails from here on.
OUTAGE_BEGIN = 16 * 3600
#: What another region took in is gathered for so many seconds.
INTAKE_SECONDS = 5


@dataclass(slots=True)
class PoolResult:
    #: Histograms of waits, see :class:`Waits`.
    by_time: Counts
    by_tier: Counts
    #: Workers, those that start included, on average of every five minutes.
    workers: list[float]
    worker_seconds: float
    #: Slot-seconds by tier in saturated periods: entitled to, and how far off.
    entitled: list[float]
    off: list[float]
    share_periods: int
    succeeded: int
    dead: int
    unfinished: int
    failures: dict[str, int]


@dataclass(slots=True)
class CellResult:
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
    def __init__(self, world: World, number: int) -> None:
        self._scenario = scenario = world.scenario
        self._cell = cell = world.cells[number]
        self._is_lost = number == world.lost and scenario.lost_seconds > 0
        self._chance = np.random.Generator(np.random.PCG64([scenario.seed, number]))
        self._dice = dice = Random(f"{scenario.seed} {number}")
        kinds = {pool: [kind for kind in KINDS if kind.pool == pool] for pool in POOL_NAMES}
        self._shares = {pool: np.array([kind.share for kind in own]) for pool, own in kinds.items()}
        called = sum(kind.share for kind in KINDS if kind.dependency == "model")
        quota = max(1.0, 60 * cell.rate * called * scenario.quota_share)
        self._dependencies = Dependencies(model=Dependency("model", quota))
        first = level(scenario, scenario.begin_second) * cell.rate
        span = (scenario.begin_second, scenario.end_second)
        self._pools = {
            pool: PoolSimulation(
                *(pool, own, cell.tenants, self._dependencies),
                Workers(pool, scenario, first * sum(kind.share * kind.seconds for kind in own)),
                *(Waits(*span), self._chance, dice),
            )
            for pool, own in kinds.items()
        }
        self._floods = {
            place: SubmissionRate(one.tier, len(one.cells), dice)
            for place, one in enumerate(cell.tenants)
            if one.floods
        }
        self._noise: Floats = np.ones(len(cell.tenants))
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
        away_since = second - PEAK_SECOND
        away = 0 <= away_since < self._scenario.lost_seconds
        if second % NOISE_SECONDS == 0:
            drawn = self._chance.normal(0.0, NOISE, len(self._noise))
            self._noise = np.exp(drawn - NOISE**2 / 2)
        usual = self._cell.rates_after_loss if away else self._cell.rates
        rates = usual * self._noise * level(self._scenario, second)
        if self._is_lost and away:
            self._be_away(second, rates, first=away_since == 0)
            return
        if self._is_lost and away_since == self._scenario.lost_seconds:
            self._return(float(second))
        self._work(second, rates)

    def _work(self, second: int, rates: Floats) -> None:
        now = float(second)
        self._dependencies.begin_second(now)
        outage = 0 <= second - OUTAGE_BEGIN < self._scenario.outage_seconds
        rates = rates * self._accepted(float(rates.sum()))
        given = self._flood(second)
        self._hand_over(float(rates.sum()))
        bucket = second - self._scenario.begin_second // BUCKET_SECONDS * BUCKET_SECONDS
        bucket //= BUCKET_SECONDS
        for name, pool in self._pools.items():
            pool.workers.begin_second(now)
            pool.runs.outage = outage
            arrived = pool.advance(now, np.outer(rates, self._shares[name]), given[name])
            self.result.arrived += arrived - int(given[name].sum())
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
        tenants = len(self._cell.tenants)
        given = {
            name: np.zeros((tenants, len(own)), np.int64) for name, own in self._shares.items()
        }
        if not 0 <= second - FLOOD_BEGIN < FLOOD_SECONDS:
            return given
        shares = np.array([kind.share for kind in KINDS])
        for place, rate in self._floods.items():
            submitted = int(self._chance.poisson(FLOOD_PER_SECOND))
            passed = rate.admit(float(second), submitted)
            self.result.arrived += submitted
            self.result.refused["rate"] += submitted - passed
            drawn = self._chance.multinomial(passed, shares / shares.sum())
            begin = 0
            for name, own in self._shares.items():
                given[name][place] = drawn[begin : begin + len(own)]
                begin += len(own)
        return given

    # The loss of the cell

    def _be_away(self, second: int, rates: Floats, *, first: bool) -> None:
        """Another region takes in what is submitted; nothing is dispatched."""
        if first:
            for name, pool in self._pools.items():
                before = pool.runs.busy
                self._lost[name] = pool.lose(float(second))
                self.result.lost_runs += before
        if second % INTAKE_SECONDS:
            return
        taken = {
            name: self._chance.poisson(INTAKE_SECONDS * np.outer(rates, own))
            for name, own in self._shares.items()
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
                for tenant, kind in zip(*np.nonzero(counts), strict=True):
                    many = int(counts[tenant, kind])
                    batch = Batch(at, int(tenant), int(kind), many, why=Why.CELL)
                    self._pools[name].put(batch)
                    jobs += many
            self.result.intake -= jobs
            self._room -= jobs

    def _note_recovery(self, now: float) -> None:
        """Once no job waits for a slot, the loss is over."""
        if any(pool.ready or pool.runs.waiting for pool in self._pools.values()):
            return
        assert self._back_at is not None
        self.result.recovered_seconds = now - self._back_at
        self._back_at = None
        for pool in self._pools.values():
            pool.why = Why.SLOT

    def finish(self) -> CellResult:
        """What happened until now."""
        for name, pool in self._pools.items():
            lost = sum(batch.jobs for batch in self._lost.get(name, ()))
            self.result.pools[name] = PoolResult(
                by_time=pool.waits.by_time,
                by_tier=pool.waits.by_tier,
                workers=self._workers[name],
                worker_seconds=pool.workers.worker_seconds,
                entitled=pool.shares.entitled.tolist(),
                off=pool.shares.off.tolist(),
                share_periods=pool.shares.periods,
                succeeded=pool.runs.succeeded,
                dead=pool.failures.dead,
                unfinished=pool.unfinished + lost,
                failures=dict(pool.failures.by_class),
            )
        self.result.circuit_opened = self._dependencies["model"].opened
        return self.result
