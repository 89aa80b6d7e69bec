"""The bucket of requests: its burst, its rate, debts, and who has no limit."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.policy.request_bucket import BURST_SECONDS, RequestBucket

RATES = st.floats(0.001, 1e6)


def passed(bucket: RequestBucket, now: float, tries: int) -> int:
    return sum(not bucket.spend(now) for _ in range(tries))


@given(st.sampled_from([0.01, 0.3, 1.0, 7.0, 99.9]), st.floats(0, 1e7))
def test_a_burst_passes_and_then_the_rate(rate: float, began: float) -> None:
    bucket = RequestBucket(None, rate)
    burst = max(1, round(rate * BURST_SECONDS - 0.5))
    assert burst <= passed(bucket, began, 1000) <= burst + 1
    later = began + 20 / rate
    again = passed(bucket, later, 1000)
    assert 1 <= again <= min(20, burst) + 1


@given(RATES, st.lists(st.floats(0, 3), max_size=300))
def test_never_more_than_burst_and_rate_allow(rate: float, gaps: list[float]) -> None:
    bucket, now, sent = RequestBucket(None, rate), 1000.0, 0
    for gap in gaps:
        now += gap
        sent += not bucket.spend(now)
    assert sent <= max(1.0, rate * BURST_SECONDS) + rate * (now - 1000.0) + 1


@given(RATES)
def test_whoever_waits_as_told_passes(rate: float) -> None:
    bucket, now = RequestBucket(None, rate), 5.0
    for _ in range(3):
        while not (wait := bucket.spend(now)):
            bucket.charge(now, int(rate) + 1)
        assert bucket.spend(now + wait * 0.9 - 1e-5) > 0
        now += wait
        assert bucket.spend(now) == 0


@given(st.floats(0, 1e9))
def test_without_a_limit_everything_passes(now: float) -> None:
    bucket = RequestBucket(None, None)
    bucket.charge(now, 10_000)
    assert passed(bucket, now, 100) == 100


def test_a_debt_is_paid_before_anything_passes() -> None:
    bucket = RequestBucket(None, 10.0)
    assert bucket.spend(0.0) == 0
    bucket.charge(0.0, 100)
    assert bucket.spend(0.0) == pytest.approx(5.2)  # 102 requests, 50 of which were there
