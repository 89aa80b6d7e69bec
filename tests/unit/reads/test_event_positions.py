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
    same_course,
    version_of,
)

numbers = st.integers(0, ALL_EVENTS - 1)
job_ids = st.uuids().map(str).filter(lambda job_id: job_id != NO_JOB)
positions = st.one_of(
    st.builds(of_event, numbers, numbers), st.builds(of_end, numbers, job_ids), st.just(START)
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
