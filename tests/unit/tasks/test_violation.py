"""Which limit a run has broken: the watchdog's judgement, without a watchdog."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.errors import Cancelled, LeaseLost, ResourceViolation, Stop, TimeLimit
from tasks.watchdog.violation import OVERDUE_SECONDS, Bounds, Sight, violation_of
from tasks.watchdog.watchdog import BLOCKING_GRACE_SECONDS, blocking_seconds

BOUNDS = Bounds(
    timeout_seconds=10,
    cancel_grace_seconds=5,
    progress_seconds=4,
    blocking_seconds=3,
    memory_mb=100,
    cpu_seconds=2,
    checkpoint_seconds=7,
)
#: As far as a run may go.
EDGE = Sight(10 + OVERDUE_SECONDS, 4, 3, 5, False, 100, 2, 7)


@pytest.mark.parametrize(
    ("sight", "stop", "words"),
    [
        (Sight(10.6), TimeLimit, "longer than 10 s"),
        (Sight(1, progress_seconds=5), ResourceViolation, "no progress for 5 s"),
        (
            Sight(1, checkpoint_seconds=8),
            ResourceViolation,
            "saved no checkpoint for 8 s; its pool requires one every 7 s",
        ),
        (Sight(1, blocking_seconds=3.4), ResourceViolation, "3.4 s without yielding"),
        (Sight(1, memory_mb=101), ResourceViolation, "101 MB of memory; 100 are"),
        (Sight(1, cpu_seconds=2.1), ResourceViolation, "2.1 s of CPU time; 2 are"),
        (Sight(1, cancelled_seconds=5.1), Cancelled, "cancelled"),
        (Sight(1, lost=True), LeaseLost, "Another worker"),
    ],
)
def test_each_limit_has_its_word(sight: Sight, stop: type[Stop], words: str) -> None:
    found = violation_of(sight, BOUNDS)
    assert type(found) is stop
    assert words in str(found)


def test_a_run_may_go_to_the_edge() -> None:
    assert violation_of(EDGE, BOUNDS) is None


def test_what_has_no_bound_is_not_broken() -> None:
    unbounded = Bounds(timeout_seconds=10, cancel_grace_seconds=5)
    greedy = Sight(1, 1e9, 1e9, None, False, 1e9, 1e9, 1e9)
    assert violation_of(greedy, unbounded) is None


def test_cancelled_comes_before_everything_else() -> None:
    broken = Sight(99, 99, 99, 99, False, 999, 99)
    assert isinstance(violation_of(broken, BOUNDS), Cancelled)


def test_a_lost_lease_excuses_from_every_limit_but_the_time_limit() -> None:
    lost = Sight(10, 99, 99, 99, True, 999, 99)
    assert isinstance(violation_of(lost, BOUNDS), LeaseLost)
    deaf = Sight(10.6, lost=True)
    assert isinstance(violation_of(deaf, BOUNDS), TimeLimit)


@given(st.floats(8, 3600))
def test_neighbours_of_a_blocking_run_can_be_handed_back_before_their_leases_end(
    lease: float,
) -> None:
    last_heartbeat = lease / 3 + 2.0
    struck = blocking_seconds(lease) + BLOCKING_GRACE_SECONDS
    assert 1.0 <= blocking_seconds(lease) <= lease / 2
    assert last_heartbeat + struck < lease
