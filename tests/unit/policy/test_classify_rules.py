"""Which pool a job type belongs to: declared, overruled, and given back."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.policy import pool_choice
from app.policy.pool_choice import (
    MIN_RUNS,
    VIOLATIONS,
    WINDOW_SECONDS,
    KeepReason,
    Measured,
    MoveReason,
    PoolBounds,
    PoolMove,
    kept_by,
)

CHAIN = ("short", "medium", "long", "endless")
next_pool = partial(pool_choice.next_pool, chain=CHAIN)
SERVED = {
    "short": PoolBounds(1.0, 600.0),
    "medium": PoolBounds(60.0, 300.0),
    "long": PoolBounds(None, 86_400.0, checkpoint_seconds=300.0, green=False),
}
SLOW = Measured(
    "short",
    "short",
    timeout_seconds=300.0,
    p95_seconds=5.0,
    runs=VIOLATIONS,
    runs_here=VIOLATIONS,
    violations=VIOLATIONS,
)
MOVED = replace(SLOW, pool="medium", moved_seconds=WINDOW_SECONDS, violations=0)

names = st.sampled_from([*CHAIN, "gpu"])
seconds = st.floats(0.0001, 5000.0)
counts = st.integers(0, 3000)
places = st.builds(
    PoolBounds,
    bound_seconds=st.none() | st.floats(0.1, 1000.0),
    most_seconds=st.floats(1.0, 1000.0),
    checkpoint_seconds=st.none() | st.floats(1.0, 1000.0),
    progress_seconds=st.none() | st.floats(1.0, 1000.0),
    green=st.booleans(),
    alive=st.booleans(),
)
served_pools = st.just(SERVED) | st.dictionaries(names, places)
types = st.builds(
    Measured,
    declared=names,
    pool=names,
    timeout_seconds=seconds,
    p95_seconds=st.none() | seconds,
    runs=counts,
    runs_here=counts,
    violations=counts,
    moved_seconds=st.none() | st.floats(0.0, 3 * WINDOW_SECONDS),
)


@given(types, served_pools)
def test_a_type_only_moves_to_a_served_pool_of_the_chain_that_takes_it(
    measured: Measured, served: dict[str, PoolBounds]
) -> None:
    move = next_pool(measured, served)
    if move is None:
        return
    assert {measured.pool, measured.declared, move.pool} <= set(CHAIN)
    assert move.pool != measured.pool
    if move.reason is MoveReason.UNSERVED:
        assert measured.pool not in served and move.pool == measured.declared
        return
    place = served[move.pool]
    assert place.alive
    assert place.most_seconds >= measured.timeout_seconds
    promised = served.get(measured.declared, served[measured.pool]).checkpoint_seconds or math.inf
    for least in (place.checkpoint_seconds or math.inf, place.progress_seconds or math.inf):
        assert least >= min(measured.timeout_seconds, promised)
    if measured.declared in served and not served[measured.declared].green:
        assert not place.green, "what computes stays in a process of its own"


@given(types, served_pools)
def test_there_is_no_second_change_within_an_hour(
    measured: Measured, served: dict[str, PoolBounds]
) -> None:
    fresh = replace(measured, moved_seconds=min(measured.moved_seconds or 0.0, 3599.0))
    move = next_pool(fresh, served)
    assert move is None or move.reason is MoveReason.UNSERVED


@given(types, served_pools)
def test_up_for_violations_and_down_to_the_declared_pool_at_most(
    measured: Measured, served: dict[str, PoolBounds]
) -> None:
    move = next_pool(measured, served)
    if move is None or move.reason is MoveReason.UNSERVED:
        return
    up = CHAIN.index(move.pool) > CHAIN.index(measured.pool)
    assert up == (move.reason is not MoveReason.FASTER)
    if up:
        assert measured.violations > 0.01 * measured.runs_here or measured.violations >= VIOLATIONS
    else:
        assert CHAIN.index(move.pool) >= CHAIN.index(measured.declared)


@given(types)
def test_what_was_moved_does_not_come_back_by_the_same_figures(measured: Measured) -> None:
    move = next_pool(measured, SERVED)
    if move is None:
        return
    settled = replace(measured, pool=move.pool, moved_seconds=WINDOW_SECONDS, violations=0)
    back = next_pool(settled, SERVED)
    assert back is None or back.pool != measured.pool


@pytest.mark.parametrize(
    ("runs", "violations", "reason"),
    [
        (VIOLATIONS, VIOLATIONS, MoveReason.VIOLATIONS),
        (10**6, VIOLATIONS, MoveReason.VIOLATIONS),
        (10**6, VIOLATIONS - 1, None),
        (1000, 10, None),
        (1000, 11, MoveReason.SHARE),
        (MIN_RUNS, 1, MoveReason.SHARE),
        (MIN_RUNS - 1, MIN_RUNS - 1, None),
    ],
)
def test_a_hundred_violations_or_one_in_a_hundred_runs(
    runs: int, violations: int, reason: MoveReason | None
) -> None:
    measured = replace(SLOW, runs=runs, runs_here=runs, violations=violations)
    move = next_pool(measured, SERVED)
    assert move == (PoolMove("medium", reason) if reason else None)


@pytest.mark.parametrize(
    ("p95", "pool"), [(0.9, None), (1.0, None), (1.01, "medium"), (60.0, "medium"), (61.0, "long")]
)
def test_the_p95_says_where_to(p95: float, pool: str | None) -> None:
    move = next_pool(replace(SLOW, p95_seconds=p95), SERVED)
    assert (move and move.pool) == pool


def test_runs_that_were_stopped_at_their_limit_need_no_roomier_pool() -> None:
    stopped = replace(SLOW, declared="medium", pool="medium", timeout_seconds=60, p95_seconds=60.1)
    assert next_pool(stopped, SERVED) is None


def test_a_pool_with_less_time_than_the_type_is_passed_over() -> None:
    patient = replace(SLOW, timeout_seconds=400.0)
    assert next_pool(patient, SERVED) is None, "long would miss its checkpoints"
    silent = {**SERVED, "long": replace(SERVED["long"], checkpoint_seconds=None)}
    assert next_pool(patient, silent) == PoolMove("long", MoveReason.VIOLATIONS)


#: As one would configure it: long has a bound then, and one more pool is above it.
FOUR = {
    **SERVED,
    "long": replace(SERVED["long"], bound_seconds=3600.0),
    "endless": PoolBounds(None, 86_400.0, checkpoint_seconds=900.0, green=False),
}


def test_a_pool_above_long_is_one_more_step() -> None:
    hours = replace(
        SLOW, declared="long", pool="long", timeout_seconds=40_000.0, p95_seconds=9000.0
    )
    assert next_pool(hours, FOUR) == PoolMove("endless", MoveReason.VIOLATIONS)
    assert next_pool(replace(SLOW, p95_seconds=70.0), FOUR) == PoolMove(
        "long", MoveReason.VIOLATIONS
    )
    stricter = {**FOUR, "endless": replace(FOUR["endless"], checkpoint_seconds=60.0)}
    assert next_pool(hours, stricter) is None, "it only promised one in five minutes"
    back = replace(hours, pool="endless", p95_seconds=1000.0, moved_seconds=WINDOW_SECONDS)
    assert next_pool(back, FOUR) == PoolMove("long", MoveReason.FASTER)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"p95_seconds": 0.9}, KeepReason.P95),
        ({"p95_seconds": 0.9, "violations": 3, "runs_here": 200}, KeepReason.P95),
        ({"p95_seconds": 0.9, "violations": 2, "runs_here": 200}, None),
        ({"timeout_seconds": 400.0}, KeepReason.NO_POOL),
        ({"moved_seconds": 60.0, "p95_seconds": 0.9}, None),
        ({}, None),
    ],
)
def test_a_type_that_broke_the_rule_and_stays_has_a_reason(
    changes: dict[str, float], reason: KeepReason | None
) -> None:
    measured = replace(SLOW, **changes)  # type: ignore[arg-type]
    assert kept_by(measured, SERVED, CHAIN) is reason


@given(types, served_pools)
def test_a_type_moves_or_stays_for_a_reason_or_broke_no_rule(
    measured: Measured, served: dict[str, PoolBounds]
) -> None:
    move, kept = next_pool(measured, served), kept_by(measured, served, CHAIN)
    assert not (move and kept)
    settled = measured.moved_seconds is None or measured.moved_seconds >= WINDOW_SECONDS
    known = measured.p95_seconds is not None and measured.pool in served
    if known and settled and {measured.pool, measured.declared} <= set(CHAIN):
        assert bool(move or kept) >= bool(pool_choice.broken(measured))


def test_a_type_stays_if_nobody_works_where_it_belongs() -> None:
    deserted = {**SERVED, "medium": replace(SERVED["medium"], alive=False)}
    assert next_pool(SLOW, deserted) == PoolMove("long", MoveReason.VIOLATIONS)
    assert next_pool(SLOW, {"short": SERVED["short"]}) is None


def test_what_was_declared_for_a_process_of_its_own_never_becomes_green() -> None:
    odd = {
        "short": PoolBounds(1.0, 600.0, green=False),
        "medium": SERVED["medium"],
        "long": PoolBounds(None, 600.0, green=False),
    }
    assert next_pool(SLOW, odd) == PoolMove("long", MoveReason.VIOLATIONS)


def test_a_type_that_became_faster_comes_back_after_an_hour() -> None:
    assert next_pool(replace(MOVED, p95_seconds=0.51), SERVED) is None, "not by a hair"
    faster = replace(MOVED, p95_seconds=0.5)
    assert next_pool(faster, SERVED) == PoolMove("short", MoveReason.FASTER)
    assert next_pool(replace(faster, moved_seconds=WINDOW_SECONDS - 1), SERVED) is None
    assert next_pool(replace(faster, runs=MIN_RUNS - 1), SERVED) is None
    assert next_pool(replace(faster, declared="medium"), SERVED) is None, "as declared"


def test_a_pool_that_is_served_no_more_gives_its_types_back_at_once() -> None:
    smaller = {"short": SERVED["short"]}
    assert next_pool(replace(MOVED, moved_seconds=1.0), smaller) == PoolMove(
        "short", MoveReason.UNSERVED
    )
    assert next_pool(replace(SLOW, declared="medium", pool="medium"), smaller) is None
