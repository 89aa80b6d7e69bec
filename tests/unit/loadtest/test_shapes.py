"""Shapes of load and the clock that deals out their arrivals."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest.shapes import (
    NAMED,
    ArrivalClock,
    BadShape,
    Stretch,
    arrival_times,
    forever,
    highest,
    level_at,
    parse,
    ramp,
    share,
    soak,
    spike,
    steps,
    total_seconds,
    written,
)

LEVELS = st.one_of(st.just(0.0), st.floats(0.001, 20.0))
STRETCHES = st.builds(Stretch, st.floats(0.001, 10.0), LEVELS, LEVELS)
SHAPES = st.lists(STRETCHES, min_size=1, max_size=5)
#: Sums of floats.
TINY = 1e-6


def area(shape: Sequence[Stretch], end: float) -> float:
    """Arrivals up to a second, by adding up thin slices: nothing of the code under test."""
    slices = 500
    width = end / slices
    return math.fsum(level_at(shape, (n + 0.5) * width) * width for n in range(slices))


@given(SHAPES)
def test_arrivals_ascend_inside_the_stretches_and_are_as_many_as_the_area(
    shape: list[Stretch],
) -> None:
    times = list(arrival_times(shape))
    wanted = math.fsum((each.begin + each.end) / 2 * each.seconds for each in shape)
    assert abs(len(times) - wanted) <= 0.5 + TINY
    assert all(later >= earlier for earlier, later in itertools.pairwise(times))
    assert all(0 <= at <= total_seconds(shape) + TINY for at in times)


@given(st.lists(st.builds(Stretch, st.floats(1, 10), LEVELS, LEVELS), min_size=1, max_size=3))
def test_every_arrival_is_due_when_the_area_before_it_says_so(shape: list[Stretch]) -> None:
    times = list(arrival_times(shape))
    for number in {0, len(times) // 2, len(times) - 1} if times else ():
        # Slices that straddle a jump between two stretches are off by up to one slice.
        slack = 0.02 + len(shape) * highest(shape) * times[number] / 500
        assert area(shape, times[number]) == pytest.approx(number + 0.5, abs=slack)


@given(SHAPES)
def test_a_shape_survives_its_text(shape: list[Stretch]) -> None:
    assert parse(written(shape)) == shape


@given(SHAPES, st.floats(0, 1))
def test_the_level_is_between_the_ends_of_its_stretch(shape: list[Stretch], where: float) -> None:
    second = where * total_seconds(shape) * (1 - TINY)
    level = level_at(shape, second)
    low = min(min(each.begin, each.end) for each in shape)
    assert low - TINY <= level <= highest(shape) + TINY
    assert level_at(shape, total_seconds(shape) + TINY) == level_at(shape, -1) == 0


@given(SHAPES, st.integers(1, 4))
def test_the_parts_of_a_clock_deal_every_arrival_once(shape: list[Stretch], parts: int) -> None:
    clocks = [ArrivalClock(shape, 100.0, part, parts) for part in range(parts)]
    dealt = [list(iter(clock.take, None)) for clock in clocks]
    assert sorted(itertools.chain(*dealt)) == [100.0 + at for at in arrival_times(shape)]
    assert max(map(len, dealt)) - min(map(len, dealt)) <= 1
    assert all(clock.is_over for clock in clocks)


@given(st.floats(0, 10_000), st.integers(1, 8))
def test_parts_of_a_level_are_whole_and_nearly_equal(level: float, parts: int) -> None:
    shares = [share(level, part, parts) for part in range(parts)]
    assert sum(shares) == round(level)
    assert max(shares) - min(shares) <= 1


def test_a_clock_names_the_starts_that_nobody_came_for() -> None:
    clock = ArrivalClock(steps([2], 10), begin=50.0)
    assert clock.take() == 50.25
    assert list(clock.missed(51.0)) == [50.75]
    assert clock.take() == 51.25
    assert not clock.is_over


def test_steps_ramp_spike_and_soak_are_written_as_one_would() -> None:
    assert written(steps([2, 4, 6.6], 20)) == "2:20,4:20,6.6:20"
    assert written(ramp(0, 100, 30)) == "0-100:30"
    assert written(spike(5, 50, 20, 2.5)) == "5:20,50:2.5,5:20"
    assert written(soak(4.667, 1800)) == "4.667:1800"
    assert parse(" 2:20, 0-8:30 ") == [Stretch(20, 2, 2), Stretch(30, 0, 8)]


def test_a_steady_rate_gives_equal_pauses_and_exactly_so_many() -> None:
    times = list(arrival_times(steps([10, 20], 1)))
    assert len(times) == 30
    assert times[:3] == pytest.approx([0.05, 0.15, 0.25])
    assert times[10:13] == pytest.approx([1.025, 1.075, 1.125])


def test_a_rate_without_an_end_goes_on_but_has_no_text() -> None:
    assert next(itertools.islice(arrival_times(forever(4)), 1000, None)) == pytest.approx(250.125)
    assert list(arrival_times(forever(0))) == []
    with pytest.raises(BadShape, match="without an end"):
        written(forever(4))


@pytest.mark.parametrize("name", NAMED)
def test_named_shapes_stay_within_their_level(name: str) -> None:
    shape = NAMED[name](40)
    assert 0 < highest(shape) <= 40
    assert total_seconds(shape) >= 60


@pytest.mark.parametrize(
    "text", ["", "2", "2:", ":20", "2:20,", "-2:20", "2-:20", "1e3:20", "2:20;4:20", "a:20", "2:0"]
)
def test_a_text_that_is_no_shape_is_refused_in_words(text: str) -> None:
    with pytest.raises(BadShape, match=r"is no stretch: level:seconds|lasts longer than 0 s"):
        parse(text)


def test_stretches_that_cannot_be_are_refused() -> None:
    for seconds, begin, end in ((0, 1, 1), (-1, 1, 1), (1, -1, 1), (math.nan, 1, 1)):
        with pytest.raises(BadShape):
            Stretch(seconds, begin, end)
    with pytest.raises(BadShape):
        Stretch(1, math.inf, 1)
    with pytest.raises(BadShape):
        Stretch(math.inf, 1, 2)
