"""Which jobs share a message, and in which order messages are sent."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from app.broker.messages import in_messages
from models.jobs.dispatch import Dispatch

POOLS = st.sampled_from(["short", "medium", "long", "gone"])
LENGTHS = {"echo": 0.05, "sleep": 1.5}


def jobs(*kinds: tuple[str, str]) -> list[Dispatch]:
    return [Dispatch(f"{place}", 1, *kind) for place, kind in enumerate(kinds)]


@given(
    st.lists(st.tuples(st.sampled_from(["echo", "sleep", "new"]), POOLS), max_size=80),
    st.integers(1, 8),
)
def test_every_job_is_in_one_message_of_its_type_and_queue(
    kinds: list[tuple[str, str]], workers: int
) -> None:
    dispatches = jobs(*kinds)
    messages = in_messages(dispatches, workers, LENGTHS)
    assert sorted(each.id for one in messages for each in one) == sorted(d.id for d in dispatches)
    for message in messages:
        assert len({(each.type, each.queue) for each in message}) == 1
        alone = message[0].pool in ("long", "gone") or message[0].type != "echo"
        assert len(message) == 1 or not alone or message[0].pool == "short"
    firsts = [int(message[0].id) for message in messages]
    assert firsts == sorted(firsts)


def test_long_jobs_of_two_types_take_turns_as_they_were_picked() -> None:
    picked = jobs(*[("sleep", "medium"), ("new", "medium")] * 5)
    assert [message[0].id for message in in_messages(picked, 1, LENGTHS)] == [d.id for d in picked]


def test_jobs_of_a_moment_share_messages_in_every_green_pool() -> None:
    several = in_messages(jobs(*[("echo", "medium")] * 85), 1, LENGTHS)
    assert [len(each) for each in several] == [40, 40, 5]
    assert len(in_messages(jobs(*[("echo", "medium")] * 85), 1, LENGTHS, 25)) == 1, "25 slots"
    assert len(in_messages(jobs(*[("echo", "medium")] * 40), 4, LENGTHS)) == 4, "one per worker"
    assert len(in_messages(jobs(*[("echo", "long")] * 4), 1, LENGTHS)) == 4, "prefork"
