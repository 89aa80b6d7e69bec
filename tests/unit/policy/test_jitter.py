"""Jitter: far times move by a minute at most, near ones and those of who opts out not at all."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from app.policy.jitter import JITTER_SECONDS, NEAR_SECONDS, jittered_time

NOW = datetime(2030, 1, 1, tzinfo=UTC)
MINUTE = timedelta(seconds=JITTER_SECONDS)

chances = st.integers().map(Random)
far = st.floats(NEAR_SECONDS + 1e-3, 3e9).map(lambda seconds: NOW + timedelta(seconds=seconds))
near = st.floats(-3e9, NEAR_SECONDS).map(lambda seconds: NOW + timedelta(seconds=seconds))


@given(execute_at=far, chance=chances)
def test_far_time_moves_by_a_minute_at_most_and_stays_ahead(
    execute_at: datetime, chance: Random
) -> None:
    moved = jittered_time(execute_at, NOW, chance)
    assert moved is not None
    assert abs(moved - execute_at) <= MINUTE
    assert moved > NOW


@given(execute_at=near, chance=chances)
def test_near_time_is_meant_as_it_is(execute_at: datetime, chance: Random) -> None:
    assert jittered_time(execute_at, NOW, chance) == execute_at


@given(execute_at=far | near | st.none(), chance=chances)
def test_who_opts_out_gets_the_very_time(execute_at: datetime | None, chance: Random) -> None:
    assert jittered_time(execute_at, NOW, chance, jitter=False) == execute_at


def test_no_time_stays_no_time() -> None:
    assert jittered_time(None, NOW, Random(1)) is None


@given(execute_at=far, window=st.floats(0, 10_000), chance=chances)
def test_jitter_leaves_half_of_a_window_at_least(
    execute_at: datetime, window: float, chance: Random
) -> None:
    not_after = execute_at + timedelta(seconds=window)
    moved = jittered_time(execute_at, NOW, chance, not_after=not_after)
    assert moved is not None
    assert execute_at - MINUTE <= moved <= execute_at + min(MINUTE, (not_after - execute_at) / 2)


def test_thousand_jobs_of_one_full_hour_spread_evenly_over_two_minutes() -> None:
    execute_at, chance = NOW + timedelta(hours=8), Random(7)
    moves = [
        (moved - execute_at).total_seconds()
        for _ in range(12_000)
        if (moved := jittered_time(execute_at, NOW, chance)) is not None
    ]
    tenths = [0] * 12
    for move in moves:
        tenths[int((move + JITTER_SECONDS) // 10)] += 1
    assert all(880 <= count <= 1120 for count in tenths), tenths
