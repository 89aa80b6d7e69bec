"""Links of columns that a table can be sorted by; waits and durations; numbers of a form."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.console.formatting import ran, waited
from app.console.sorting import Sorting, parse_sort, with_links
from app.console.tenants.terms_form import number, shown
from app.reads.ordered import OrderedPlace, parse_ordered

COLUMNS = ("name", "wait", "ended")
USUAL = Sorting("name", descending=False)
NOON = datetime(2030, 1, 31, 12, tzinfo=UTC)
THIN = "\u202f"


@given(st.sampled_from(COLUMNS), st.booleans())
def test_a_sort_is_read_as_it_was_written(name: str, down: bool) -> None:
    sorting = Sorting(name, down)
    assert parse_sort(sorting.text, COLUMNS, USUAL) == sorting


@given(st.text())
def test_whatever_is_asked_for_is_a_column_or_the_usual_one(text: str) -> None:
    assert parse_sort(text, COLUMNS, USUAL).name in COLUMNS


@given(st.sampled_from(COLUMNS), st.booleans())
def test_a_second_click_turns_the_order_round(name: str, down: bool) -> None:
    links = with_links(Sorting(name, down), COLUMNS, ("name",), lambda sort: sort).links
    assert links[name] == Sorting(name, not down).text
    for other in set(COLUMNS) - {name}:
        assert links[other] == Sorting(other, other != "name").text, "largest first, names rising"


@given(
    st.datetimes(timezones=st.just(UTC)),
    st.floats(allow_nan=False, allow_infinity=False),
    st.integers(0, 2**63),
    st.uuids(),
)
def test_a_place_survives_the_way_through_a_link(
    as_of: datetime, number: float, transaction: int, job_id: object
) -> None:
    for place in (
        OrderedPlace(as_of, repr(number), str(job_id)),
        OrderedPlace(as_of, str(transaction), str(job_id), walked=True),
    ):
        assert parse_ordered(str(place)) == place


@given(st.text())
def test_no_text_is_taken_for_a_place_by_mistake(text: str) -> None:
    try:
        place = parse_ordered(text)
    except ValueError:
        return
    assert math.isfinite(float(place.key)) and place.as_of.tzinfo


def job(status: str, **fields: Any) -> dict[str, Any]:
    times = dict.fromkeys(("execute_at", "started_at", "finished_at"))
    return {"status": status, "created_at": NOON, **times, "crashes": 0, "replays": 0, **fields}


def after(seconds: float) -> datetime:
    return NOON + timedelta(seconds=seconds)


@pytest.mark.parametrize(
    ("given", "wait", "run"),
    [
        (job("succeeded", started_at=after(3), finished_at=after(5)), f"3.0{THIN}s", f"2.0{THIN}s"),
        (job("cancelled", finished_at=after(5)), "–", "–"),
        # Cancelled while it waited for another run: the one before ended before it was due.
        (job("cancelled", execute_at=after(9), started_at=after(3)), "–", "–"),
        (job("dead", crashes=1, started_at=after(3), finished_at=after(4)), "–", f"1.0{THIN}s"),
        (job("dead", replays=1, started_at=after(3), finished_at=after(4)), "–", f"1.0{THIN}s"),
        (job("queued", replays=1), "–", "–"),
    ],
)
def test_what_is_over_has_a_wait_and_a_duration_if_they_are_known(
    given: dict[str, Any], wait: str, run: str
) -> None:
    assert (str(waited(given)), str(ran(given))) == (wait, run)


def test_what_goes_on_is_counted_by_the_browser() -> None:
    due = job("queued", execute_at=after(60))
    assert 'datetime="2030-01-31T12:01:00.000Z"' in waited(due) and "data-age" in waited(due)
    running = job("running", started_at=after(4))
    assert waited(running) == f"4.0{THIN}s" and "12:00:04" in ran(running)
    assert waited(job("scheduled", execute_at=after(60))).startswith("due <time")


@given(st.floats(0.001, 1e12) | st.integers(0, 10**12))
def test_a_number_is_typed_as_it_is_shown(value: float) -> None:
    assert number(shown(value)) == pytest.approx(value, rel=1e-11)


@given(st.text())
def test_whatever_is_typed_is_nothing_a_finite_number_or_a_text(text: str) -> None:
    found = number(text)
    assert found is None or isinstance(found, str) or math.isfinite(found)
