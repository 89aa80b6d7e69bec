"""The simulated world: kinds of jobs, ten thousand tenants, a day, and the cells they live in."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache

import numpy as np
from numpy.typing import NDArray

from app.policy.fairshare import Tier
from app.policy.placement import score
from models.pools import POOLS

Floats = NDArray[np.float64]
Counts = NDArray[np.int64]

DAY_SECONDS = 86_400
PEAK_SECOND = 14 * 3600
#: The day: a level at night, a working day around noon, and a peak on top of both.
NIGHT, WORKING_DAY, NOON_HOUR, NOON_HOURS = 0.03, 0.09, 13.0, 4.0
#: A tenant's demand moves by this much (standard deviation of the logarithm) from minute to minute.
NOISE = 0.3
NOISE_SECONDS = 60
#: Ranks up to which a tenant has the tier; the rest are free accounts.
RANKS = {Tier.ENTERPRISE: 0.002, Tier.PRO: 0.05, Tier.STANDARD: 0.4, Tier.FREE: 1.0}
TIERS = tuple(Tier)
#: A sudden rise lasts so long.
SURGE_SECONDS = 300


@dataclass(frozen=True, slots=True)
class JobKind:
    """Jobs of one type."""

    name: str
    pool: str
    #: Mean run time; run times are exponential.
    seconds: float
    #: Of all jobs.
    share: float
    dependency: str = ""


#: Run times 1 : 1000; 93 %, 6.5 % and 0.5 % of the jobs in the three pools.
KINDS = (
    JobKind("notify", "short", 0.04, 0.55),
    JobKind("render", "short", 0.15, 0.30),
    JobKind("import", "short", 0.4, 0.08),
    JobKind("score", "medium", 1.5, 0.045, dependency="model"),
    JobKind("enrich", "medium", 4.0, 0.02),
    JobKind("report", "long", 10.0, 0.004),
    JobKind("train", "long", 40.0, 0.001),
)
POOL_NAMES = tuple(dict.fromkeys(kind.pool for kind in KINDS))
OBJECTIVES = {pool: POOLS[pool].objective_seconds for pool in POOL_NAMES}

#: What the operators of this deployment have set. The defaults keep slots free in ``short`` alone
#: and remove a worker every 5 or 30 minutes: enough for tens of workers, not for thousands.
SCALE_POLICY: Mapping[str, Mapping[str, float]] = {
    "short": {"quiet_seconds": 60.0},
    "medium": {"quiet_seconds": 45.0, "headroom": 0.2},
    "long": {"quiet_seconds": 20.0, "headroom": 0.2, "low": 0.7},
}
SCALE_MIN: Mapping[str, int] = {"short": 2, "medium": 4, "long": 8}
SCALE_MAX: Mapping[str, int] = dict.fromkeys(POOL_NAMES, 100_000)


def slot_seconds(pool: str) -> float:
    """Of a job on average, as far as it runs in this pool."""
    return sum(kind.share * kind.seconds for kind in KINDS if kind.pool == pool)


@dataclass(frozen=True, slots=True)
class Scenario:
    """One run."""

    seed: int = 1
    jobs_per_day: float = 2e9
    peak_per_second: float = 150_000.0
    tenants: int = 10_000
    cells: int = 30
    #: Demand of a tenant is its rank to the power of minus this.
    skew: float = 1.2
    #: A tenant with more than this part of a cell's load lives in several.
    spread_share: float = 0.1
    #: Times the load of the day.
    load: float = 1.0
    #: Times the load for five minutes from the peak on, from one second to the next.
    surge: float = 1.0
    #: From the decision to a worker that takes jobs.
    boot_seconds: float = 90.0
    #: What a statement of a dispatch takes the scheduler, besides the jobs.
    pass_seconds: float = 0.002
    #: Jobs per second that the engines of a cell take; others are answered with 503.
    cell_limit: float = 10_000.0
    #: The quota of the dependency, as a part of what would be called at the peak.
    quota_share: float = 1.05
    #: One cell is lost at the peak for so long; 0: none.
    lost_seconds: int = 600
    #: The dependency fails for so long from 16:00 on.
    outage_seconds: int = 300
    #: Tenants of tier standard that submit 300 jobs per second for half an hour from 10:00 on.
    floods: int = 10
    #: Settings of the autoscaler in each cell, see ``docs/scaling.md``.
    scale_min: Mapping[str, int] = field(default_factory=lambda: SCALE_MIN)
    scale_max: Mapping[str, int] = field(default_factory=lambda: SCALE_MAX)
    scale_policy: Mapping[str, Mapping[str, float]] = field(default_factory=lambda: SCALE_POLICY)
    begin_second: int = 0
    end_second: int = DAY_SECONDS


@dataclass(frozen=True, slots=True)
class Tenant:
    number: int
    tier: Tier
    #: Jobs per second at the peak, in all cells.
    rate: float
    #: Where it lives.
    cells: tuple[int, ...]
    floods: bool = False


@dataclass(frozen=True, slots=True)
class Cell:
    """The tenants of one cell and their jobs per second at the peak."""

    number: int
    tenants: tuple[Tenant, ...]
    rates: Floats
    #: The same while the lost cell is away: tenants that live in several use their others. Of the
    #: lost one itself: those that wait for it.
    rates_after_loss: Floats

    @property
    def rate(self) -> float:
        return float(self.rates.sum())


@dataclass(frozen=True, slots=True)
class World:
    scenario: Scenario
    cells: tuple[Cell, ...]
    #: The cell that is lost.
    lost: int

    @property
    def by_load(self) -> list[int]:
        """The cells, those with the most jobs per second first, without the one that is lost."""
        others = [cell for cell in self.cells if cell.number != self.lost]
        return [cell.number for cell in sorted(others, key=lambda cell: -cell.rate)]

    @property
    def fullest(self) -> int:
        return self.by_load[0]

    def sample(self, count: int) -> list[int]:
        """So many cells: the lost one, the fullest, the emptiest and others between them."""
        order = self.by_load
        if count > len(order):
            return sorted([self.lost, *order])
        picked = [order[round(step * (len(order) - 1) / (count - 2))] for step in range(count - 1)]
        return sorted([self.lost, *picked])


@cache
def day_curve(jobs_per_peak: float) -> Floats:
    """The load of each second, 1 at the peak, that adds up to so many seconds of the peak."""
    hours = (np.arange(DAY_SECONDS) + 0.5) / 3600
    peak_hour = PEAK_SECOND / 3600

    def bump(at: float, width: float) -> Floats:
        return np.asarray(np.exp(-(((hours - at) / width) ** 2) / 2), dtype=np.float64)

    base = NIGHT + WORKING_DAY * bump(NOON_HOUR, NOON_HOURS)
    height = 1.0 - float(base[PEAK_SECOND])
    low, high = 0.01, 24.0
    for _ in range(60):
        width = (low + high) / 2
        total = float((base + height * bump(peak_hour, width)).sum())
        low, high = (width, high) if total < jobs_per_peak else (low, width)
    return np.minimum(1.0, base + height * bump(peak_hour, low))


def level(scenario: Scenario, second: int) -> float:
    """The load of a second as a part of the peak's."""
    curve = day_curve(scenario.jobs_per_day / scenario.peak_per_second)
    surging = 0 <= second - PEAK_SECOND < SURGE_SECONDS
    return float(curve[second % DAY_SECONDS]) * scenario.load * (scenario.surge if surging else 1.0)


def build(scenario: Scenario) -> World:
    """Tenants with their tiers and cells; the lost cell is one of middling size."""
    cells, peak = scenario.cells, scenario.peak_per_second
    tenants = make_tenants(
        scenario.tenants, cells, peak, scenario.skew, scenario.spread_share, scenario.floods
    )
    rates = [0.0] * cells
    for tenant in tenants:
        for cell in tenant.cells:
            rates[cell] += tenant.rate / len(tenant.cells)
    lost = sorted(range(cells), key=lambda cell: (rates[cell], cell))[cells // 2]
    return World(scenario, tuple(make_cell(number, tenants, lost) for number in range(cells)), lost)


@cache
def make_tenants(
    count: int, cells: int, peak: float, skew: float, spread_share: float, floods: int
) -> tuple[Tenant, ...]:
    demands = [rank**-skew for rank in range(1, count + 1)]
    scale = peak / math.fsum(demands)
    most = spread_share * peak / cells
    first_standard = int(RANKS[Tier.PRO] * count)
    return tuple(
        Tenant(
            number,
            tier_of((number + 1) / count),
            demand * scale,
            places(f"tenant-{number}", cells, min(cells, max(1, math.ceil(demand * scale / most)))),
            floods=first_standard <= number < first_standard + floods,
        )
        for number, demand in enumerate(demands)
    )


def tier_of(rank: float) -> Tier:
    return next(tier for tier, last in RANKS.items() if rank <= last)


def places(name: str, cells: int, count: int) -> tuple[int, ...]:
    """The cells of a tenant: those that a placement over all cells would prefer for its name."""

    def preference(cell: int) -> float:
        return score(f"cell-{cell}", 1.0, name.encode())

    return tuple(sorted(sorted(range(cells), key=preference, reverse=True)[:count]))


def make_cell(number: int, tenants: Sequence[Tenant], lost: int) -> Cell:
    here = tuple(tenant for tenant in tenants if number in tenant.cells)
    usual = [tenant.rate / len(tenant.cells) for tenant in here]
    after = [rate_after_loss(tenant, number, lost) for tenant in here]
    return Cell(number, here, np.array(usual), np.array(after))


def rate_after_loss(tenant: Tenant, cell: int, lost: int) -> float:
    """What a tenant sends to one of its cells while another is lost."""
    others = set(tenant.cells) - {lost}
    if cell == lost:
        return 0.0 if others else tenant.rate
    return tenant.rate / len(others)
