"""Tallies: what a process counted, added to the table every two seconds.

The retry and circuit policies need rates, not ledgers: two seconds of counts are lost with a
killed process, and no job depends on them.
"""

from __future__ import annotations

import logging
import math
import threading
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from enum import StrEnum
from functools import cache
from typing import Any, Self

from sqlalchemy import Engine

from models.store.errors import StateStoreUnavailable
from models.store.session import execute

logger = logging.getLogger(__name__)

MICROSECONDS = 1_000_000
#: Run times are counted in bins, four to an octave: no bin is wider than a quarter of its lower
#: end. Everything below about a millisecond is one bin, as is everything above about 25 days.
LEAST = 1 << 10
MOST = (1 << 41) - 1
#: Marks the runs that were longer than the bound of their pool.
OVER = "!"


class TallyKind(StrEnum):
    """What is counted: in ``total`` how often it happened, in ``amount`` what is named here.

    ``amount`` is a whole number; divided by ``per_unit`` it is in the unit that the comment names.
    Kinds that are kept for 0 hours are totals for the metrics and never end: see ``FOLD_TOTALS``.
    """

    bucket_seconds: int
    kept_hours: int
    per_unit: int

    #: By dependency: calls, and those that failed.
    DEPENDENCY = "dependency", 10
    #: By dependency and reason, see ``outage_name``: calls that were refused for a reason that
    #: concerns all tenants; the amount is the same number.
    OUTAGE = "outage", 10
    #: By dependency and tenant, see ``tenant_name``: calls, and those that failed.
    TENANT_DEPENDENCY = "tenant_dependency", 10
    #: By job type: runs, and those that failed.
    TYPE = "type", 60
    #: By job type and tenant: the same. Few buckets, as there may be many tenants.
    TENANT_TYPE = "tenant_type", 300
    #: By tenant: first runs, and retries that were granted.
    RETRY = "retry", 60
    #: By tenant: jobs submitted, made by schedules or replayed; the amount is not used. Spikes are
    #: found by a day of them.
    SUBMISSION = "submission", 3600, 26
    #: By tenant: idempotency keys that were made; the amount is the same number. Kept for as long
    #: as keys are, if that is longer.
    IDEMPOTENCY_KEY = "idempotency_key", 3600, 26
    #: By tenant: payloads that went to the blob store, and their bytes.
    STORED_BLOB = "stored_blob", 300, 26
    #: By job type: runs, and those above the time bound of their pool.
    VIOLATION = "violation", 60
    #: By tenant and pool, see ``crash_name``: workers lost to jobs that had lost two before, and
    #: worker processes killed because a run broke a limit; the amount is the same number.
    CRASH = "crash", 60
    #: By pool, duration bin and job type, see ``run_name``: runs, and their seconds.
    RUN = "run", 300, 2, MICROSECONDS
    #: The same with the tenant, see ``tenant_name``.
    TENANT_RUN = "tenant_run", 300, 2, MICROSECONDS
    #: By pool, duration bin and job type, see ``run_name``: first starts, and their seconds since
    #: the job was due.
    WAIT = "wait", 300, 2, MICROSECONDS
    #: By pool: predictions of a start, and the sum of their relative errors.
    FORECAST = "forecast", 60, 2, 1000
    #: By pool: jobs that were handed to the broker.
    DISPATCHED = "dispatched", 300, 0
    #: By pool: dead letters that were discarded.
    DISCARDED = "discarded", 300, 0
    #: By pool and failure class, see ``joined``: runs after which the job runs again.
    RETRIED = "retried", 300, 0
    #: By pool and reason: worker processes that ended without having been told to.
    RECYCLED = "recycled", 300, 0
    #: By pool and upper bound of the seconds: first starts and their waits; runs and their times.
    WAIT_SECONDS = "wait_seconds", 300, 0, MICROSECONDS
    RUN_SECONDS = "run_seconds", 300, 0, MICROSECONDS

    def __new__(cls, name: str, bucket_seconds: int, hours: int = 2, per_unit: int = 1) -> Self:
        kind = str.__new__(cls, name)
        kind._value_ = name
        kind.bucket_seconds, kind.kept_hours, kind.per_unit = bucket_seconds, hours, per_unit
        return kind


#: In one order, so that two workers never wait for each other in a circle.
ADD = """
    INSERT INTO tallies AS tally (kind, bucket, name, total, amount)
    SELECT kind, date_bin(make_interval(secs => seconds), now(), 'epoch'), name, total, amount
    FROM unnest(%(kinds)s::text[], %(seconds)s::int[], %(names)s::text[], %(totals)s::bigint[],
                %(amounts)s::bigint[]) AS added (kind, seconds, name, total, amount)
    ORDER BY kind, name
    ON CONFLICT (kind, bucket, name) DO UPDATE
    SET total = tally.total + excluded.total, amount = tally.amount + excluded.amount
"""


def count_rows(kind: TallyKind, name: str, rows: str) -> str:
    """Counts ``rows`` in the statement that changes them, as total and as amount."""
    return f"""
    INSERT INTO tallies AS tally (kind, bucket, name, total, amount)
    SELECT '{kind}', date_bin(interval '{kind.bucket_seconds} s', now(), 'epoch'), name,
           count(*), count(*)
    FROM (SELECT {name} AS name FROM {rows}) AS counted GROUP BY name ORDER BY name
    ON CONFLICT (kind, bucket, name) DO UPDATE
    SET total = tally.total + excluded.total, amount = tally.amount + excluded.amount
"""


#: Counts that never end: their rows of past minutes become one, as a row that is updated for ever
#: would grow with every update while a snapshot is held open. Takes a condition.
TOTALS = tuple(kind.value for kind in TallyKind if not kind.kept_hours)
FOLD_TOTALS = f"""
    WITH past AS (
        DELETE FROM tallies WHERE {{condition}} AND kind = ANY (ARRAY{list(TOTALS)})
          AND bucket > 'epoch' AND bucket < now() - interval '10 minutes'
        RETURNING kind, name, total, amount
    )
    INSERT INTO tallies AS tally (kind, bucket, name, total, amount)
    SELECT kind, 'epoch', name, sum(total), sum(amount) FROM past
    GROUP BY kind, name ORDER BY kind, name
    ON CONFLICT (kind, bucket, name) DO UPDATE
    SET total = tally.total + excluded.total, amount = tally.amount + excluded.amount
"""

#: Runs for which their process is being killed, by ``settled``: they count together with their
#: endings or not at all, for the process cannot report them later. One handed back is no cause.
COUNT_KILLS = count_rows(
    TallyKind.CRASH, "tenant_id || ':' || pool", "settled WHERE status <> 'queued'"
)

#: Kind and name.
CountKey = tuple[TallyKind, str]
#: With total and amount.
Count = tuple[CountKey, tuple[int, int]]
Counts = dict[CountKey, tuple[int, int]]
#: Kinds with a row for every tenant: so many of them are written at a time, the others later.
EACH_TENANT = frozenset({TallyKind.RETRY})
MOST_ROWS = 1_000


class Tallies:
    """Counts of this process that the table does not have yet."""

    def __init__(self) -> None:
        self._counting = threading.Lock()
        self._counts: Counts = {}
        #: On their way to the table.
        self._writing: Counts = {}

    def add_all(self, counts: Iterable[Count]) -> None:
        """Add several counts under one lock: every run has some."""
        with self._counting:
            add_up(self._counts, counts)

    def unwritten(self, kind: TallyKind, name: str) -> tuple[int, int]:
        """What the table may not have yet."""
        with self._counting:
            total, amount = self._counts.get((kind, name), (0, 0))
            writing = self._writing.get((kind, name), (0, 0))
        return total + writing[0], amount + writing[1]

    def write(self, engine: Engine) -> None:
        """Move the counts to the table; they stay here if it is away."""
        counts = self._writing = self.take()
        try:
            add_tallies(engine, counts.items())
        except StateStoreUnavailable:
            self.add_all(counts.items())
            raise
        except Exception:
            # Counts that the table will not have are dropped: heartbeats come behind them.
            logger.exception("could not write %s", list(counts))
        finally:
            self._writing = {}

    def take(self) -> Counts:
        """The counts, which are the caller's now; of very many tenants some stay for later."""
        with self._counting:
            counts, self._counts = self._counts, {}
            if len(counts) > MOST_ROWS:
                late = [key for key in counts if key[0] in EACH_TENANT][MOST_ROWS:]
                self._counts = {key: counts.pop(key) for key in late}
        return counts


def add_up(known: Counts, counts: Iterable[Count]) -> None:
    """Add ``counts`` to those that are known."""
    for key, (total, amount) in counts:
        before = known.get(key)
        known[key] = (before[0] + total, before[1] + amount) if before else (total, amount)


def add_tallies(engine: Engine, counts: Iterable[Count]) -> None:
    """Add counts by (kind, name) to the buckets of this moment."""
    parameters = added(counts)
    if parameters["kinds"]:
        execute(engine, ADD, parameters)


def added(counts: Iterable[Count]) -> dict[str, Any]:
    """The parameters of ADD."""
    listed = list(counts)
    return {
        "kinds": [kind for (kind, _), _ in listed],
        "seconds": [kind.bucket_seconds for (kind, _), _ in listed],
        "names": [name for (_, name), _ in listed],
        "totals": [total for _, (total, _) in listed],
        "amounts": [amount for _, (_, amount) in listed],
    }


def joined(pool: str, label: str) -> str:
    """The name of a total with a second label; pools have no colon."""
    return f"{pool}:{label}"


def observed(kind: TallyKind, pool: str, seconds: float, bounds: Sequence[float]) -> Count:
    """An observation of a histogram; without a bound that is high enough it is in ``inf``."""
    place = bisect_left(bounds, seconds)
    bound = bounds[place] if place < len(bounds) else math.inf
    return _bucket(kind, pool, bound), (1, round(seconds * kind.per_unit))


@cache
def _bucket(kind: TallyKind, pool: str, bound: float) -> CountKey:
    """Made once for each: every run has two."""
    return kind, joined(pool, str(float(bound)))


def recycled(pool: str) -> Count:
    """A worker process that is killed because a run broke a limit."""
    return (TallyKind.RECYCLED, joined(pool, "limit")), (1, 0)


def crash_name(tenant_id: int, pool: str) -> str:
    """The name under which crashes are counted; COUNT_KILLS makes the same."""
    return f"{tenant_id}:{pool}"


def parse_crash_name(name: str) -> tuple[int, str]:
    """Tenant and pool."""
    tenant_id, _, pool = name.partition(":")
    return int(tenant_id), pool


def tenant_name(name: str, tenant_id: int) -> str:
    """The name of a tenant's part of what is counted: two lines."""
    return f"{name}\n{tenant_id}"


def parse_tenant_name(name: str) -> tuple[str, int]:
    """The name of the whole, and the tenant."""
    whole, _, tenant_id = name.rpartition("\n")
    return whole, int(tenant_id)


def outage_name(dependency: str, reason: str) -> str:
    """The name under which refusals are counted: two lines."""
    return f"{dependency}\n{' '.join(reason.split())}"


def bin_of(microseconds: int) -> int:
    """The number of the bin of a run time; longer ones have higher numbers."""
    value = min(max(microseconds, LEAST), MOST)
    octave = value.bit_length()
    return (octave - LEAST.bit_length()) * 4 + (value >> (octave - 3) & 3)


def run_name(pool: str, job_type: str, microseconds: int, over: bool) -> str:
    """Under which name a run is counted: its pool, bin and type. None of them has a colon."""
    return f"{pool}:{bin_of(microseconds)}{OVER if over else ''}:{job_type}"


def parse_run_name(name: str) -> tuple[str, str, int, bool]:
    """Type, pool, bin, and whether the runs were over their pool's bound."""
    pool, number, job_type = name.split(":", 2)
    return job_type, pool, int(number.removesuffix(OVER)), number.endswith(OVER)
