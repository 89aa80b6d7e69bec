"""What the overview shows, as values: a pool's card, the totals of a day."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from app.console.overview.health import PoolHealth


@dataclass(frozen=True, slots=True)
class Waits:
    """Since when jobs of a pool wait: queued ones, and those due but not promoted."""

    queued: datetime | None
    #: Whether there were more heads of queues than were read.
    cut: bool
    #: May be in the future.
    due: datetime | None

    def oldest(self, now: datetime, slot_wait: float | None) -> datetime | None:
        """Since when the oldest waits; if not all were read, at least as the autoscaler saw."""
        found = [one for one in (self.queued, self.due) if one is not None and one < now]
        if self.cut and slot_wait is not None:
            found.append((now - timedelta(seconds=slot_wait)).replace(microsecond=0))
        return min(found, default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Card(PoolHealth):
    """A pool as the page shows it: what it is judged by, and more."""

    scheduled: int
    in_flight: int
    #: Since when the oldest job waits; None if none does.
    oldest_since: datetime | None
    #: Whether that is longer than the objective, but for another reason than a missing slot.
    held: bool
    #: Per minute; None without recent samples.
    rate_in: float | None
    rate_out: float | None
    living: int
    desired: int | None
    #: At least so many, if not all of the deployment's were counted.
    dead_letters: int
    uncounted: bool

    @property
    def late(self) -> bool:
        """Whether the oldest job waits for a slot longer than it should."""
        return self.wait_seconds > self.objective_seconds


@dataclass(frozen=True, slots=True)
class Totals:
    """Jobs of the last day, or since the first sample."""

    since: datetime | None
    submitted: int = 0
    succeeded: int = 0
    dead: int = 0
    cancelled: int = 0
    expired: int = 0
