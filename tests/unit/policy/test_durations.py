"""What waiting jobs are expected to take: within what was seen, and no hostage of one run. Pure."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.policy.durations import (
    ENOUGH_RUNS,
    LAG_SECONDS,
    Durations,
    Observed,
    expected,
    guess,
    mixed,
    of_runs,
)

seconds = st.floats(0.001, 100_000.0)
runs_of_one = st.lists(seconds.map(lambda each: (1.0, each)), min_size=1, max_size=60)
bins = st.tuples(st.floats(0.01, 1000.0), seconds).map(lambda bin: (bin[0], bin[0] * bin[1]))
observed = runs_of_one | st.lists(bins, min_size=1, max_size=30)


def found(runs: list[Observed]) -> Durations:
    durations = of_runs(runs)
    assert durations is not None
    return durations


@given(observed)
def test_nothing_is_expected_that_was_never_seen(runs: list[Observed]) -> None:
    known, lengths = found(runs), [total / count for count, total in runs]
    slack = 1 + 1e-9
    assert min(lengths) / slack <= known.least <= known.mean * slack
    assert known.mean <= known.most * slack <= max(lengths) * slack**2
    rounding = max(lengths) * 1e-12
    assert 0 <= known.spread <= (max(lengths) - min(lengths)) * slack + rounding
    assert known.runs == pytest.approx(sum(count for count, _ in runs))


@given(runs_of_one, seconds)
def test_one_run_more_never_lifts_it_beyond_what_the_others_took(
    runs: list[Observed], outlier: float
) -> None:
    after = found([*runs, (1.0, outlier)])
    assert after.mean <= max(each for _, each in runs) * (1 + 1e-9)
    mean = sum(each for _, each in runs) / len(runs)
    if outlier >= max(each for _, each in runs):
        assert after.mean == pytest.approx(mean), "it does not count at all"


def test_the_long_run_that_made_a_forecast_fifteen_times_too_long() -> None:
    usual = [(1.0, 2.0)] * 20
    assert found([*usual, (1.0, 600.0)]).mean == pytest.approx(2.0)
    assert found([*usual, (1.0, 600.0)]).spread > 100, "but what comes is less certain"
    often = [*usual, *[(1.0, 600.0)] * 10]
    assert 150 < found(often).mean < 201, "what happens often is expected"


@given(observed, st.floats(1.0, 50.0))
def test_all_runs_longer_by_a_factor_is_longer_by_that_factor(
    runs: list[Observed], factor: float
) -> None:
    longer = [(count, total * factor) for count, total in runs]
    assert found(longer).mean == pytest.approx(found(runs).mean * factor, rel=1e-6)


@given(runs_of_one, observed, seconds)
def test_a_tenant_is_known_by_its_own_runs_once_there_are_a_few(
    own: list[Observed], shared: list[Observed], default: float
) -> None:
    known = expected(own, shared, default)
    assert known == (found(own) if len(own) >= ENOUGH_RUNS else found(shared))
    assert expected(own, [], default) == found(own)
    assert expected([], [], default) == guess(default)


@given(runs_of_one, st.lists(seconds, min_size=1, max_size=20), seconds)
def test_runs_that_go_on_never_make_it_shorter_and_count_as_far_as_they_are_longer(
    own: list[Observed], running: list[float], default: float
) -> None:
    without, having = expected(own, [], default), expected(own, [], default, running)
    assert having.mean >= without.mean
    assert having.mean <= max(*running, without.most)
    short = expected(own, [], default, [without.mean + LAG_SECONDS])
    assert short.mean == without.mean


def test_the_shortest_runs_end_first() -> None:
    """Six seconds into a flood: what takes ten has not ended yet."""
    early = expected([(1.0, 0.1)] * 20, [], 60.0, [6.0] * 20)
    assert 3.5 < early.mean < 4.1
    others = [(1000.0, 100.0)]
    assert expected([], others, 60.0, [8.0] * 7).mean == pytest.approx(6.0)
    assert expected([], [], 60.0, [6.0] * 7).mean == 60.0, "a guess that is still possible"


known = st.builds(
    lambda least, more, spread, runs, part: Durations(
        runs, least + part * more, spread, least, least + more
    ),
    seconds,
    seconds,
    seconds,
    st.floats(0.0, 1000.0),
    st.floats(0.0, 1.0),
)


@given(st.lists(st.tuples(st.integers(1, 10_000), known), min_size=1, max_size=6))
def test_a_mixture_lies_between_its_parts(parts: list[tuple[int, Durations]]) -> None:
    both = mixed(parts)
    assert both is not None
    means = [each.mean for _, each in parts]
    assert min(means) * (1 - 1e-9) <= both.mean <= max(means) * (1 + 1e-9)
    assert both.least <= both.mean <= both.most
    assert both.spread >= min(each.spread for _, each in parts) * (1 - 1e-9)


def test_nothing_is_mixed_from_nothing() -> None:
    assert mixed([]) is None
    assert mixed([(0, guess(5.0))]) is None
    assert math.isinf(guess(5.0).most)
