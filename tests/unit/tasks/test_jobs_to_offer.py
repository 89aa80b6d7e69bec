"""How many jobs a worker offers to run: as many as it has free slots, in a few statements."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tasks.worker.offers import MOST_OFFERED, jobs_to_offer

slots = st.integers(1, 1000)
standing = st.lists(st.integers(0, 20), min_size=1, max_size=4)


@given(slots, st.data(), standing)
def test_what_is_written_is_for_free_slots_and_is_left_alone(
    slots: int, data: st.DataObject, standing: list[int]
) -> None:
    held = data.draw(st.integers(0, 2 * slots))
    jobs = jobs_to_offer(slots, held, standing)
    if jobs is not None:
        pools = len(standing)
        assert (jobs > 0) == (held < slots)
        assert jobs == 0 or jobs * pools <= max(pools, min(slots - held, MOST_OFFERED))
        assert jobs_to_offer(slots, held, [jobs] * pools) is None


@given(slots, st.integers(0, 100), standing)
def test_a_worker_without_a_free_slot_takes_everything_back(
    slots: int, waiting: int, standing: list[int]
) -> None:
    assert jobs_to_offer(slots, slots + waiting, standing) == (0 if any(standing) else None)


@given(slots, standing)
def test_an_idle_worker_offers_something_in_every_pool(slots: int, standing: list[int]) -> None:
    jobs = jobs_to_offer(slots, 0, standing)
    assert jobs is not None or all(standing)


@given(slots, st.data())
def test_a_worker_that_is_almost_full_offers_nothing_more(slots: int, data: st.DataObject) -> None:
    """While there is a queue, its slots are free for a moment again and again."""
    held = data.draw(st.integers(0, slots - 1))
    written = jobs_to_offer(slots, held, [0])
    free = slots - held
    assert (written is not None) == (4 * free >= slots or free >= MOST_OFFERED)


def test_ten_slots_of_which_half_are_busy_take_an_offer_for_every_three_jobs() -> None:
    left = 5
    for job in range(3):
        assert jobs_to_offer(10, 5, [left]) is None, job
        left -= 1
    assert jobs_to_offer(10, 5, [left]) == 5


def test_what_messages_have_taken_the_slots_for_is_taken_back() -> None:
    assert jobs_to_offer(10, 6, [6]) is None
    assert jobs_to_offer(10, 8, [6]) == 2
    assert jobs_to_offer(1000, 990, [16]) == 10
