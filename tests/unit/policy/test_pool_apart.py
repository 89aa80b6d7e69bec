"""One tenant alone moves no job type that others use."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any

from hypothesis import assume, given
from hypothesis import strategies as st

from app.policy import pool_choice
from app.policy.pool_choice import (
    MIN_RUNS,
    VIOLATIONS,
    WINDOW_SECONDS,
    Measured,
    MoveReason,
    PoolBounds,
    PoolMove,
)
from app.scheduler.protection.classifier import TypeRuns, measure
from models.tallies import MICROSECONDS, bin_of

SERVED = {
    "short": PoolBounds(1.0, 600.0),
    "medium": PoolBounds(60.0, 600.0),
    "long": PoolBounds(None, 86_400.0, green=False),
}
next_pool = partial(pool_choice.next_pool, chain=tuple(SERVED))
agreed_pool = partial(pool_choice.agreed_pool, chain=tuple(SERVED))
TYPE: Any = SimpleNamespace(timeout_seconds=300.0)


@dataclass(frozen=True)
class Part:
    """Some runs of a tenant."""

    tenant_id: int
    runs: int
    seconds: float
    age: float = 0.0


def gathered(parts: list[Part], pool: str) -> TypeRuns:
    """As the classifier reads them, each tenant counted apart."""
    found, bound = TypeRuns(), SERVED[pool].bound_seconds
    for part in parts:
        microseconds = int(part.seconds * MICROSECONDS)
        row: Any = SimpleNamespace(
            total=part.runs, microseconds=part.runs * microseconds, age_seconds=part.age
        )
        over = bound is not None and part.seconds > bound
        own = found.tenants.setdefault(part.tenant_id, TypeRuns())
        for runs in (found, own):
            runs.count(row, pool, bin_of(microseconds), over)
    return found


def row_of(pool: str) -> Any:
    return SimpleNamespace(declared_pool="short", pool=pool, moved_seconds=WINDOW_SECONDS)


def decided(parts: list[Part], pool: str) -> PoolMove | None:
    runs, row = gathered(parts, pool), row_of(pool)
    without = [measure(TYPE, row, runs.without(one)) for one in runs.tenants]
    return agreed_pool(measure(TYPE, row, runs), without, SERVED)


def parts_of(*tenants: int) -> Any:
    made = st.builds(
        Part,
        st.sampled_from(tenants),
        st.integers(1, 2000),
        st.floats(0.001, 250.0),
        st.floats(0.0, 3500.0),
    )
    return st.lists(made, min_size=1, max_size=8)


pools = st.sampled_from(["short", "medium"])


@given(parts_of(1), parts_of(2, 3, 4), pools)
def test_whatever_one_tenant_does_nothing_changes_for_a_type_that_others_use(
    own: list[Part], others: list[Part], pool: str
) -> None:
    sample: dict[int, int] = {}
    for part in others:
        sample[part.tenant_id] = sample.get(part.tenant_id, 0) + part.runs
    assume(sum(runs >= MIN_RUNS for runs in sample.values()) >= 2)
    by_others = next_pool(measure(TYPE, row_of(pool), gathered(others, pool)), SERVED)
    move = decided([*own, *others], pool)
    if by_others is None:
        assert move is None
    elif move is not None:
        chain = list(SERVED)
        here = chain.index(pool)
        alone, agreed = chain.index(by_others.pool) - here, chain.index(move.pool) - here
        assert 0 < agreed / alone <= 1, "the same way, and no further than the others would"


@given(parts_of(1), pools)
def test_the_only_tenant_of_a_type_decides_alone(own: list[Part], pool: str) -> None:
    alone = next_pool(measure(TYPE, row_of(pool), gathered(own, pool)), SERVED)
    assert decided(own, pool) == alone


@given(parts_of(1, 2, 3), pools)
def test_taking_a_tenant_out_leaves_what_the_others_ran(parts: list[Part], pool: str) -> None:
    left = gathered(parts, pool).without(parts[0].tenant_id)
    others = gathered([one for one in parts if one.tenant_id != parts[0].tenant_id], pool)
    assert left.total == others.total
    assert left.by_pool.get(pool, (0, 0)) == others.by_pool.get(pool, (0, 0))
    expected, found = others.histogram().quantile(0.95), left.histogram().quantile(0.95)
    assert (expected is None) == (found is None)
    if expected is not None and found is not None:
        assert abs(found - expected) <= 0.01 * expected + 0.01


def test_a_type_that_is_slow_for_two_moves_to_where_both_fit() -> None:
    slow = [Part(1, VIOLATIONS, 200.0), Part(2, MIN_RUNS, 5.0), Part(3, MIN_RUNS, 5.0)]
    assert decided(slow, "short") == PoolMove("medium", MoveReason.VIOLATIONS)
    assert next_pool(measure(TYPE, row_of("short"), gathered(slow, "short")), SERVED) == PoolMove(
        "long", MoveReason.VIOLATIONS
    )


def test_without_tenants_apart_the_rule_is_the_usual_one() -> None:
    slow = Measured("short", "short", 300.0, 5.0, VIOLATIONS, VIOLATIONS, VIOLATIONS)
    assert agreed_pool(slow, [], SERVED) == next_pool(slow, SERVED) is not None
    unserved = Measured("short", "long", 300.0)
    few = {"short": SERVED["short"]}
    assert agreed_pool(unserved, [unserved], few) == PoolMove("short", MoveReason.UNSERVED)
