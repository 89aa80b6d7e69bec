"""The next tick of a cron expression, above all where clocks change."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import cache
from itertools import islice, takewhile
from zoneinfo import ZoneInfo

import pytest
from cronsim import CronSim
from hypothesis import given, settings
from hypothesis import strategies as st

from app.tenants import cron as tenants_cron
from app.tenants.cron import BadCron, UnknownZone, next_tick, read_rule

MINUTE = timedelta(minutes=1)
#: Hours before the clocks change, by half an hour on Lord Howe.
CHANGES = {
    "Europe/Berlin": (
        datetime(2026, 3, 28, 21, tzinfo=UTC),
        datetime(2026, 10, 24, 21, tzinfo=UTC),
    ),
    "America/New_York": (datetime(2026, 3, 8, 3, tzinfo=UTC), datetime(2026, 11, 1, 2, tzinfo=UTC)),
    "Australia/Lord_Howe": (
        datetime(2026, 4, 4, 11, tzinfo=UTC),
        datetime(2026, 10, 3, 11, tzinfo=UTC),
    ),
}


def ticks(cron: str, zone: str, after: datetime) -> Iterator[datetime]:
    rule, tick = read_rule(cron, zone), next_tick(read_rule(cron, zone), after)
    while tick is not None:
        yield tick
        tick = next_tick(rule, tick)


def shown(cron: str, zone: str, day: str, count: int) -> str:
    """What the clock on the wall shows at the first ticks from that midnight on."""
    midnight = datetime.fromisoformat(day).replace(tzinfo=ZoneInfo(zone))
    found = islice(ticks(cron, zone, midnight - MINUTE), count)
    return ", ".join(f"{tick.astimezone(ZoneInfo(zone)):%d %H:%M%z}" for tick in found)


@pytest.mark.parametrize(
    ("zone", "day", "cron", "wanted"),
    [
        # A time of day that is left out comes when the clock has jumped, and is not lost.
        ("Europe/Berlin", "2026-03-29", "30 2 * * *", "29 03:00+0200, 30 02:30+0200"),
        ("America/New_York", "2026-03-08", "30 2 * * *", "08 03:00-0400, 09 02:30-0400"),
        ("Australia/Lord_Howe", "2026-10-04", "15 2 * * *", "04 02:30+1100, 05 02:15+1100"),
        # Two of them come together.
        ("Europe/Berlin", "2026-03-29", "0,30 2 * * *", "29 03:00+0200, 30 02:00+0200"),
        ("Europe/Berlin", "2026-03-29", "0 2,3 * * *", "29 03:00+0200, 30 02:00+0200"),
        # A time of day that comes twice counts once.
        ("Europe/Berlin", "2026-10-25", "30 2 * * *", "25 02:30+0200, 26 02:30+0100"),
        ("America/New_York", "2026-11-01", "30 1 * * *", "01 01:30-0400, 02 01:30-0500"),
        ("Australia/Lord_Howe", "2026-04-05", "45 1 * * *", "05 01:45+1100, 06 01:45+1030"),
        # A rhythm goes on.
        ("Europe/Berlin", "2026-03-29", "0 * * * *", "29 00:00+0100, 29 01:00+0100, 29 03:00+0200"),
        ("Europe/Berlin", "2026-10-25", "30 */2 * * *",
         "25 00:30+0200, 25 02:30+0200, 25 02:30+0100, 25 04:30+0100"),
        ("America/New_York", "2026-11-01", "*/30 1 * * *",
         "01 01:00-0400, 01 01:30-0400, 01 01:00-0500, 01 01:30-0500, 02 01:00-0500"),
        ("Australia/Lord_Howe", "2026-10-04", "*/20 2-3 * * *",
         "04 02:40+1100, 04 03:00+1100, 04 03:20+1100"),
        ("Australia/Lord_Howe", "2026-04-05", "*/20 1-2 * * *",
         "05 01:00+1100, 05 01:20+1100, 05 01:40+1100, 05 01:40+1030, 05 02:00+1030"),
    ],
)  # fmt: skip
def test_ticks_where_clocks_change(zone: str, day: str, cron: str, wanted: str) -> None:
    assert shown(cron, zone, day, len(wanted.split(", "))) == wanted


@st.composite
def simple_crons(draw: st.DrawFn) -> tuple[str, set[int], set[int]]:
    """An expression, its minutes and its hours."""
    minutes = draw(st.sets(st.integers(0, 59), min_size=1, max_size=4))
    hours = draw(st.sets(st.integers(0, 4), min_size=1, max_size=3))
    minute, hour = (",".join(map(str, sorted(field))) for field in (minutes, hours))
    step = draw(st.sampled_from([0, 0, 1, 10]))
    if step:
        minute, minutes = f"*/{step}", set(range(0, 60, step))
    if draw(st.booleans()):
        hour, hours = "*", set(range(24))
    return f"{minute} {hour} * * *", minutes, hours


@cache
def clock(zone: str, start: datetime, hours: int) -> list[tuple[datetime, datetime]]:
    """Each minute and what the clock on the wall shows."""
    minutes = (start + MINUTE * number for number in range(hours * 60))
    return [(m, m.astimezone(ZoneInfo(zone)).replace(tzinfo=None, fold=0)) for m in minutes]


@given(
    simple_crons(),
    st.sampled_from([(zone, start) for zone, starts in CHANGES.items() for start in starts]),
    st.integers(0, 6 * 3600),
)
@settings(max_examples=40)
def test_ticks_are_those_that_a_look_at_every_minute_finds(
    cron: tuple[str, set[int], set[int]], change: tuple[str, datetime], seconds: int
) -> None:
    text, minutes, hours = cron
    zone, start = change
    rhythm = any(field.startswith("*") for field in text.split()[:2])
    wanted: list[datetime] = []
    last = datetime.min  # noqa: DTZ901  # the furthest that the clock on the wall has come
    for moment, wall in clock(zone, start, 8):
        # With each minute the clock shows one time, and may have come past others.
        passed = max(0, min(180, int((wall - last) / MINUTE)))
        came = [wall] if rhythm else [wall - MINUTE * back for back in range(passed)]
        if any(time.minute in minutes and time.hour in hours for time in came):
            wanted.append(moment)
        last = max(last, wall)
    after = start + timedelta(hours=1, seconds=seconds)
    found = takewhile(lambda tick: tick <= moment, ticks(text, zone, after))
    assert list(found) == [tick for tick in wanted if tick > after]


@given(
    st.sampled_from(
        ["*/7 * * * *", "5 4 * * *", "0 0 L * *", "30 1-3 * * SUN", "15 2 1-7 * MON#1"]
    ),
    st.sampled_from(["UTC", "Europe/Berlin", "America/New_York", "Asia/Kathmandu"]),
    st.datetimes(datetime(2024, 1, 1), datetime(2030, 1, 1)),  # noqa: DTZ001
)  # fmt: skip
@settings(max_examples=60)
def test_ticks_are_cronsims_own_where_clocks_change_by_the_hour(
    cron: str, zone: str, start: datetime
) -> None:
    after = start.replace(tzinfo=UTC)
    own = (t.astimezone(UTC) for t in CronSim(cron, after.astimezone(ZoneInfo(zone))))
    # Begun in an hour that comes again, CronSim takes it for the first.
    wanted = list(islice((t for t in own if t > after), 5))
    assert list(islice(ticks(cron, zone, after), 5)) == wanted


@pytest.mark.parametrize(
    ("cron", "refusal"),
    [
        ("", "five fields"),
        ("* * * *", "five fields"),
        ("0 * * * * *", "five fields"),
        ("@daily", "five fields"),
        ("*\u00a0* * * *", "five fields"),
        ("60 * * * *", "minute '60' is not from 0 to 59"),
        ("* 24 * * *", "hour '24' is not from 0 to 23"),
        ("* * 0 * *", "day of month '0'"),
        ("0 0 31 2 *", "no such time ever comes"),
        ("0 0 31 4,6,9,11 *", "no such time ever comes"),
        ("* * * 1,13 *", "month '13'"),
        ("* * * * 8", "day of week '8'"),
        ("*/0 * * * *", r"minute '\*/0' is not understood"),
        ("5-1 * * * *", "minute '5-1'"),
        ("1 b c d e", "hour 'b'"),
        ("* * * * ²L", "five fields"),
    ],
)
def test_what_is_no_expression_is_refused(cron: str, refusal: str) -> None:
    with pytest.raises(BadCron, match=refusal):
        read_rule(cron, "UTC")


def test_a_time_that_the_clock_always_leaves_out_is_looked_for_in_fifty_years(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = []
    happens = tenants_cron.happens

    def count(shown: datetime, zone: ZoneInfo) -> bool:
        asked.append(shown.year)
        return happens(shown, zone)

    monkeypatch.setattr(tenants_cron, "happens", count)
    # Between two and three on the last Sunday of March.
    rule = read_rule("*/30 2 * 3 0L", "Europe/Berlin")
    assert next_tick(rule, datetime(2026, 7, 1, tzinfo=UTC)) is None
    assert len(asked) == 100 and asked[-1] == 2076


@given(st.text("0123456789*,-/#LWMONJAN ", max_size=30))
def test_whatever_looks_like_an_expression_is_read_or_refused(text: str) -> None:
    try:
        rule = read_rule(text, "Europe/Berlin")
    except BadCron:
        return
    after = datetime(2026, 1, 1, tzinfo=UTC)
    tick = next_tick(rule, after)
    assert tick is None or (tick > after and tick.utcoffset() == timedelta(0))


@pytest.mark.parametrize(
    "zone",
    ["", "Berlin", "europe/berlin", "Europe", "../etc/passwd", "/etc/localtime", "+02:00",
     "posix/UTC", "right/UTC", "localtime", "Factory", "posixrules",
     "x" * 5000, "\x00", "Europe/Berlin "],
)  # fmt: skip
def test_what_is_no_zone_is_refused(zone: str) -> None:
    with pytest.raises(UnknownZone, match="IANA"):
        read_rule("* * * * *", zone)


def test_a_time_that_never_comes_has_no_tick() -> None:
    # The 1st or 21st, if it is also the last Monday of its month.
    assert next_tick(read_rule("0 0 */20 * 1L", "UTC"), datetime(2026, 1, 1, tzinfo=UTC)) is None


def test_an_expression_is_kept_plainly_written() -> None:
    assert read_rule("  0\t9  * *   mon-fri ", "UTC").cron == "0 9 * * mon-fri"
