"""How long a job may be dispatched while its queue is empty."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from app.policy.lost_messages import LEAST_SECONDS, MOST_SECONDS, next_wait


@given(st.lists(st.booleans(), max_size=100))
def test_wait_stays_in_its_bounds(seconds: list[bool]) -> None:
    wait = LEAST_SECONDS
    for lost in seconds:
        after = next_wait(wait, lost)
        assert after >= wait if lost else after <= wait
        assert LEAST_SECONDS <= after <= MOST_SECONDS
        wait = after


@given(st.floats(0.0, MOST_SECONDS))
def test_slow_claims_succeed_in_the_end(claim_seconds: float) -> None:
    wait, in_vain = LEAST_SECONDS, 0
    while wait < claim_seconds:
        wait, in_vain = next_wait(wait, lost=True), in_vain + 1
    assert in_vain <= 5
