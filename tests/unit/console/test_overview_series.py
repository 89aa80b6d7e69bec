"""Samples become lines: rates are differences, and what is not known is a gap."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from app.console.overview.series import NEIGHBOURS, Samples, draw, first_within, per_minute, rates

STEP = 5


def connection(*rows: tuple[int, int], **columns: list[int]) -> Samples:
    """Samples by time and jobs that came."""
    at, submitted = [row[0] for row in rows], [row[1] for row in rows]
    nothing = [0] * len(rows)
    filled = dict.fromkeys(Samples._fields, nothing) | columns
    return Samples(**{**filled, "at": at, "submitted": submitted})


some = st.lists(
    st.tuples(st.integers(0, 500), st.integers(0, 10**9)), unique_by=lambda row: row[0], max_size=30
).map(lambda rows: connection(*((STEP * place, counted) for place, counted in sorted(rows))))


def test_rates_are_differences_of_neighbours() -> None:
    assert dict(rates([0, 5, 15], [0, 10, 10], STEP)) == {5: 120.0, 15: 0.0}


def test_a_counter_that_fell_and_a_leader_that_was_away_give_no_rate() -> None:
    found = dict(rates([0, 5, 60, 65], [50, 3, 1_000_000, 0], STEP))
    assert list(found.values()) == [None, None, None]
    assert per_minute(5, 0) is None


def test_a_stretch_needs_two_samples() -> None:
    assert first_within([], 60) is None
    assert first_within([0, 300], 60) is None
    assert first_within([0, 40, 70, 100], 60) == 1


def test_a_pool_that_is_new_begins_where_it_began() -> None:
    new = connection((5, 0), queued=[4], busy=[9], slots=[4])
    drawn = draw({"old": connection((0, 0), (5, 0)), "new": new}, STEP, now=9)
    assert drawn["depth"]["x"] == [0, 5000]
    assert [line["y"] for line in drawn["depth"]["series"]] == [[0, 0], [None, 4]]
    assert drawn["utilisation"]["series"][1]["y"] == [None, 100.0]


def test_a_gap_breaks_the_line_and_one_that_lasts_reaches_until_now() -> None:
    pools = {"a": connection((0, 0), (5, 0), (60, 0), queued=[1, 2, 3])}
    depth = draw(pools, STEP, now=75)["depth"]
    assert depth["x"] == [0, 5_000, 32_000, 60_000]
    assert depth["series"][0]["y"] == [1, 2, None, 3]
    depth = draw(pools, STEP, now=93)["depth"]
    assert (depth["x"][-1], depth["series"][0]["y"][-1]) == (90_000, None)


@given(some)
def test_no_rate_is_negative_or_bridges_a_gap(samples: Samples) -> None:
    found = dict(rates(samples.at, samples.submitted, STEP))
    assert len(found) == max(0, len(samples.at) - 1)
    before = {later: earlier for earlier, later in pairwise(samples.at)}
    for at, rate in found.items():
        assert rate is None or (rate >= 0 and at - before[at] <= NEIGHBOURS * STEP)


@given(some, some)
def test_every_line_has_a_value_or_a_gap_for_every_moment(one: Samples, other: Samples) -> None:
    for chart in draw({"one": one, "other": other}, STEP, now=10_000).values():
        assert chart["x"] == sorted(set(chart["x"]))
        assert {len(line["y"]) for line in chart["series"]} == {len(chart["x"])}
