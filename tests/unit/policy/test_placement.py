"""Placements: where new jobs go."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.policy.placement import Placement, checked_weights, parse_weights

CELLS = ("cell-1", "cell-2", "cell-3", "cell-4")
weight = st.floats(0.01, 100)
#: At least one cell admits.
placements = st.dictionaries(st.sampled_from(CELLS), st.just(0.0) | weight, min_size=1).filter(
    lambda weights: any(weights.values())
)
tokens = st.binary(max_size=40)


@given(placements, tokens)
def test_a_job_goes_to_a_cell_that_admits_and_always_to_the_same(
    weights: dict[str, float], token: bytes
) -> None:
    chosen = Placement(1, weights).choose(token)
    assert weights[chosen] > 0
    again = Placement(2, dict(reversed(weights.items())))
    assert again.choose(token) == chosen, "neither version nor order of the cells matters"


@given(placements, tokens, st.sampled_from(CELLS), st.floats(1.0, 10))
def test_a_higher_weight_takes_jobs_from_others_and_moves_none_between_them(
    weights: dict[str, float], token: bytes, raised: str, factor: float
) -> None:
    before = Placement(1, weights).choose(token)
    after = Placement(2, {**weights, raised: (weights.get(raised) or 0.5) * factor}).choose(token)
    assert after in (before, raised)


@given(placements, tokens, st.sampled_from(CELLS))
def test_a_cell_that_leaves_gives_up_its_own_jobs_alone(
    weights: dict[str, float], token: bytes, gone: str
) -> None:
    rest = {cell: each for cell, each in weights.items() if cell != gone}
    if any(rest.values()):
        before, after = Placement(1, weights).choose(token), Placement(2, rest).choose(token)
        assert before in (gone, after)
        assert Placement(2, {**rest, gone: 0.0}).choose(token) == after


def test_jobs_are_spread_in_proportion_to_the_weights() -> None:
    placement = Placement(1, {"cell-1": 1, "cell-2": 2, "cell-3": 5})
    jobs = 20_000
    found = Counter(placement.choose(str(number).encode()) for number in range(jobs))
    for cell, part in (("cell-1", 1 / 8), ("cell-2", 2 / 8), ("cell-3", 5 / 8)):
        assert abs(found[cell] / jobs - part) < 0.02, found


@given(placements)
def test_every_cell_either_admits_or_is_being_emptied(weights: dict[str, float]) -> None:
    placement = Placement(1, weights)
    assert sorted((*placement.admitting, *placement.leaving)) == list(placement.cells)
    assert all(weights[cell] > 0 for cell in placement.admitting)


@pytest.mark.parametrize(
    ("text", "weights"),
    [
        ("cell-2", {"cell-2": 1.0}),
        ("a, b ,c", {"a": 1.0, "b": 1.0, "c": 1.0}),
        ("a=1,b=2.5", {"a": 1.0, "b": 2.5}),
    ],
)
def test_weights_are_read_from_a_command(text: str, weights: dict[str, float]) -> None:
    assert parse_weights(text) == weights


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "at least one"),
        ("a=0", "above 0"),
        ("a=nan", "above 0"),
        ("a=inf", "above 0"),
        ("a=-1", "above 0"),
        ("a=x", "no weight"),
        ("a,a=2", "twice"),
        ("A", "no name"),
        ("1a", "no name"),
        ("a" * 32, "no name"),
        (",".join(f"cell-{number}" for number in range(65)), "at most 64 cells"),
    ],
)
def test_wrong_weights_are_refused(text: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        parse_weights(text)


def test_a_placement_needs_a_cell() -> None:
    with pytest.raises(ValueError, match="at least one"):
        checked_weights({})
