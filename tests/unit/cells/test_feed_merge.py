"""The feeds of several cells become one: in order, without a gap, resumed where they were left."""

from __future__ import annotations

import re
from datetime import UTC, datetime

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.cells.feed_merge import (
    BEGINNING,
    HOLD_SECONDS,
    FeedMerge,
    FeedPosition,
    parse_feed_position,
)
from app.policy.placement import CELLS_OF_A_TENANT
from app.reads.events.message import KEEP_ALIVE, OPENING, message, place
from app.reads.events.position import parse_position

START = 1_900_000_000
ID = re.compile(rb"^id: (.*)$", re.MULTILINE)
NUMBER = re.compile(rb'"number":(\d+)')


def event(position: int, at: float, number: int) -> bytes:
    """An event as a cell sends it."""
    moment = datetime.fromtimestamp(START + at, UTC).isoformat(timespec="milliseconds")
    data = {"number": number, "at": moment.replace("+00:00", "Z")}
    return message("job_succeeded", orjson.dumps(data), f"{position}-0")


def numbers(data: bytes) -> list[int]:
    return [int(found) for found in NUMBER.findall(data)]


def last_position(data: bytes) -> FeedPosition:
    found = parse_feed_position(ID.findall(data)[-1].decode())
    assert found is not None
    return found


def begun(*cells: str) -> FeedMerge:
    """A client that begins, of cells that are at position 10."""
    merge = FeedMerge(cells, None, START)
    for cell in cells:
        merge.feeds[cell].add(OPENING + place("10-0"), 0.0)
    return merge


def test_a_position_holds_one_of_each_cell_and_can_be_read_back() -> None:
    position = FeedPosition(17, {"cell-2": "ab12cd34.5-7", "cell-1": "9-1"})

    assert str(position) == "17~cell-1:9-1,cell-2:ab12cd34.5-7"
    assert parse_feed_position(str(position)) == position
    for wrong in ("", "9-1", "17~", "17~cell-1", "17~cell-1:9-1,", "x~cell-1:9-1", "17~a:\n"):
        assert parse_feed_position(wrong) is None
    assert parse_position(BEGINNING) is not None


def test_a_position_of_all_cells_that_a_tenant_moves_between_can_be_read_back() -> None:
    position = FeedPosition(
        17, {f"cell-{number}": "9-1" for number in range(2 * CELLS_OF_A_TENANT)}
    )
    assert parse_feed_position(str(position)) == position


def test_nothing_is_sent_before_every_cell_has_said_where_it_is() -> None:
    merge = FeedMerge(["a", "b"], None, START)
    merge.feeds["a"].add(place("10-0") + event(11, 0.0, 1), 0.0)
    assert merge.take(9.0) == b""

    merge.feeds["b"].add(place("20-0"), 9.0)
    sent = merge.take(10.0)
    assert numbers(sent) == [1]
    first, last = (parse_feed_position(found.decode()) for found in ID.findall(sent))
    assert first is not None and first.cells == {"a": "10-0", "b": "20-0"}
    assert last is not None and last.cells == {"a": "11-0", "b": "20-0"}


def test_events_are_in_order_of_their_time_whichever_cell_is_read_first() -> None:
    merge = begun("a", "b")
    merge.feeds["b"].add(event(11, 0.2, 2), 1.0)
    assert numbers(merge.take(1.1)) == [], "a may have an earlier one"
    merge.feeds["a"].add(event(11, 0.1, 1) + event(12, 0.3, 3), 1.3)
    assert numbers(merge.take(1.3)) == [1, 2]
    assert numbers(merge.take(1.3 + HOLD_SECONDS)) == [3]


def test_a_silent_cell_delays_others_by_a_moment_only() -> None:
    merge = begun("a", "b")
    merge.take(5.0)
    merge.feeds["a"].add(event(11, 0.0, 1), 5.0)
    assert merge.seconds_until_next(5.0) == pytest.approx(HOLD_SECONDS)
    assert numbers(merge.take(5.0 + HOLD_SECONDS)) == [1]
    assert merge.seconds_until_next(6.0) is None


def test_a_cell_that_is_away_delays_nothing_and_keeps_its_position() -> None:
    known = FeedPosition(START, {"a": "10-0", "b": "20-0"})
    merge = FeedMerge(["a", "b"], known, START)
    merge.feeds["b"].connected = False
    merge.feeds["a"].add(place("10-0") + event(11, 0.0, 1), 5.0)

    sent = merge.take(5.0)

    assert numbers(sent) == [1]
    assert last_position(sent).cells == {"a": "11-0", "b": "20-0"}


def test_a_position_without_an_event_is_passed_on_and_keep_alives_are_not() -> None:
    merge = begun("a", "b")
    merge.take(5.0)
    merge.feeds["a"].add(KEEP_ALIVE + place("15-0") + place("16-0"), 5.0)

    sent = merge.take(6.0)

    assert ID.findall(sent) == [str(last_position(sent)).encode()], "of two only the later one"
    assert last_position(sent).cells == {"a": "16-0", "b": "10-0"}


def test_a_cell_that_joined_is_read_from_its_beginning_without_old_events() -> None:
    merge = FeedMerge(["a", "b"], FeedPosition(START, {"a": "10-0"}), START)
    assert merge.feeds["b"].position == BEGINNING
    merge.feeds["b"].add(event(3, -3_600.0, 1) + event(4, -1.0, 2), 0.0)

    assert numbers(merge.take(5.0)) == [2]


def test_a_cell_that_has_left_is_forgotten() -> None:
    merge = FeedMerge(["b"], FeedPosition(START, {"a": "10-0", "b": "4-0"}), START)

    assert last_position(merge.take(0.0)).cells == {"b": "4-0"}


FEEDS = st.lists(
    st.lists(st.integers(0, 20).map(lambda tenths: tenths / 10), max_size=8).map(sorted),
    min_size=1,
    max_size=3,
)


@given(FEEDS, st.data())
def test_a_client_that_comes_back_misses_nothing_and_gets_nothing_twice(
    feeds: list[list[float]], data: st.DataObject
) -> None:
    cells = [f"cell-{number}" for number in range(len(feeds))]
    events = {
        cell: [
            (place_ + 11, event(place_ + 11, at, 100 * number + place_))
            for place_, at in enumerate(times)
        ]
        for number, (cell, times) in enumerate(zip(cells, feeds, strict=True))
    }
    known = FeedPosition(START, dict.fromkeys(cells, "10-0"))
    got: list[int] = []
    for last_time in (False, False, False, True):
        merge = FeedMerge(cells, known, START)
        for cell in cells:
            after = int(known.cells[cell].partition("-")[0])
            rest = [sent for number, sent in events[cell] if number > after]
            # As much of it as was read when the connection broke.
            shown = rest if last_time else rest[: data.draw(st.integers(0, len(rest)))]
            merge.feeds[cell].add(b"".join(shown), 0.0)
        now = HOLD_SECONDS if last_time else data.draw(st.sampled_from([0.0, HOLD_SECONDS]))
        sent = merge.take(now)
        got += numbers(sent)
        known = last_position(sent)
    expected = sorted(
        100 * number + place_ for number, of in enumerate(feeds) for place_ in range(len(of))
    )
    assert sorted(got) == expected
    for number in range(len(feeds)):
        own = [one for one in got if one // 100 == number]
        assert own == sorted(own), "the order of a cell is kept"
