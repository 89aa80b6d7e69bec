"""Positions in a feed survive the way to the client and back, in the order of the feed."""

from __future__ import annotations

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.reads.events.position import (
    ALL_EVENTS,
    NO_JOB,
    START,
    Position,
    of_end,
    of_event,
    parse_position,
    resumed,
    same_course,
    version_of,
)
from models.feed import FeedGeneration

numbers = st.integers(0, ALL_EVENTS - 1)
job_ids = st.uuids().map(str).filter(lambda job_id: job_id != NO_JOB)
tags = st.from_regex(r"[0-9a-f]{8}", fullmatch=True)
entries = st.one_of(
    st.builds(of_event, numbers, numbers), st.builds(of_end, numbers, job_ids), st.just(START)
)
positions = st.builds(
    lambda entry, tag: entry._replace(generation=tag), entries, st.just("") | tags
)


@given(positions)
def test_position_survives_the_way_to_the_client_and_back(position: Position) -> None:
    assert parse_position(str(position)) == position


@given(positions, positions)
def test_two_positions_never_look_alike(one: Position, other: Position) -> None:
    assert (str(one) == str(other)) == (one == other)


@given(numbers, numbers, job_ids, job_ids)
def test_events_of_a_transaction_come_before_its_ends_and_both_before_the_next(
    xid: int, event_id: int, one: str, other: str
) -> None:
    assert START <= of_event(xid, event_id) < of_end(xid, one) < of_event(xid + 1, 0)
    # As PostgreSQL sorts them.
    assert (of_end(xid, one) < of_end(xid, other)) == (
        uuid.UUID(one).bytes < uuid.UUID(other).bytes
    )


@given(st.text())
def test_whatever_is_parsed_is_written_the_same_way(text: str) -> None:
    position = parse_position(text)
    assert position is None or str(position) == text


@pytest.mark.parametrize(
    "text",
    [
        *("", "1", "-", "1-", "-1", "01-1", "1-01", "1--1", "1-1 ", " 1-1", "1-1\n", "１-1"),
        f"1-{NO_JOB}",
        f"{2**63}-1",
        f"1-{2**63 - 1}",
        f"1-{2**63}",
        f"1-{str(uuid.UUID(int=1)).replace('-', '')}",
        f"1-{uuid.UUID(int=0xA << 64)}".upper(),
    ],
)
def test_what_was_never_given_out_is_refused(text: str) -> None:
    assert parse_position(text) is None


@given(
    st.tuples(st.integers(), st.text()),
    st.tuples(st.integers(), st.text()),
    st.none() | st.text(min_size=1),
    st.none() | st.text(min_size=1),
)
def test_version_tells_what_changed(
    course: tuple[int, str],
    other_course: tuple[int, str],
    progress: str | None,
    other_progress: str | None,
) -> None:
    one, other = version_of(course, progress), version_of(other_course, other_progress)
    assert same_course(one, other) == (course == other_course)
    assert (one == other) == ((course, progress) == (other_course, other_progress))
    assert not same_course(one, "")


def generations_of(*begun: tuple[str, int]) -> list[FeedGeneration]:
    return [FeedGeneration(tag, 0, first) for tag, first in (("", 0), *begun)]


@given(positions, st.lists(st.tuples(tags, numbers), unique_by=lambda one: one[0], max_size=4))
def test_a_reader_goes_on_at_or_before_where_it_was_and_before_what_it_cannot_know(
    position: Position, begun: list[tuple[str, int]]
) -> None:
    generations = generations_of(*begun)
    after = resumed(position, generations)
    assert after.generation == generations[-1].tag
    assert after <= position._replace(generation=after.generation)
    assert resumed(after, generations) == after
    tags_in_order = [one.tag for one in generations]
    if position.generation == after.generation:
        assert after == position
        return
    known = position.generation in tags_in_order
    place = tags_in_order.index(position.generation) if known else len(begun) - 1
    later = [one.first for one in generations[place + 1 :]]
    # An entry that a later generation numbered comes after the reader's place …
    assert all(after < of_event(first, 1) for first in later)
    # … and nothing is repeated that none of them can have written.
    assert after.xid == min([position.xid, *later])


def test_positions_of_before_there_were_generations_are_of_the_first() -> None:
    position = parse_position("1000-7")
    assert position == of_event(1000, 7)
    assert str(position) == "1000-7"
    assert resumed(position, generations_of()) == position
    assert str(resumed(position, generations_of(("0a1b2c3d", 900)))) == "0a1b2c3d.900-0"
    assert str(resumed(position, generations_of(("0a1b2c3d", 2000)))) == "0a1b2c3d.1000-7"
