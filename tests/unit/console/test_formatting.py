"""How values are told on pages."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.console.formatting import badge, count, duration, moment, percent, short_id

THIN = "\u202f"


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (None, "–"),
        (0, "0"),
        (7, "7"),
        (1234567, f"1{THIN}234{THIN}567"),
        (0.456, "0.46"),
        (12.34, "12.3"),
        (1234.5, f"1{THIN}234"),
    ],
)
def test_counts_have_as_many_digits_as_matter(value: float | None, told: str) -> None:
    assert count(value) == told


@pytest.mark.parametrize(
    ("seconds", "told"),
    [
        (None, "–"),
        (0, f"0{THIN}ms"),
        (0.0042, f"4{THIN}ms"),
        (1.5, f"1.5{THIN}s"),
        (59.9, f"60{THIN}s"),
        (300, f"5{THIN}min"),
        (7200, f"2.0{THIN}h"),
        (Decimal(864_000), f"10.0{THIN}d"),
    ],
)
def test_durations_have_the_unit_people_would_use(
    seconds: float | Decimal | None, told: str
) -> None:
    assert duration(seconds) == told


@given(st.floats(0, 1e9), st.floats(0, 1e9))
def test_a_longer_time_is_never_told_in_a_smaller_unit(one: float, other: float) -> None:
    units = ("ms", "s", "min", "h", "d")
    shorter, longer = sorted((one, other))
    assert units.index(duration(shorter).split(THIN)[1]) <= units.index(
        duration(longer).split(THIN)[1]
    )


def test_a_part_is_told_in_percent() -> None:
    assert percent(0.256) == f"26{THIN}%"
    assert percent(None) == "–"


def test_a_moment_is_told_in_utc_whatever_its_zone() -> None:
    there = datetime(2030, 1, 31, 12, 0, 0, 5000, tzinfo=timezone(timedelta(hours=5)))
    assert moment(there) == (
        '<time datetime="2030-01-31T07:00:00.005Z" title="2030-01-31 07:00:00 UTC">'
        "2030-01-31 07:00:00 UTC</time>"
    )
    assert moment(there) == moment(there.astimezone(UTC))


def test_no_moment_is_told_as_asked_and_escaped() -> None:
    assert moment(None, "<never>") == "&lt;never&gt;"


@given(st.text())
def test_a_badge_never_holds_markup_of_its_status(status: str) -> None:
    inside = str(badge(status)).removeprefix('<span class="badge ').removesuffix("</span>")
    assert "<" not in inside
    assert inside.count(">") == 1
    assert inside.count('"') == 1


def test_a_short_id_tells_jobs_of_one_moment_apart() -> None:
    assert short_id("01a1dcaf-1234-7abc-8def-0123456789ab") == "01a1dcaf…6789ab"
