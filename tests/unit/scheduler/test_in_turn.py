"""The tenants' jobs leave in turn, and usage is counted once."""

from __future__ import annotations

from collections import Counter
from datetime import date, timedelta

from hypothesis import given
from hypothesis import strategies as st

from app.scheduler.dispatching.reconciler import used_since
from models.jobs.dispatch import Dispatch, in_turn

TODAY = date(2026, 11, 15)
YESTERDAY = TODAY - timedelta(days=1)


def dispatches(tenants: list[int]) -> list[Dispatch]:
    return [
        Dispatch(f"job-{number}", 1, "echo", "medium", tenant)
        for number, tenant in enumerate(tenants)
    ]


@given(st.lists(st.integers(1, 5), max_size=60))
def test_nobody_is_lost_and_each_tenants_own_order_is_kept(tenants: list[int]) -> None:
    listed = dispatches(tenants)
    sent = in_turn(listed)
    assert Counter(sent) == Counter(listed)
    for tenant in set(tenants):
        own = [each for each in listed if each.tenant_id == tenant]
        assert [each for each in sent if each.tenant_id == tenant] == own


@given(st.lists(st.integers(1, 40), min_size=2, max_size=5))
def test_after_any_number_of_messages_everybody_had_its_part(jobs: list[int]) -> None:
    tenants = [tenant for tenant, count in enumerate(jobs) for _ in range(count)]
    sent = in_turn(dispatches(tenants))
    so_far: Counter[int] = Counter()
    for number, each in enumerate(sent, 1):
        so_far[each.tenant_id] += 1
        for tenant, count in enumerate(jobs):
            assert abs(so_far[tenant] - number * count / len(sent)) <= len(jobs)


@given(st.lists(st.tuples(st.booleans(), st.floats(0, 100)), max_size=20))
def test_usage_is_counted_once_however_often_one_looks(steps: list[tuple[bool, float]]) -> None:
    used: dict[date, float] = {}
    day, counted, total = YESTERDAY, (YESTERDAY, 0.0), 0.0
    for midnight, seconds in steps:
        if midnight and day == YESTERDAY:
            day = TODAY
        used[day] = used.get(day, 0.0) + seconds
        since, counted = used_since(counted, used)
        total += since
        assert used_since(counted, used)[0] == 0.0
    assert abs(total - sum(used.values())) < 1e-6
