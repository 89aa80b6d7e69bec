"""What breaks first: one thing is made worse step by step until an objective is missed."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace

from loadtest.simulation.outcome import Outcome, simulate
from loadtest.simulation.waits import BUCKET_SECONDS
from loadtest.simulation.world import PEAK_SECOND, POOL_NAMES, Scenario, build, slot_seconds
from models.pools import POOLS

#: From so long before the peak, and until so long after it.
BEFORE_SECONDS, AFTER_SECONDS = 900, 600
#: Slow starts of workers show while the load rises.
RISE_SECONDS = 5400
#: Part of the slots needed at the peak that a saturated cell has.
SATURATED = 0.6


@dataclass(frozen=True, slots=True)
class Trial:
    """The fullest cell around the peak, with one thing changed."""

    value: float
    #: p99 of each pool, and jobs per second in the busiest five minutes.
    p99: dict[str, float]
    busiest: float
    #: Pools whose objective is missed.
    missed: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Ladder:
    """The trials of one change, in order; the last one missed an objective, if any did."""

    name: str
    unit: str
    #: Jobs per second that the engines of a cell are taken to bear.
    limit: float
    trials: tuple[Trial, ...]

    @property
    def held(self) -> Trial | None:
        """The last that missed nothing."""
        return next((one for one in reversed(self.trials) if not one.missed), None)

    @property
    def broke(self) -> Trial | None:
        return next((one for one in self.trials if one.missed), None)

    @property
    def overloaded(self) -> Trial | None:
        """The first that the engines do not bear."""
        return next((one for one in self.trials if one.busiest > self.limit), None)


@dataclass(frozen=True, slots=True)
class Change:
    """One thing that is made worse, with the values that are tried in turn."""

    name: str
    unit: str
    values: Sequence[float]
    apply: Callable[[Scenario, float], Scenario]
    #: How long before the peak a trial begins.
    before_seconds: int = BEFORE_SECONDS


def with_load(scenario: Scenario, value: float) -> Scenario:
    return replace(scenario, load=value)


def with_surge(scenario: Scenario, value: float) -> Scenario:
    return replace(scenario, surge=value)


def with_boot(scenario: Scenario, value: float) -> Scenario:
    return replace(scenario, boot_seconds=value)


def with_slow_statements(scenario: Scenario, value: float) -> Scenario:
    return replace(scenario, pass_seconds=value / 1000)


def with_fewer_cells(scenario: Scenario, value: float) -> Scenario:
    return replace(scenario, cells=scenario.cells - int(value))


CHANGES = (
    Change("load of the whole day", "×", (1, 1.25, 1.5, 2, 3), with_load),
    Change("a sudden rise at the peak", "×", (1.1, 1.2, 1.35, 1.5, 2), with_surge),
    Change("time until a worker runs", "s", (90, 720, 1440, 2880), with_boot, RISE_SECONDS),
    Change("a statement of the scheduler", "ms", (2, 4, 8, 16), with_slow_statements),
    Change("cells removed for good", "cells", (0, 4, 8, 12), with_fewer_cells),
)


def around_peak(scenario: Scenario, before_seconds: int = BEFORE_SECONDS) -> Scenario:
    return replace(
        scenario,
        begin_second=PEAK_SECOND - before_seconds,
        end_second=PEAK_SECOND + AFTER_SECONDS,
    )


def fullest(scenario: Scenario) -> Outcome:
    return simulate(scenario, [build(scenario).fullest], processes=1)


def climb(scenario: Scenario, number: int) -> Ladder:
    """Try one value after the other until an objective is missed; engines bear any load here."""
    change = CHANGES[number]
    trials: list[Trial] = []
    for value in change.values:
        changed = around_peak(change.apply(scenario, value), change.before_seconds)
        outcome = fullest(replace(changed, cell_limit=math.inf))
        p99 = {pool: outcome.start(pool, 0.99) for pool in POOL_NAMES}
        [cell] = outcome.cells
        busiest = max(cell.arrivals) / BUCKET_SECONDS
        trials.append(Trial(value, p99, busiest, tuple(outcome.missed())))
        if outcome.missed():
            break
    return Ladder(change.name, change.unit, scenario.cell_limit, tuple(trials))


def ladders(scenario: Scenario) -> list[Ladder]:
    numbers = range(len(CHANGES))
    with ProcessPoolExecutor(min(os.cpu_count() or 1, len(numbers))) as executor:
        return list(executor.map(climb, [scenario] * len(numbers), numbers))


def saturated(scenario: Scenario, seconds: int = 600) -> Outcome:
    """The fullest cell with too few workers for the peak: who gets the slots."""
    cell = build(scenario).cells[build(scenario).fullest]
    most = {}
    for pool in POOL_NAMES:
        needed = cell.rate * slot_seconds(pool)
        most[pool] = max(1, int(SATURATED * needed / POOLS[pool].slots))
    crowded = replace(
        scenario,
        scale_min=dict.fromkeys(most, 1),
        scale_max=most,
        scale_policy={},
        begin_second=PEAK_SECOND - seconds // 2,
        end_second=PEAK_SECOND - seconds // 2 + seconds,
        lost_seconds=0,
    )
    return simulate(crowded, [cell.number], processes=1)
