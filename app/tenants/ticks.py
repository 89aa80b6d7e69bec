"""What to do about the ticks that are due. Pure: ``now`` is passed in.

Usually that is one, a moment ago. After an outage there may be thousands, and the schedule says
which of them are made up for:

* ``none``: the newest, if it is not older than ``LATE_SECONDS``; a change of leader is no outage
* ``one``: the newest, however old
* ``all``: each, oldest first, but no more than the newest ``MOST_MADE_UP``; a part in each turn

A schedule whose jobs must not overlap has one job at a time, so at most one tick is made up for.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from itertools import islice

from app.tenants.cron import MINUTE, Rule, next_tick, ticks_ago

#: A tick this late is not missed yet.
LATE_SECONDS = 60.0
#: Ticks of an outage that are made up for at most.
MOST_MADE_UP = 1_000
#: Jobs that one schedule makes in one turn.
MOST_A_TURN = 100


class Overlap(StrEnum):
    """What becomes of a tick while the job of the one before has not ended."""

    ALLOW = "allow"
    SKIP = "skip"


class CatchUp(StrEnum):
    """Which ticks of an outage are made up for."""

    NONE = "none"
    ONE = "one"
    ALL = "all"


@dataclass(frozen=True, slots=True)
class TickPolicy:
    """What a schedule wants."""

    overlap: Overlap = Overlap.ALLOW
    catch_up: CatchUp = CatchUp.ONE

    @property
    def contradicts_itself(self) -> bool:
        """Jobs made up for would overlap."""
        return self.overlap is Overlap.SKIP and self.catch_up is CatchUp.ALL


@dataclass(frozen=True, slots=True)
class TickDecision:
    """What becomes of the ticks up to now."""

    #: When to look again; due already if there was too much for one turn. None: never.
    next_at: datetime | None
    #: Each becomes a job, oldest first.
    made: tuple[datetime, ...] = ()
    #: Not made because the job before has not ended.
    skipped: datetime | None = None
    #: First and last of those that an outage took, and nobody makes up for.
    missed: tuple[datetime, datetime] | None = None


def decide(
    rule: Rule,
    policy: TickPolicy,
    *,
    next_at: datetime,
    now: datetime,
    busy: bool = False,
    most: int = MOST_A_TURN,
) -> TickDecision:
    """What becomes of the ticks from ``next_at``, which is one, to ``now``.

    ``busy``: the job of the tick before has not ended.
    """
    if next_at > now:
        return TickDecision(next_at)
    many = policy.catch_up is CatchUp.ALL and policy.overlap is Overlap.ALLOW
    first, before = oldest_of_newest(rule, next_at, now, MOST_MADE_UP if many else 1)
    due: list[datetime] = []
    following: datetime | None = first
    while following is not None and following <= now and len(due) < most:
        due.append(following)
        following = next_tick(rule, following)
    missed = None if before is None else (next_at, before)
    if policy.catch_up is CatchUp.NONE and now - first > timedelta(seconds=LATE_SECONDS):
        return TickDecision(following, missed=(next_at, first))
    if policy.overlap is Overlap.SKIP and busy:
        return TickDecision(following, skipped=first, missed=missed)
    return TickDecision(following, made=tuple(due), missed=missed)


@dataclass(frozen=True, slots=True)
class DroppedTicks:
    """Ticks that were due and are not made, because the schedule was changed."""

    first: datetime
    last: datetime
    #: At most ``MOST_MADE_UP`` are counted.
    count: int


def drop_due(rule: Rule | None, first: datetime, now: datetime) -> DroppedTicks:
    """The ticks from ``first``, which is due, to ``now``; only that one if there is no rule."""
    if rule is None:
        return DroppedTicks(first, first, 1)
    counted = sum(1 for _ in islice(ticks_between(rule, first, now), MOST_MADE_UP - 1))
    return DroppedTicks(first, oldest_of_newest(rule, first, now, 1)[0], 1 + counted)


def oldest_of_newest(
    rule: Rule, first: datetime, until: datetime, most: int
) -> tuple[datetime, datetime | None]:
    """The oldest of the newest ``most`` ticks from ``first`` to ``until``, and the one before.

    Looks back from the end: a year of minutes is not walked through for its last one. No
    further than to ``first``, and at most about ``most`` ticks there and back.
    ``first`` counts as a tick: it was promised, even if zones have changed since.
    """
    if until - first < MINUTE * most:
        return first, None  # no more than one a minute
    reach = most + 1
    while True:
        start = ticks_ago(rule, until, reach, first)
        # One more than is wanted: the one before.
        found: deque[datetime] = deque(maxlen=most + 1)
        if start is None or start < first:
            found.append(first)
            start = first
        found.extend(ticks_between(rule, start, until))
        if len(found) > most:
            return found[1], found[0]
        if start == first:
            return found[0], None
        reach *= 2


def ticks_between(rule: Rule, after: datetime, until: datetime) -> Iterator[datetime]:
    """Ticks later than ``after`` and no later than ``until``."""
    tick = next_tick(rule, after)
    while tick is not None and tick <= until:
        yield tick
        tick = next_tick(rule, tick)
