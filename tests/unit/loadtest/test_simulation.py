"""The simulated day: it adds up, it is the same for the same seed, and objectives are kept."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import numpy as np
import pytest

from app.policy.fairshare import Tier
from loadtest.simulation.admission import SubmissionRate
from loadtest.simulation.breaking import fullest, saturated
from loadtest.simulation.cell import OUTAGE_BEGIN, CellSimulation
from loadtest.simulation.outcome import Outcome, simulate
from loadtest.simulation.report import MOST_SHARE_ERROR, Found, judge
from loadtest.simulation.waits import BUCKET_SECONDS, Waits, Why, quantile
from loadtest.simulation.world import (
    DAY_SECONDS,
    KINDS,
    PEAK_SECOND,
    POOL_NAMES,
    TIERS,
    Scenario,
    build,
    level,
)

#: Minutes around the peak; another cell is lost in the middle of them.
PEAK = Scenario(begin_second=PEAK_SECOND - 120, end_second=PEAK_SECOND + 120)
#: Two cells of some hundred tenants.
SMALL = Scenario(
    jobs_per_day=4e6,
    peak_per_second=300.0,
    tenants=200,
    cells=2,
    begin_second=PEAK_SECOND - 60,
    end_second=PEAK_SECOND + 300,
    lost_seconds=60,
)


@pytest.fixture(scope="module")
def peak() -> Outcome:
    return fullest(PEAK)


def test_a_day_has_two_billion_jobs_of_ten_thousand_tenants_and_its_peak() -> None:
    world = build(Scenario())
    levels = [level(world.scenario, second) for second in range(DAY_SECONDS)]
    assert sum(levels) * 150_000 == pytest.approx(2e9, rel=0.001)
    assert max(levels) == pytest.approx(1.0, abs=1e-6)
    assert sum(cell.rate for cell in world.cells) == pytest.approx(150_000)
    tenants = {tenant.number: tenant for cell in world.cells for tenant in cell.tenants}
    assert len(tenants) == 10_000 and {one.tier for one in tenants.values()} == set(Tier)
    assert len(tenants[0].cells) == 30 and len(tenants[9_999].cells) == 1
    lengths = [kind.seconds for kind in KINDS]
    assert max(lengths) / min(lengths) == pytest.approx(1000)
    assert sum(kind.share for kind in KINDS) == pytest.approx(1.0)


def test_a_lost_cell_sends_large_tenants_to_their_others_and_keeps_the_rest() -> None:
    world = build(Scenario())
    kept = sum(float(cell.rates_after_loss.sum()) for cell in world.cells)
    assert kept == pytest.approx(150_000)
    lost = world.cells[world.lost]
    waiting = [rate for rate in lost.rates_after_loss if rate > 0]
    assert 0 < sum(waiting) < lost.rate


def test_objectives_are_kept_in_the_fullest_cell_at_the_peak(peak: Outcome) -> None:
    assert peak.missed() == []
    assert judge(Found(peak)).passed
    assert peak.arrived > 1_500_000


def test_every_arrival_of_the_peak_is_refused_under_way_or_ended(peak: Outcome) -> None:
    assert peak.balanced
    assert peak.ended("succeeded") > 0.99 * peak.arrived


def test_a_simulated_cell_stands_for_others_and_the_lost_one_for_itself(peak: Outcome) -> None:
    [cell] = peak.cells
    assert peak.stands_for(cell) * cell.rate == pytest.approx(150_000)
    number = peak.world.lost
    lost = replace(cell, number=number, rate=peak.world.cells[number].rate)
    both = Outcome(peak.world, (cell, lost))
    assert both.stands_for(lost) == 1.0
    assert both.stands_for(cell) * cell.rate + lost.rate == pytest.approx(150_000)
    assert both.arrivals()[0] == pytest.approx(
        (both.stands_for(cell) + 1.0) * cell.arrivals[0] / BUCKET_SECONDS
    )


def test_an_objective_that_is_missed_is_seen() -> None:
    hopeless = replace(SMALL, surge=5.0, boot_seconds=3600.0, end_second=PEAK_SECOND + 30)
    missed = fullest(hopeless)
    assert missed.missed() and not judge(Found(missed)).passed


def test_the_same_seed_gives_the_same_bytes_however_many_processes_work() -> None:
    short = replace(SMALL, end_second=PEAK_SECOND + 60)
    first = simulate(short, [0, 1], 1).text()
    assert simulate(short, [0, 1], 2).text() == first
    assert simulate(replace(short, seed=2), [0, 1], 1).text() != first


def test_nothing_is_lost_or_doubled_while_a_cell_is_away_and_after_its_return() -> None:
    world = build(SMALL)
    cell = CellSimulation(world, world.lost)
    for second in range(SMALL.begin_second, SMALL.end_second):
        cell.advance(second)
        if second % 3:
            continue
        result = cell.finish()
        assert result.arrived == result.accounted, second
        assert (result.intake > 0) == (0 <= second - PEAK_SECOND < 60)
    assert result.lost_runs > 0 and result.recovered_seconds is not None
    late = sum(int(result.pools[pool].by_tier[:, Why.CELL].sum()) for pool in POOL_NAMES)
    assert late > 0


def test_a_dependency_that_fails_opens_its_circuit_and_loses_nothing() -> None:
    span = replace(SMALL, begin_second=OUTAGE_BEGIN - 30, end_second=OUTAGE_BEGIN + 400)
    outcome = simulate(replace(span, outage_seconds=120), [0, 1], 1)
    assert outcome.balanced
    assert all(cell.circuit_opened >= 1 for cell in outcome.cells)
    failed = outcome.failures()["DEPENDENCY"]
    called = 0.045 * outcome.arrived
    assert 0 < failed < 0.2 * called


def test_slots_of_a_saturated_cell_go_by_weight() -> None:
    small = Scenario(jobs_per_day=2e7, peak_per_second=1500.0, tenants=200, cells=2)
    crowded = saturated(small, seconds=100)
    assert crowded.balanced
    for tier in range(len(TIERS)):
        entitled, off = crowded.share("entitled", tier), crowded.share("off", tier)
        assert entitled is not None and off is not None
        assert off <= MOST_SHARE_ERROR
        assert off <= 0.1 * entitled + 0.003


def test_a_flood_passes_at_the_rate_of_its_tier() -> None:
    rate = SubmissionRate(Tier.STANDARD, 1, Random(1))
    passed = sum(rate.admit(float(second), 300) for second in range(60))
    assert 0.9 * 6000 <= passed <= 100 * 60 + 100


def test_waits_are_counted_once_and_a_quantile_is_never_too_low() -> None:
    waits = Waits(0, 600)
    waits.add_at_once(10.0, np.array([3, 0, 7, 1]))
    waits.add(10.0, 0, Why.SLOT, 2.0, 89)
    waits.add(10.0, 0, Why.HELD, 100.0, 5)
    waits.flush()
    assert waits.by_time.sum() == 100 and waits.by_tier.sum() == 105
    assert 2.0 <= quantile(waits.by_time[0], 0.5) <= 2.2
    assert quantile(waits.by_time[0], 0.1) < 0.1
    assert quantile(np.zeros_like(waits.by_time[0]), 0.99) == 0.0
