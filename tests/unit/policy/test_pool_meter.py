"""The meter of a pool: rate of endings and reserve, and whether a turn forgives debts."""

from __future__ import annotations

from app.policy.fairshare import Entitlement, FairQueue, TenantClaim, note_turn
from app.policy.pool_meter import PoolMeter
from app.policy.window import LEAST_RESERVE_SECONDS, MOST_RESERVE_SECONDS, RESERVE_SECONDS


def test_a_rate_is_measured_over_a_second_and_not_from_a_burst() -> None:
    meter = PoolMeter(2.0)
    assert meter.count(1000, 0.0) == 0.0
    assert meter.count(1010, 0.02) == 0.0
    assert meter.count(1100, 1.0) == 100.0
    assert meter.count(1100, 1.5) == 100.0
    assert meter.count(1100, 2.0) == 0.0


def test_a_reserve_grows_while_slots_idle_beside_a_queue_and_shrinks_while_none_does() -> None:
    meter = PoolMeter(2.0)
    assert meter.adapt(5, 0, 10, 0.0) == RESERVE_SECONDS
    assert meter.adapt(5, 0, 10, 1.9) == RESERVE_SECONDS
    assert meter.adapt(5, 0, 10, 2.0) == MOST_RESERVE_SECONDS
    assert meter.adapt(0, 10, 10, 4.0) == MOST_RESERVE_SECONDS
    for second in range(6, 30, 2):
        meter.adapt(5, 10, 10, float(second))
    assert meter.reserve_seconds == LEAST_RESERVE_SECONDS


def queue_with_debtor() -> FairQueue:
    """Tenant 1 has used a thousand slot-seconds; tenant 2 joins."""
    queue = FairQueue(1.0)
    for tenant in (1, 2):
        queue.set_tenant(tenant, TenantClaim(Entitlement(10.0)))
    queue.add_lane(1, "model")
    queue.allocate(1, slots=10)
    queue.dispatched(1, [1.0])
    queue.reconcile(1, used=1000.0, pending=0.0, in_flight=0)
    return queue


def test_debts_are_forgiven_after_a_turn_in_which_nobody_waits() -> None:
    queue = queue_with_debtor()
    assert not note_turn(queue, idle=True, held=["model"], paced=[])
    assert queue.account(1).served <= queue.virtual_time


def test_debts_stay_while_slots_are_short_or_a_quota_is_waited_for() -> None:
    queue = queue_with_debtor()
    assert note_turn(queue, idle=False, held=[], paced=[])
    assert not note_turn(queue, idle=True, held=["model"], paced=["model"])
    assert queue.account(1).served > queue.virtual_time
