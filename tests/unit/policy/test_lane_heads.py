"""Lane heads cover every queued job that arrived, whatever was dispatched before."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from app.policy.lane_heads import MOST_STRETCHES, OPEN, LaneHeads

PRIORITIES = st.integers(-2, 2)
IDS = st.integers(0, 60).map(lambda number: f"{number:08x}-0000-7000-8000-000000000000")
#: Jobs queued by one statement, of one priority; or how many are taken from the lane.
ARRIVAL = st.tuples(PRIORITIES, st.sets(IDS, min_size=1, max_size=4))
STEPS = st.lists(ARRIVAL | st.integers(1, 6), max_size=60)

Job = tuple[int, str]


def covered(heads: LaneHeads, job: Job) -> bool:
    return any(priority == job[0] and a <= job[1] <= z for priority, a, z in heads)


@given(STEPS)
def test_every_queued_job_is_in_a_stretch_and_comes_in_order(steps: list) -> None:  # type: ignore[type-arg]
    heads, queued = LaneHeads(), set[Job]()
    for step in steps:
        if isinstance(step, int):
            walked = [
                (priority, each)
                for priority, first, last in heads
                for each in sorted(job_id for of, job_id in queued if of == priority)
                if first <= each <= last
            ]
            in_order = sorted(queued, key=lambda job: (-job[0], job[1]))
            assert walked == in_order, "each once, in the order of the lane"
            taken = walked[:step]
            queued -= set(taken)
            if taken:
                heads.advance(*taken[-1])
        else:
            priority, ids = step
            queued |= {(priority, job_id) for job_id in ids}
            heads.add(priority, min(ids), max(ids))
        assert all(covered(heads, job) for job in queued)
        assert len(heads) <= 5 * MOST_STRETCHES


def test_a_retry_is_found_without_a_walk_over_what_was_dispatched_since() -> None:
    heads = LaneHeads()
    heads.add(0, "10", "19")
    heads.advance(0, "18")
    heads.add(0, "12", "13")
    assert list(heads) == [(0, "12", "13"), (0, "18", OPEN)]
    heads.advance(0, "13")
    heads.advance(0, "19")
    assert list(heads) == [(0, "19", OPEN)]


def test_higher_priorities_come_first_and_are_dropped_once_passed() -> None:
    heads = LaneHeads()
    heads.add(0, "10", "11")
    heads.add(5, "12", "12")
    assert list(heads) == [(5, "12", OPEN), (0, "10", OPEN)]
    heads.advance(0, "10")
    assert list(heads) == [(0, "10", OPEN)]
