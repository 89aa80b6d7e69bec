"""Cron expressions in a time zone: the next tick after a moment. Pure.

Five fields as Debian's cron reads them (and ``L``, ``LW``, ``MON#1``, ``5L``), and what it does
when the clocks change:

* minute and hour both without a leading ``*``: a time of day. It comes once per day: in an hour
  that happens twice, the first time; in an hour that does not happen, when the clock has jumped.
* minute or hour with a leading ``*``: an interval. It comes whenever local time is such a time:
  twice in an hour that happens twice, never in one that does not.

CronSim parses the expression and walks local time; which moments that means is decided here. Its
own walk through zones was rejected: it goes by the hour, and loses ticks where clocks change by
half an hour (Lord Howe).
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from itertools import islice, takewhile
from zoneinfo import ZoneInfo, available_timezones

from cronsim import CronSim, CronSimError

#: With the lowest and highest value of each.
FIELDS = {
    "minute": (0, 59),
    "hour": (0, 23),
    "day of month": (1, 31),
    "month": (1, 12),
    "day of week": (0, 7),
}
#: No clock is set back by more.
SHADOW = timedelta(hours=3)
MINUTE = timedelta(minutes=1)
#: No zone differs from itself by more.
LARGEST_SHIFT = timedelta(days=2)
#: A tick is searched for so many years ahead; CronSim itself stops after as many.
MOST_YEARS = 50
LONGEST_YEAR = timedelta(days=366)
#: Names of files beside the zones: the server's own clock, no clock, and copies of all zones.
NO_ZONES = frozenset({"localtime", "Factory", "posixrules"})
COPIES = ("posix/", "right/")
#: Where an expression is tried out.
SOME_DAY = datetime(2000, 1, 1)  # noqa: DTZ001  # local time


class BadCron(ValueError):
    """An invalid expression."""


class UnknownZone(ValueError):
    """A time zone that this machine does not have."""


@dataclass(frozen=True, slots=True)
class Rule:
    """When ticks come."""

    #: Five fields, one space between them.
    cron: str
    zone: ZoneInfo

    @property
    def is_interval(self) -> bool:
        """Whether it goes by local time as shown, and not by the time of day."""
        minute, hour, *_ = self.cron.split(" ")
        return minute.startswith("*") or hour.startswith("*")


def read_rule(cron: str, timezone: str) -> Rule:
    """The rule that a caller means; BadCron or UnknownZone if there is none."""
    if timezone not in known_zones():
        raise UnknownZone("is no time zone of the IANA database, such as Europe/Berlin")
    return Rule(read_cron(cron), ZoneInfo(timezone))


def read_cron(text: str) -> str:
    """The expression, with one space between its fields."""
    fields = text.split()
    if not text.isascii() or len(fields) != len(FIELDS):
        raise BadCron(f"must have five fields: {', '.join(FIELDS)}")
    plain = " ".join(fields)
    try:
        CronSim(plain, SOME_DAY)
    except CronSimError:
        raise BadCron(refusal(fields)) from None
    return plain


def refusal(fields: list[str]) -> str:
    """What is wrong with an expression; what no part of it explains is a date without a month."""
    for place, (name, (least, most)) in enumerate(FIELDS.items()):
        for term in fields[place].split(","):
            alone = ["*"] * len(FIELDS)
            alone[place] = term
            try:
                CronSim(" ".join(alone), SOME_DAY)
            except CronSimError:
                why = f"is not from {least} to {most}" if term.isdigit() else "is not understood"
                return f"{name} {term[:40]!r} {why}"
    return "no such time ever comes"


@cache
def known_zones() -> frozenset[str]:
    """Names of all time zones."""
    names = available_timezones() - NO_ZONES
    return frozenset(name for name in names if not name.startswith(COPIES))


def next_tick(rule: Rule, after: datetime) -> datetime | None:
    """The first tick later than ``after``, in UTC; None if none comes in 50 years."""
    try:
        start = wall_of(after, rule.zone)
        return (next_shown if rule.is_interval else next_daily)(rule, start, after)
    except OverflowError:
        return None  # beyond the last day of all


def next_daily(rule: Rule, start: datetime, after: datetime) -> datetime | None:
    """Of a time of day, the first after ``after``, which is ``start`` in local time."""
    for shown in CronSim(rule.cron, start):
        real = shown
        while not happens(real, rule.zone):
            real += MINUTE
        tick = moment_of(real, rule.zone)
        if tick > after:
            return tick
    return None


def next_shown(rule: Rule, start: datetime, after: datetime) -> datetime | None:
    """Of an interval, the first after ``after``, which is ``start`` in local time."""
    again: datetime | None = None
    last = start + MOST_YEARS * LONGEST_YEAR
    for shown in CronSim(rule.cron, start - put_back(after, rule.zone)):
        if shown > last:
            break  # all so far fall into hours that the clock skips
        if not happens(shown, rule.zone):
            continue
        first, second = (moment_of(shown, rule.zone, fold) for fold in (0, 1))
        if first > after:
            # Later in local time, and still sooner than an hour that comes again.
            return first if again is None else min(first, again)
        if again is None and second > after:
            again = second
    return again


def put_back(moment: datetime, zone: ZoneInfo) -> timedelta:
    """By how much the clock is set back at about this time: so much local time comes again."""
    before, later = (
        (moment + shift).astimezone(zone).utcoffset() or timedelta(0) for shift in (-SHADOW, SHADOW)
    )
    return max(before - later, timedelta(0))


def ticks_ago(rule: Rule, moment: datetime, count: int, since: datetime) -> datetime | None:
    """When there were about ``count`` ticks to come before ``moment``; None: not after ``since``.

    Only about: clocks that change are not looked at. Looks no further back than ``since``: a
    thousand leap days ago there was no calendar.
    """
    earliest = wall_of(since, rule.zone) - LARGEST_SHIFT
    back = CronSim(rule.cron, wall_of(moment, rule.zone), reverse=True)
    with suppress(OverflowError):
        ticks = takewhile(lambda shown: shown >= earliest, back)
        found = next(islice(ticks, count - 1, None), None)
        return None if found is None else moment_of(found, rule.zone) - MINUTE
    return None


def wall_of(moment: datetime, zone: ZoneInfo) -> datetime:
    """The moment in local time."""
    return moment.astimezone(zone).replace(tzinfo=None, fold=0)


def moment_of(shown: datetime, zone: ZoneInfo, fold: int = 0) -> datetime:
    """When local time is this, for the first or for the second time."""
    return shown.replace(tzinfo=zone, fold=fold).astimezone(UTC)


def happens(shown: datetime, zone: ZoneInfo) -> bool:
    """Whether this local time ever comes."""
    return wall_of(moment_of(shown, zone), zone) == shown
