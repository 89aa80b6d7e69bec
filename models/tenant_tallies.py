"""Counts by tenant of a worker process: which of them are worth rows of their own.

What is judged by job type or dependency is shared by all tenants, so the leader has to see whether
one of them spoils it. A row for every tenant would be too many. Written are the counts of tenants
that had something bad of late (a run that failed or was too long, a call that failed), and of the
few with the most runs of a type. The counts of the others are kept for a while, so that a tenant
which fails at last is judged by its good runs as well.

Bounded: ``MOST_WATCHED`` tenants and types per process, and ``MOST_BUSY`` tenants per type. Whoever
is beyond that is judged with all the others.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import nlargest
from operator import attrgetter
from typing import NamedTuple

from models.tallies import Count, Counts, Tallies, TallyKind, add_up, tenant_name

#: What is counted by tenant as well.
OF_TENANT = {
    TallyKind.DEPENDENCY: TallyKind.TENANT_DEPENDENCY,
    TallyKind.TYPE: TallyKind.TENANT_TYPE,
    TallyKind.RUN: TallyKind.TENANT_RUN,
}
#: A tenant is watched for so long after something bad: as long as a quarantine looks back.
WATCH_SECONDS = 3600.0
#: Counts of tenants that are not watched are kept for so long, and of so many.
KEEP_SECONDS = 300.0
MOST_KEPT = 10_000
MOST_WATCHED = 256
#: Tenants with the most runs of a type, in the last minutes.
MOST_BUSY = 4
#: The first runs of a type in this process are to be written so soon: until then nobody knows how
#: long its jobs take.
FIRST_SECONDS = 0.2


class TenantType(NamedTuple):
    """A tenant's runs of a job type."""

    job_type: str
    tenant_id: int


class RunCounts(NamedTuple):
    """What one run adds."""

    counts: list[Count]
    of: TenantType
    bad: bool
    #: For the metrics, of all tenants together.
    totals: Sequence[Count] = ()


@dataclass(slots=True)
class Part:
    """A tenant's part of a type's counts, under the names of the whole."""

    of: TenantType
    #: In the last minutes.
    runs: int = 0
    kept: Counts = field(default_factory=dict)
    #: Since the last taking. Circuits look back for a minute: old calls would distort that.
    calls: Counts = field(default_factory=dict)
    #: Something ran since the last taking.
    ran: bool = False

    def take(self) -> Counts:
        """All of it, under the tenant's names."""
        taken = {
            (OF_TENANT[kind], tenant_name(name, self.of.tenant_id)): count
            for counts in (self.kept, self.calls)
            for (kind, name), count in counts.items()
        }
        self.kept, self.calls = {}, {}
        return taken


class TenantTallies:
    """Counts by tenant and type that were not written yet. The caller locks."""

    def __init__(self) -> None:
        self._parts: dict[TenantType, Part] = {}
        self._began = 0.0
        self._ran: list[Part] = []
        #: Until when.
        self._watched: dict[TenantType, float] = {}

    def add(self, run: RunCounts, now: float) -> None:
        """Count a run. Called for every one, so it is written for speed."""
        key = run.of
        if run.bad and (key in self._watched or len(self._watched) < MOST_WATCHED):
            self._watched[key] = now + WATCH_SECONDS
        part = self._parts.get(key)
        if part is None:
            if len(self._parts) >= MOST_KEPT and key not in self._watched:
                return
            part = self._parts[key] = Part(key)
        if not part.ran:
            part.ran = True
            self._ran.append(part)
        part.runs += 1
        for name, (total, amount) in run.counts:
            kind = name[0]
            if kind is TallyKind.DEPENDENCY:
                counts = part.calls
            elif kind is TallyKind.TYPE or kind is TallyKind.RUN:
                counts = part.kept
            else:
                continue
            before = counts.get(name)
            counts[name] = (before[0] + total, before[1] + amount) if before else (total, amount)

    def take(self, now: float) -> Counts:
        """What is to be written; the caller's from now on."""
        self._watched = {key: until for key, until in self._watched.items() if until > now}
        watched = [self._parts[key] for key in self._watched if key in self._parts]
        taken: Counts = {}
        for part in (*watched, *self._busy()):
            add_up(taken, part.take().items())
        for part in self._ran:
            part.ran, part.calls = False, {}
        self._ran = []
        if now >= self._began + KEEP_SECONDS:
            self._parts, self._began = {}, now
        return taken

    def _busy(self) -> list[Part]:
        """Of those that ran since the last taking."""
        by_type: dict[str, list[Part]] = {}
        for part in self._ran:
            by_type.setdefault(part.of.job_type, []).append(part)
        runs = attrgetter("runs")
        return [part for parts in by_type.values() for part in nlargest(MOST_BUSY, parts, key=runs)]


class RunTallies(Tallies):
    """Counts of this process, with those of tenants apart."""

    def __init__(self) -> None:
        super().__init__()
        self._tenants = TenantTallies()
        #: Types that ran here.
        self._types: set[str] = set()
        #: When to write, other than with a heartbeat.
        self.due = math.inf

    def add_run(self, run: RunCounts) -> None:
        """Count a run, for all and for its tenant."""
        with self._counting:
            add_up(self._counts, run.counts)
            add_up(self._counts, run.totals)
            if run.counts:
                now = time.monotonic()
                self._tenants.add(run, now)
                if run.of.job_type not in self._types:
                    self._types.add(run.of.job_type)
                    self.due = min(self.due, now + FIRST_SECONDS)

    def take(self) -> Counts:
        """The counts of all kinds."""
        with self._counting:
            self.due = math.inf
            add_up(self._counts, self._tenants.take(time.monotonic()).items())
        return super().take()
