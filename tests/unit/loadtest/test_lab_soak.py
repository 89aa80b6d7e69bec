"""Flatness, as the soak judges it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from loadtest.figures import together
from loadtest.lab.experiment import Size
from loadtest.lab.soak import curves as size_curves
from loadtest.lab.soak.verdict import (
    JUDGED,
    MOST_POINTS,
    PLANS,
    Soak,
    bars,
    by_third,
    findings,
    grown_bar,
    growth,
    growths,
    slope,
    tail_by_bucket,
)
from loadtest.lab.submissions import Point, Submissions
from loadtest.users.wire import Arrival

values = st.floats(min_value=-1e6, max_value=1e6)
curves = st.lists(values, min_size=2, max_size=60).map(
    lambda found: [(5.0 * n, value) for n, value in enumerate(found)]
)


def line(rise: float, level: float, count: int) -> list[Point]:
    return [(5.0 * n, level + rise * 5.0 * n) for n in range(count)]


@given(rise=st.floats(-100, 100), level=values, count=st.integers(2, 2 * MOST_POINTS))
def test_slope_of_a_line_is_its_slope(rise: float, level: float, count: int) -> None:
    assert slope(line(rise, level, count)) == pytest.approx(rise, abs=1e-6)


@given(
    rise=st.floats(-100, 100),
    count=st.integers(10, 60),
    strange=st.lists(st.tuples(st.integers(0, 59), values), max_size=12),
)
def test_a_fifth_of_strange_points_does_not_move_the_slope(
    rise: float, count: int, strange: list[tuple[int, float]]
) -> None:
    points = line(rise, 100.0, count)
    assume(len({place for place, _ in strange}) <= count // 5)
    for place, value in strange:
        if place < count:
            points[place] = (points[place][0], value)

    assert slope(points) == pytest.approx(rise, abs=1e-6)


@given(points=curves, lift=values)
def test_growth_does_not_depend_on_where_a_curve_begins(points: list[Point], lift: float) -> None:
    lifted = growth([(at, value + lift) for at, value in points])

    assert lifted.grown == pytest.approx(growth(points).grown, abs=1e-6)


@given(points=curves, factor=st.floats(0.01, 100))
def test_growth_by_share_does_not_depend_on_the_unit(points: list[Point], factor: float) -> None:
    assume(abs(growth(points).level) > 1e-3)
    scaled = growth([(at, factor * value) for at, value in points])

    assert scaled.share == pytest.approx(growth(points).share, rel=1e-6, abs=1e-9)


@given(points=curves)
def test_a_curve_and_its_mirror_grow_by_opposite_amounts(points: list[Point]) -> None:
    mirrored = growth([(at, -value) for at, value in points])

    assert mirrored.grown == pytest.approx(-growth(points).grown, abs=1e-6)


def test_only_the_second_half_counts() -> None:
    levelled = [(t, min(t, 500.0)) for t in map(float, range(0, 1001, 5))]

    assert growth(levelled).grown == 0
    assert growth(levelled).level == 500
    assert growth(levelled, since_share=0.0).grown > 400


def test_teeth_of_a_periodic_removal_are_flat_and_a_leak_below_them_is_not() -> None:
    teeth = [(float(t), 14.0 + 3.0 * (t % 60) / 60) for t in range(0, 1800, 5)]
    leaking = [(t, value + t / 180) for t, value in teeth]

    assert abs(growth(teeth).grown) < 0.1
    assert growth(leaking).grown == pytest.approx(5.0, abs=0.2)
    assert growth(leaking).per_hour == pytest.approx(20.0, abs=0.5)


def test_growth_of_nothing_is_nothing() -> None:
    assert growth([]).share == 0
    assert growth([(0.0, 5.0)]).grown == 0


def test_small_things_may_grow_by_what_counts_as_nothing() -> None:
    for level, allowed in ((60.0, 10.0), (400.0, 20.0)):
        assert grown_bar("memory", [(0.0, level), (1.0, level)], 0.05, 10.0).required == allowed


@given(
    points=st.lists(st.tuples(st.floats(0, 599.9), st.floats(0, 100)), min_size=1),
    bucket=st.floats(1, 100),
)
def test_the_highest_of_all_is_the_highest_of_some_bucket(
    points: list[Point], bucket: float
) -> None:
    tails = tail_by_bucket(points, bucket, 1.0)

    assert max(value for _, value in tails) == max(value for _, value in points)
    assert [at for at, _ in tails] == sorted(at for at, _ in tails)


def test_thirds_do_not_mix() -> None:
    points = [(float(t), float(1 + t // 10)) for t in range(30)]

    assert by_third(points, 30.0, 0.99) == [1.0, 2.0, 3.0]


def test_sizes_are_curves_by_the_name_of_what_was_measured() -> None:
    rows = [{"second": 5.0 * n, "memory_api_mb": 90.0 + n, "blobs_mb": 1.0} for n in range(2)]

    assert size_curves(rows, "memory_") == {"api": [(0.0, 90.0), (5.0, 91.0)]}
    assert size_curves([], "memory_") == {}


def test_shared_memory_counts_once() -> None:
    alone = [(100, 30)]
    with_another = [(100, 30), (90, 25)]

    assert together(alone) == 100
    assert together(with_another) == 125
    assert together([]) == 0


def soak(
    *,
    memory: Callable[[float], float] = lambda _: 100.0,
    table: Callable[[float], float] = lambda _: 15.0,
    blobs: Callable[[float], float] = lambda _: 40.0,
    scored: Callable[[float], float] = lambda _: 1.52,
    api: Callable[[float], float] = lambda _: 0.005,
    refused: int = 0,
    lost: int = 0,
) -> Soak:
    """Half an hour of the given curves."""

    def curve(read: Callable[[float], float]) -> list[Point]:
        return [(float(t), read(float(t))) for t in range(0, 1800, 5)]

    arrivals = [Arrival(at, latency, 202, f"{at}") for at, latency in curve(api)]
    scored_at = {f"{at}": at + wait for at, wait in curve(scored)}
    arrivals += [Arrival(1800.0, 0.005, 503, "")] * refused
    arrivals += [Arrival(1800.0, 0.005, 202, "lost")] * lost
    return Soak(
        PLANS[Size.FULL],
        submissions=Submissions(arrivals, scored_at),
        memory={
            **{name: curve(memory) for name in (*JUDGED, "rabbitmq")},
            "postgres": curve(lambda t: memory(t) + t),
        },
        # The leaderboard grows for ever, in PostgreSQL's memory too, and must not count.
        tables={"jobs": curve(table), "applications": curve(lambda t: t)},
        blobs=curve(blobs),
        dead_rows=curve(lambda _: 100.0),
    )


def missed(found: Soak, size: Size = Size.FULL) -> list[str]:
    return [bar.claim for bar in bars(found, size) if not bar.passed]


def test_a_flat_soak_reaches_every_bar() -> None:
    assert missed(soak()) == []
    assert "0 refused, 0 lost" in findings(soak())[0]


@pytest.mark.parametrize(
    ("found", "claims"),
    [
        (
            soak(memory=lambda t: 100 + t / 60),
            [f"{name}: memory" for name in (*JUDGED, "postgres")],
        ),
        (soak(blobs=lambda t: 40 + t / 20), ["blobs"]),
        (soak(table=lambda t: 15 + t / 180), ["tables that retention empties"]),
        (soak(scored=lambda t: 1.5 + t / 1800), ["submit to scored p99"]),
        (soak(api=lambda t: 0.005 + t / 180_000), ["API p95"]),
        (soak(refused=1), ["submissions refused"]),
        (soak(lost=1), ["accepted and not scored"]),
    ],
)
def test_each_bar_can_be_missed(found: Soak, claims: list[str]) -> None:
    failed = missed(found)

    assert len(failed) == len(claims), failed
    assert all(claim.startswith(start) for claim, start in zip(failed, claims, strict=True))


def test_a_short_soak_is_judged_by_refusals_and_losses_alone() -> None:
    leaking = soak(memory=lambda t: 100 + t, lost=1)

    assert missed(leaking, Size.QUICK) == ["accepted and not scored"]


def test_a_soak_that_was_too_short_to_measure_sizes_is_reported_all_the_same() -> None:
    unmeasured = replace(soak(), memory={}, tables={}, blobs=[], dead_rows=[])

    assert growths(unmeasured)["memory: postgres without what is kept forever"].level == 0.0
    assert missed(unmeasured, Size.QUICK) == []
