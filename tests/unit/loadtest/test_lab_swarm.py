"""What the swarm's figures say, from requests that were made up."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest.figures import MACHINE
from loadtest.lab.experiment import Size
from loadtest.lab.swarm.analysis import (
    PARTS,
    PLANS,
    Look,
    Second,
    by_second,
    count,
    cpu_split,
    mean_cores,
    peak_of,
    per_server_second,
    server_cores,
    summarise,
)
from loadtest.shapes import level_at, total_seconds
from loadtest.users.wire import POLL, ROUND, SUBMIT, Requests

BEGIN = 1_000.0


def requests(*rows: tuple[float, float, int, int]) -> Requests:
    """Sent so long after the beginning, answered so much later, with a status, of a kind."""
    made = Requests()
    for at, latency, status, kind in rows:
        made.add(BEGIN + at, latency, status, kind)
    return made


def seconds(*good: int) -> list[Second]:
    return [Second(number, each, 0, 1.0, 2.0) for number, each in enumerate(good)]


def test_requests_are_counted_by_what_came_of_them() -> None:
    counts = count(
        requests(
            (0, 0.1, 202, SUBMIT),
            (1, 0.1, 200, POLL),
            (2, 0.1, 304, POLL),
            (3, 0.1, 503, POLL),
            (3, 0.1, 503, SUBMIT),
            (4, 0.1, 0, POLL),
            (0, 5.0, 200, ROUND),
        )
    )
    assert (counts.requests, counts.submits, counts.polls) == (6, 2, 4)
    assert counts.not_modified == 1
    assert counts.rounds == 1
    assert counts.errors == {0: 1, 503: 2}
    assert counts.all_errors == 3


def test_an_answer_belongs_to_the_second_in_which_it_came() -> None:
    first, second, third = by_second(
        requests((0.2, 0.1, 200, POLL), (0.9, 0.3, 304, POLL), (1.5, 0.1, 503, POLL)), BEGIN, 3
    )
    assert (first.good, second.good, third.good) == (1, 1, 0)
    assert (first.errors, second.errors) == (0, 1)
    assert second.p95_ms == pytest.approx(300)
    assert third.p95_ms == 0


def test_what_came_before_or_after_the_load_is_not_in_its_seconds() -> None:
    outside = requests((-2.0, 0.5, 200, POLL), (1.8, 0.5, 200, POLL), (0.0, 0.5, 200, ROUND))
    assert [each.good for each in by_second(outside, BEGIN, 2)] == [0, 0]


def test_percentiles_are_those_of_the_second() -> None:
    rows = [(0.0, number / 1000, 200, POLL) for number in range(1, 101)]
    [only] = by_second(requests(*rows), BEGIN, 1)
    assert only.p50_ms == pytest.approx(51)
    assert only.p95_ms == pytest.approx(96)


def test_errors_do_not_make_a_rate_higher_nor_a_latency_lower() -> None:
    made = requests((0, 0.2, 200, POLL), (0, 0.2, 304, POLL), (0, 0.001, 503, POLL))
    summary = summarise(made, BEGIN, 0, 2)
    assert summary.rate == 1
    assert summary.p50_ms == summary.p99_ms == pytest.approx(200)


def test_peak_is_the_best_stretch_and_not_the_best_second() -> None:
    assert peak_of(seconds(0, 10, 20, 60, 10, 40, 45, 44, 20), 3) == (5, 8)


def test_of_equal_stretches_the_first_is_the_peak() -> None:
    assert peak_of(seconds(1, 5, 5, 5, 5), 2) == (1, 3)


def test_a_load_shorter_than_the_stretch_is_its_own_peak() -> None:
    assert peak_of(seconds(3, 4), 10) == (0, 2)


@given(st.lists(st.integers(0, 5_000), min_size=1, max_size=60), st.integers(1, 20))
def test_no_stretch_of_the_same_length_is_better_than_the_peak(
    good: list[int], window: int
) -> None:
    begin, end = peak_of(seconds(*good), window)
    length = end - begin
    assert length == min(window, len(good))
    assert sum(good[begin:end]) == max(
        sum(good[start : start + length]) for start in range(len(good) - length + 1)
    )


def test_a_look_counts_by_how_much_of_it_lies_between_the_moments() -> None:
    looks = [Look(0, 4, {"api": 1.0}), Look(4, 6, {"api": 0.5}), Look(6, 8, {"api": 9.0})]
    assert mean_cores(looks, 2, 6) == {"api": pytest.approx((2 * 1.0 + 2 * 0.5) / 4)}
    assert mean_cores(looks, 20, 30) == {}


def test_the_rest_of_the_machine_is_nobody_we_started() -> None:
    split = cpu_split(
        {
            "api": 0.8,
            "postgres": 0.3,
            "worker-medium-1": 0.1,
            "worker-medium-2": 0.1,
            "generator": 0.2,
            MACHINE: 1.9,
        }
    )
    assert split["worker"] == pytest.approx(0.2)
    assert split["others"] == pytest.approx(0.4)
    assert server_cores(split) == pytest.approx(1.3)
    assert per_server_second(1_300, split) == pytest.approx(1_000)


def test_who_used_no_time_has_no_rate_for_it() -> None:
    assert per_server_second(100, cpu_split({})) == 0


@given(
    st.dictionaries(st.sampled_from(("api", "worker-a-1", "generator", "flower")), st.floats(0, 2))
)
def test_a_split_loses_no_time(cores: dict[str, float]) -> None:
    split = cpu_split(cores)
    assert tuple(split) == PARTS
    assert sum(split.values()) == pytest.approx(sum(cores.values()), abs=0.01)


@pytest.mark.parametrize("size", Size)
def test_every_size_reaches_all_its_clients_and_stays_there_for_its_peak(size: Size) -> None:
    plan = PLANS[size]
    ramp = plan.ramp()
    assert level_at(ramp, plan.ramp_seconds) == plan.clients
    assert plan.hold_seconds >= plan.window_seconds
    assert plan.look_seconds <= plan.window_seconds
    assert total_seconds(plan.half(3_000)) > plan.settle_seconds


def test_half_of_the_peak_needs_a_sixth_as_many_clients_as_requests() -> None:
    [stretch] = PLANS[Size.FULL].half(3_000)
    assert stretch.begin == stretch.end == 500


def test_a_server_that_answers_nothing_still_gets_a_client() -> None:
    [stretch] = PLANS[Size.MINI].half(0)
    assert stretch.begin == 1
