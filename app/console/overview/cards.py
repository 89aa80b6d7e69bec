"""What the overview shows, as values: a pool's card, the day's totals."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from app.console.overview.health import PoolHealth


@dataclass(frozen=True, slots=True)
class Waits:
    """Since when jobs of a pool wait: in its line, and due outside of it."""

    line: datetime | None
    #: Whether there were more heads of lines than were looked at.
    cut: bool
    #: May be in the future.
    due: datetime | None

    def oldest(self, now: datetime, slot_wait: float | None) -> datetime | None:
        """Since when the oldest waits; of a long line, at least as long as the autoscaler saw."""
        found = [one for one in (self.line, self.due) if one is not None and one < now]
        if self.cut and slot_wait is not None:
            found.append((now - timedelta(seconds=slot_wait)).replace(microsecond=0))
        return min(found, default=None)


@dataclass(frozen=True, slots=True)
class Card:
    """A pool as the page shows it."""

    name: str
    waiting: int
    scheduled: int
    in_flight: int
    #: Since when the oldest waits; None if none does.
    oldest_since: datetime | None
    #: How long the oldest may wait, and does, as far as it is for a slot.
    objective_seconds: float
    wait_seconds: float
    #: Whether it is older than that, but held by something else than a missing slot.
    held: bool
    #: In a minute; None if nobody has counted lately.
    rate_in: float | None
    rate_out: float | None
    busy: int
    slots: int
    living: int
    desired: int | None
    #: At least so many, if not all of the deployment's were counted.
    dead_letters: int
    uncounted: bool
    #: Jobs that ended in the last minutes, and how many of them died.
    ended: int
    died: int

    @property
    def late(self) -> bool:
        """Whether the oldest waits for a slot longer than it should."""
        return self.wait_seconds > self.objective_seconds

    def health(self, served: bool) -> PoolHealth:
        """What it is judged by."""
        return PoolHealth(
            name=self.name,
            waiting=self.waiting,
            wait_seconds=self.wait_seconds,
            objective_seconds=self.objective_seconds,
            slots=self.slots,
            busy=self.busy,
            served=served,
            ended=self.ended,
            died=self.died,
        )


@dataclass(frozen=True, slots=True)
class Totals:
    """What came and ended in the last day, or since that is written down."""

    since: datetime | None
    submitted: int = 0
    succeeded: int = 0
    dead: int = 0
    cancelled: int = 0
    expired: int = 0
