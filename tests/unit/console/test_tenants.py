"""What the pages of tenants work out: entitled shares, rates, and how long jobs take."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.console.formatting import exact, signed
from app.console.tenant_page.flow import (
    MINUTES,
    MOST_ENDED,
    RateSeries,
    ends,
    figures,
    flow_of,
    spread,
    whole_minutes,
)
from app.console.tenants.shares import Working, entitled_shares, over_all_pools

NOW = datetime(2030, 1, 31, 12, 0, 30, tzinfo=UTC)


def working(pool: str, tenant_id: int, weight: float | None = None, **more: object) -> Working:
    fields: dict[str, object] = {
        "tier": "standard",
        "share": 1.0,
        "waits": True,
        "in_flight": 0,
        **more,
    }
    return Working(pool=pool, tenant_id=tenant_id, weight=weight, **fields)  # type: ignore[arg-type]


MANY = st.lists(
    st.builds(
        Working,
        pool=st.sampled_from(["short", "medium"]),
        tenant_id=st.integers(1, 20),
        tier=st.sampled_from(["free", "standard", "pro", "enterprise"]),
        weight=st.none() | st.floats(0.1, 1e4),
        share=st.floats(0.01, 1.0),
        waits=st.booleans(),
        in_flight=st.integers(0, 100),
    ),
    unique_by=lambda one: one.place,
    max_size=25,
)


@given(MANY)
def test_shares_of_a_pool_and_of_all_pools_add_up_to_one(those: list[Working]) -> None:
    shares = entitled_shares(those)
    assert shares.keys() == {one.place for one in those}
    for pool in {one.pool for one in those}:
        parts = [share for (name, _), share in shares.items() if name == pool]
        assert sum(parts) == pytest.approx(1.0)
        assert all(part > 0 for part in parts)
    overall = over_all_pools(those, shares)
    assert overall.keys() == {one.tenant_id for one in those}
    assert not those or sum(overall.values()) == pytest.approx(1.0)


def test_shares_are_as_the_weights() -> None:
    shares = entitled_shares([working("medium", 1, 30.0), working("medium", 2)])
    assert shares == pytest.approx({("medium", 1): 0.75, ("medium", 2): 0.25})


def test_of_a_tenant_in_several_cells_the_part_of_this_one_counts() -> None:
    shares = entitled_shares([working("medium", 1, share=0.5), working("medium", 2)])
    assert shares == pytest.approx({("medium", 1): 1 / 3, ("medium", 2): 2 / 3})


def test_free_accounts_are_one_and_equal_inside() -> None:
    those = [working("medium", n, tier="free") for n in (1, 2)]
    shares = entitled_shares([*those, working("medium", 3)])
    assert shares["medium", 1] == shares["medium", 2] == pytest.approx(0.025)


def test_over_all_pools_each_counts_by_what_is_in_flight_there() -> None:
    those = [
        working("short", 1, in_flight=30),
        working("medium", 1, in_flight=5),
        working("medium", 2, in_flight=5),
        working("long", 2),
    ]
    overall = over_all_pools(those, entitled_shares(those))
    assert overall == pytest.approx({1: 35 / 41, 2: 6 / 41})


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=300))
def test_percentiles_are_measured_times_in_order(seconds: list[float]) -> None:
    found = spread(seconds)
    assert found is not None
    assert {found.p50, found.p95, found.p99} <= set(seconds)
    assert min(seconds) <= found.p50 <= found.p95 <= found.p99 <= max(seconds)
    for part, value in ((0.5, found.p50), (0.95, found.p95), (0.99, found.p99)):
        assert sum(one <= value for one in seconds) >= part * len(seconds)


def test_of_nothing_there_is_no_percentile() -> None:
    assert spread([]) is None
    assert spread([float(n) for n in range(1, 101)]) == spread(
        [float(n) for n in range(100, 0, -1)]
    )


def ended(seconds_ago: float, **fields: object) -> SimpleNamespace:
    """A row of READ_ENDED."""
    at = NOW - timedelta(seconds=seconds_ago)
    given: dict[str, object] = {
        "type": "echo",
        "status": "succeeded",
        "run_seconds": 1.0,
        "whole_seconds": 2.0,
        **fields,
    }
    return SimpleNamespace(finished_at=at, **given)


def test_types_with_most_jobs_come_first_and_only_runs_count() -> None:
    found = figures(
        [
            ended(1),
            ended(2, status="dead", run_seconds=None, whole_seconds=9.0),
            ended(3, type="sleep"),
            ended(4, status="cancelled"),
            ended(5, status="expired"),
        ]
    )
    assert [(one["type"], one["jobs"], one["succeeded"]) for one in found] == [
        ("echo", 2, 1),
        ("sleep", 1, 1),
    ]
    assert found[0]["running"].p99 == 1.0
    assert found[0]["whole"].p99 == 9.0


def test_minutes_that_are_over_are_drawn() -> None:
    minutes = whole_minutes(NOW)
    assert len(minutes) == MINUTES
    assert minutes[-1] == NOW.replace(minute=59, hour=11, second=0)
    came = RateSeries({minutes[-1]: 120, NOW.replace(second=0): 7}, recent=60)
    flow = flow_of(came, [ended(5), ended(45), ended(3600)], NOW)
    assert flow["in_per_second"] == 1.0
    assert flow["out_per_second"] == pytest.approx(2 / 60)
    submitted, gone = flow["chart"]["series"]
    assert submitted["y"] == [0] * (MINUTES - 1) + [120]
    assert gone["y"] == [0] * (MINUTES - 1) + [1]


def test_what_was_not_all_looked_at_is_a_gap_and_no_small_number() -> None:
    """Whoever is faster than the walk is long gets its rate from what the walk covers."""
    many = [ended(n * 0.01) for n in range(MOST_ENDED)]
    stream = ends(many, NOW)
    assert stream.per_second(NOW) == pytest.approx(100.0, rel=0.01)
    assert stream.drawn(whole_minutes(NOW)) == [None] * MINUTES
    slower = ends([ended(n * 0.1) for n in range(MOST_ENDED)], NOW)
    drawn = slower.drawn(whole_minutes(NOW))
    assert drawn[:-2] == [None] * (MINUTES - 2)
    assert drawn[-2:] == [600, 600]


@pytest.mark.parametrize(
    ("amount", "told"),
    [
        ("0", "0.00"),
        ("0.000001", "0.000001"),
        ("0.00201", "0.00201"),
        ("1.5", "1.50"),
        ("12", "12.00"),
    ],
)
def test_amounts_are_told_as_they_are_billed(amount: str, told: str) -> None:
    assert exact(Decimal(amount)) == told


def test_what_is_owed_has_a_sign_unless_it_is_nothing() -> None:
    assert [signed(seconds) for seconds in (60.0, -10.0, 0.01, -0.01)] == [
        *("+60\u202fs", "−10\u202fs", "0\u202fs", "0\u202fs")
    ]
