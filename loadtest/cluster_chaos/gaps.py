"""How long the service and its engines stood still around a fault. Pure."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from loadtest.cluster_chaos.plan import MACHINE_LOST

#: Successes are this far apart, or less, while everything works.
USUAL_SECONDS = 1.0
#: How soon applications are accepted after an engine has a leader again.
POSTGRES_BAR, RABBITMQ_BAR = 5.0, 2.0


@dataclass(frozen=True, slots=True)
class Gap:
    """A time without a success."""

    seconds: float
    #: When it was over.
    end: float

    @property
    def begin(self) -> float:
        return self.end - self.seconds


def gaps(times: Sequence[float], since: float, until: float) -> list[Gap]:
    """The times between successes in a span; ``times`` are in order. One may end after the span."""
    first, last = bisect_left(times, since), bisect_right(times, until)
    edges = [since, *times[first : last + 1]]
    if not times or times[-1] < until:
        edges.append(until)
    return [Gap(later - one, later) for one, later in pairwise(edges)]


def longest(found: Sequence[Gap]) -> Gap:
    return max(found, key=lambda gap: gap.seconds, default=Gap(0.0, 0.0))


def own_seconds(service: Sequence[Gap], engines: Sequence[Gap]) -> float:
    """The longest time for which the service stood still although no engine did."""
    away = [gap for gap in engines if gap.seconds >= USUAL_SECONDS]
    return max((_without(gap, away) for gap in service if gap.seconds >= USUAL_SECONDS), default=0)


def _without(gap: Gap, others: Sequence[Gap]) -> float:
    """The part of a gap in which none of the others was."""
    left, moment = 0.0, gap.begin
    for other in sorted(others, key=lambda one: one.begin):
        left += max(0.0, min(other.begin, gap.end) - moment)
        moment = max(moment, min(other.end, gap.end))
    return left + gap.end - moment


@dataclass(frozen=True, slots=True)
class Outage:
    """What one fault of an engine or a machine did. Times are in seconds since the epoch."""

    kind: str
    #: The machine, or what else was chosen.
    where: str
    at: float
    #: When it was undone, and when all members were back.
    until: float
    back: float
    #: The longest times without a commit, a confirmed message, an accepted and an ended job.
    postgres: Gap
    rabbitmq: Gap
    accepting: Gap
    ending: Gap
    #: Longest time without an accepted job that no engine accounts for.
    own: float
    #: Whether a standby of PostgreSQL was promoted meanwhile.
    promoted: bool = False

    @property
    def without_postgres(self) -> bool:
        """Whether PostgreSQL was away for longer than usual, or has another leader since: one that
        takes over before the last one has ended leaves no gap."""
        return self.promoted or self.postgres.seconds >= USUAL_SECONDS

    @property
    def stopped(self) -> bool:
        """Whether nothing was accepted until a lost machine was back."""
        gap = self.accepting
        late = gap.begin < self.until < gap.end and gap.seconds >= USUAL_SECONDS
        return self.kind in MACHINE_LOST and late


def after_postgres(outages: Sequence[Outage]) -> float:
    """The longest own time in faults in which PostgreSQL was away or got another leader."""
    return max((one.own for one in outages if one.without_postgres), default=0.0)


def after_rabbitmq(outages: Sequence[Outage]) -> float:
    """The longest own time in all other faults."""
    return max((one.own for one in outages if not one.without_postgres), default=0.0)


def table(outages: Sequence[Outage]) -> list[tuple[str, ...]]:
    """A row for each kind of fault: medians and worst of the gaps, in seconds."""
    rows = []
    for kind in sorted({one.kind for one in outages}):
        mine = [one for one in outages if one.kind == kind]
        columns = [
            [getattr(one, name).seconds for one in mine]
            for name in ("postgres", "accepting", "rabbitmq", "ending")
        ]
        columns += [[one.own for one in mine], [one.back - one.until for one in mine]]
        rows.append((kind, str(len(mine)), *map(spread, columns)))
    return rows


def spread(values: Sequence[float]) -> str:
    return f"{median(values):.1f}  {max(values):.1f}"
