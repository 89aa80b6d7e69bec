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

import time
from heapq import nlargest
from typing import NamedTuple

from models.tallies import Count, Counts, Tallies, TallyKind, add_up

#: A tenant is watched for so long after something bad: as long as a quarantine looks back.
WATCH_SECONDS = 3600.0
#: Counts of tenants that are not watched are kept for so long, and of so many.
KEEP_SECONDS = 300.0
MOST_KEPT = 10_000
MOST_WATCHED = 256
#: Tenants with the most runs of a type, in the last minutes.
MOST_BUSY = 4


class TenantType(NamedTuple):
    """A tenant's runs of a job type."""

    job_type: str
    tenant_id: int


class RunCounts(NamedTuple):
    """What one run adds."""

    #: To what concerns all tenants, or each for itself.
    shared: list[Count]
    #: To the tenant's part of it.
    own: list[Count]
    of: TenantType
    bad: bool


class TenantTallies:
    """Counts by tenant and type that were not written yet. The caller locks."""

    def __init__(self) -> None:
        self._kept: dict[TenantType, Counts] = {}
        #: Since the last taking. Circuits look back for a minute: old calls would distort that.
        self._calls: dict[TenantType, Counts] = {}
        #: In the last minutes, by tenant and type.
        self._runs: dict[TenantType, int] = {}
        self._began = 0.0
        #: Until when.
        self._watched: dict[TenantType, float] = {}

    def add(self, run: RunCounts, now: float) -> None:
        """Count a run."""
        key = run.of
        if run.bad and (key in self._watched or len(self._watched) < MOST_WATCHED):
            self._watched[key] = now + WATCH_SECONDS
        if len(self._runs) >= MOST_KEPT and key not in self._runs and key not in self._watched:
            return
        self._runs[key] = self._runs.get(key, 0) + 1
        kept, calls = self._kept.setdefault(key, {}), self._calls.setdefault(key, {})
        for name, (total, amount) in run.own:
            counts = calls if name[0] is TallyKind.TENANT_DEPENDENCY else kept
            before = counts.get(name, (0, 0))
            counts[name] = (before[0] + total, before[1] + amount)

    def take(self, now: float) -> Counts:
        """What is to be written; the caller's from now on."""
        self._watched = {key: until for key, until in self._watched.items() if until > now}
        taken: Counts = {}
        for key in (*self._watched, *self._busy()):
            for counts in (self._kept.pop(key, {}), self._calls.pop(key, {})):
                add_up(taken, counts.items())
        self._calls = {}
        if now >= self._began + KEEP_SECONDS:
            self._kept, self._runs, self._began = {}, {}, now
        return taken

    def _busy(self) -> list[TenantType]:
        """Of those that ran since the last taking."""
        by_type: dict[str, list[TenantType]] = {}
        for key in self._calls:
            by_type.setdefault(key.job_type, []).append(key)
        return [
            key
            for keys in by_type.values()
            for key in nlargest(MOST_BUSY, keys, key=self._runs.__getitem__)
        ]


class RunTallies(Tallies):
    """Counts of this process, with those of tenants apart."""

    def __init__(self) -> None:
        super().__init__()
        self._tenants = TenantTallies()

    def add_run(self, run: RunCounts) -> None:
        """Count a run, for all and for its tenant."""
        with self._counting:
            add_up(self._counts, run.shared)
            if run.own:
                self._tenants.add(run, time.monotonic())

    def take(self) -> Counts:
        """The counts of all kinds."""
        with self._counting:
            add_up(self._counts, self._tenants.take(time.monotonic()).items())
        return super().take()
