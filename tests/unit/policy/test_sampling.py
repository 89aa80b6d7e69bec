"""What goes on for ever is recorded less and less, and nothing of it is left out of the count."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from app.policy.sampling import FIRST_SECONDS, MOST_SECONDS, SampledCount


def records_of(arrivals: list[int]) -> list[tuple[int, int]]:
    """Second and number of each record, if so many arrive in each second."""
    sampled, records = SampledCount(), []
    for now, arrived in enumerate(arrivals):
        for _ in range(arrived):
            sampled.add()
        if sampled.is_due(float(now)):
            records.append((now, sampled.count))
            sampled.record(float(now), sampled.count)
    return records


def test_a_flood_of_a_day_is_about_a_hundred_records() -> None:
    records = records_of([3] * 86_400)
    assert records[:4] == [(0, 3), (1, 3), (3, 6), (7, 12)]
    assert 90 < len(records) < 120


def test_after_a_calm_the_next_one_is_recorded_at_once() -> None:
    records = records_of([1] * 100 + [0] * 4_000 + [1])
    assert records[-1] == (4_100, records[-1][1])


@given(st.lists(st.integers(0, 5), max_size=500))
def test_every_one_is_counted_once_and_no_two_records_are_within_a_second(
    arrivals: list[int],
) -> None:
    calm = [0] * int(2 * MOST_SECONDS)
    records = records_of(arrivals + calm)
    assert sum(number for _, number in records) == sum(arrivals)
    times = [at for at, _ in records]
    assert all(later - earlier >= FIRST_SECONDS for earlier, later in pairwise(times))


def test_only_the_first_since_the_last_record_is_described() -> None:
    sampled = SampledCount()
    assert [sampled.add(), sampled.add()] == [True, False]
    sampled.record(0.0, 2)
    assert sampled.add()
