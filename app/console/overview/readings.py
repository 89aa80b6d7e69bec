"""Queries of the overview: counters, the ends of indexes and samples, never a whole table."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, Row

from app.api.routes.health import READ_READINESS
from app.console.overview.health import HealthReadings, PoolHealth
from app.console.overview.series import NEIGHBOURS, ByPool, Samples, first_within, per_minute
from app.reads.demand import QUEUE_HEADS
from app.scheduler.maintenance.recorder import COARSE_STEP, FINE_STEP
from models.jobs.held_back import CIRCUIT_NOT_CLOSED, QUOTA_CLOSED
from models.leadership import BROKER_SECONDS, LEASE_SECONDS, is_recent
from models.pools import POOLS
from models.presence import SERVING
from tasks.retry.circuit import OPEN_SECONDS

#: Heads of queues that one query reads.
MOST_HEADS = 1_000
#: More dead letters than this are not counted; their own page does.
DEAD_LETTERS_COUNTED = 2_000
#: What the autoscaler wrote is used for so long.
FRESH_SECONDS = 10
#: Rates on the cards, and the time in which deaths are recent.
RATE_SECONDS = 60.0
DEATHS_SECONDS = 300.0

#: A pool by its counters, its workers, since when its oldest jobs wait (by the heads of its queues,
#: and by what is due and not promoted), its dead letters (an index-only scan), and its counters a
#: day ago or at the first sample since. One statement: a round trip costs more than any of it.
READ_POOLS = f"""{QUEUE_HEADS}, oldest AS (
        SELECT pool, min(since) AS since, sum(count(*)) OVER () >= {MOST_HEADS} AS cut
        FROM (SELECT * FROM head LIMIT {MOST_HEADS}) AS seen GROUP BY pool
    ), letters AS (
        SELECT pool, count(*) AS dead, sum(count(*)) OVER () >= {DEAD_LETTERS_COUNTED} AS cut
        FROM (SELECT pool FROM jobs WHERE status = 'dead'
              ORDER BY tenant_id, id LIMIT {DEAD_LETTERS_COUNTED}) AS seen
        GROUP BY pool
    )
    SELECT now() AS now, pool.name, counted.*, alive.busy, alive.slots, desired.workers AS desired,
           CASE WHEN desired.updated_at > now() - interval '{FRESH_SECONDS} seconds'
                THEN desired.oldest_seconds END AS slot_wait,
           oldest.since AS line_since, coalesce(oldest.cut, false) AS line_cut,
           (SELECT execute_at FROM jobs WHERE status = 'scheduled' AND jobs.pool = pool.name
            ORDER BY execute_at LIMIT 1) AS due_at,
           coalesce(letters.dead, 0) AS dead_letters,
           EXISTS (SELECT 1 FROM letters WHERE cut) AS dead_cut,
           day.at AS day_since, day.submitted AS day_submitted, day.succeeded AS day_succeeded,
           day.dead AS day_dead, day.cancelled AS day_cancelled, day.expired AS day_expired
    FROM unnest(%(pools)s::text[]) WITH ORDINALITY AS pool (name, place)
    CROSS JOIN LATERAL (
        SELECT coalesce(sum(scheduled), 0)::bigint AS scheduled,
               coalesce(sum(queued), 0)::bigint AS queued,
               coalesce(sum(dispatched + running), 0)::bigint AS in_flight,
               coalesce(sum(scheduled + queued + dispatched + running + succeeded + dead
                            + cancelled + expired), 0)::bigint AS submitted,
               coalesce(sum(succeeded), 0)::bigint AS succeeded,
               coalesce(sum(dead), 0)::bigint AS dead,
               coalesce(sum(cancelled), 0)::bigint AS cancelled,
               coalesce(sum(expired), 0)::bigint AS expired
        FROM job_counts WHERE tenant_id = 0 AND job_counts.pool = pool.name) AS counted
    CROSS JOIN LATERAL (
        SELECT coalesce(sum(busy), 0)::int AS busy, coalesce(sum(slots), 0)::int AS slots
        FROM processes
        WHERE {SERVING} AND pool.name = ANY (pools)) AS alive
    LEFT JOIN oldest ON oldest.pool = pool.name
    LEFT JOIN letters ON letters.pool = pool.name
    LEFT JOIN desired_workers AS desired ON desired.pool = pool.name
    LEFT JOIN LATERAL (
        SELECT * FROM pool_samples AS sample
        WHERE step = {COARSE_STEP} AND sample.pool = pool.name
          AND at > now() - interval '24 hours' ORDER BY at LIMIT 1) AS day ON true
    ORDER BY pool.place
"""
#: Scheduler, broker and relief, and what delays jobs. A spike counts for the hour in which it was
#: detected.
READ_SERVICES = f"""
    SELECT ready.leader_age, ready.broker_age, ready.relief_age, ready.snapshot_age, (
        SELECT coalesce(json_agg(json_build_array(kind, name, detail)), '[]') FROM (
            SELECT 'circuit', dependency, state FROM circuits WHERE {CIRCUIT_NOT_CLOSED}
            UNION ALL
            SELECT 'open_until', dependency, to_char(
                (changed_at + interval '{OPEN_SECONDS:g} s') AT TIME ZONE 'UTC', 'HH24:MI:SS "UTC"')
            FROM circuits WHERE state = 'open'
            UNION ALL
            SELECT 'outage', dependency, reason FROM circuits
            WHERE {CIRCUIT_NOT_CLOSED} AND reason <> ''
            UNION ALL
            SELECT 'quota', dependency, '' FROM quotas WHERE {QUOTA_CLOSED}
            UNION ALL
            SELECT kind, name, pool FROM verdicts
            WHERE kind IN ('quarantine', 'throttle')
               OR kind = 'spike' AND since >= date_bin('1 hour', now(), 'epoch')
        ) AS found (kind, name, detail)) AS held
    FROM ({READ_READINESS}) AS ready
"""
READ_SAMPLES = """
    SELECT pool, array_agg(extract(epoch FROM at)::bigint ORDER BY at) AS at,
           array_agg(submitted ORDER BY at) AS submitted,
           array_agg(succeeded + dead + cancelled + expired ORDER BY at) AS ended,
           array_agg(dead ORDER BY at) AS dead, array_agg(queued ORDER BY at) AS queued,
           array_agg(round(oldest_seconds::numeric, 1)::float8 ORDER BY at) AS oldest_seconds,
           array_agg(busy ORDER BY at) AS busy, array_agg(slots ORDER BY at) AS slots
    FROM pool_samples
    WHERE step = %(step)s AND pool = ANY (%(pools)s::text[])
      AND at > now() - make_interval(secs => %(seconds)s) AND at <= now()
    GROUP BY pool
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Card(PoolHealth):
    """A pool as the page shows it: what it is judged by, and more."""

    #: Of READ_POOLS.
    row: Row[Any]
    #: Since when the oldest job waits; None if none does.
    oldest_since: datetime | None
    #: Whether that is longer than the objective, but for another reason than a missing slot.
    held: bool
    #: Per minute; None without recent samples.
    rate_in: float | None
    rate_out: float | None

    @property
    def late(self) -> bool:
        """Whether the oldest job waits for a slot longer than it should."""
        return self.wait_seconds > self.objective_seconds

    @property
    def workers(self) -> int:
        return math.ceil(self.slots / POOLS[self.name].slots)


def read_samples(connection: Connection, step: int, seconds: float) -> ByPool:
    """The samples of the last seconds, by pool; only pools that have some."""
    asked = {"step": step, "seconds": seconds, "pools": list(POOLS)}
    rows = connection.exec_driver_sql(READ_SAMPLES, asked)
    return {
        row.pool: Samples(**{name: getattr(row, name) for name in Samples._fields}) for row in rows
    }


def read_cards(
    connection: Connection, samples: ByPool, served: Collection[str]
) -> tuple[datetime, list[Card]]:
    """The time, and pools in use; ``samples`` are the fine ones of the last minutes."""
    asked = {"pools": list(POOLS), "after": [0] * len(POOLS)}
    rows = connection.exec_driver_sql(READ_POOLS, asked).all()
    return rows[0].now, [
        card_of(row, samples.get(row.name, Samples()), row.name in served)
        for row in rows
        if row.name in served or row.submitted or row.slots
    ]


def card_of(row: Row[Any], samples: Samples, served: bool) -> Card:
    """A pool as the page shows it."""
    objective = POOLS[row.name].objective_seconds
    since = oldest_since(row)
    age = seconds_since(since, row.now)
    wait = age if row.slot_wait is None else max(row.slot_wait, seconds_since(row.due_at, row.now))
    newest = samples.at[-1] if samples.at else 0
    fresh = row.now.timestamp() - newest <= NEIGHBOURS * FINE_STEP
    known = samples if fresh else Samples()
    minute, minutes = first_within(known.at, RATE_SECONDS), first_within(known.at, DEATHS_SECONDS)
    return Card(
        row=row,
        name=row.name,
        served=served,
        waiting=row.queued,
        oldest_since=since,
        objective_seconds=objective,
        wait_seconds=wait,
        held=age > objective >= wait,
        rate_in=rate(known.at, known.submitted, minute),
        rate_out=rate(known.at, known.ended, minute),
        busy=min(row.busy, row.slots),
        slots=row.slots,
        ended=0 if minutes is None else known.ended[-1] - known.ended[minutes],
        died=0 if minutes is None else known.dead[-1] - known.dead[minutes],
    )


def oldest_since(row: Row[Any]) -> datetime | None:
    """Since when the oldest waits, queued or due; if not all were read, as the autoscaler saw."""
    found = [one for one in (row.line_since, row.due_at) if one is not None and one < row.now]
    if row.line_cut and row.slot_wait is not None:
        found.append((row.now - timedelta(seconds=row.slot_wait)).replace(microsecond=0))
    return min(found, default=None)


def rate(at: Sequence[int], counter: Sequence[int], since: int | None) -> float | None:
    """How many per minute since that sample, without insignificant digits."""
    if since is None:
        return None
    found = per_minute(counter[-1] - counter[since], at[-1] - at[since])
    return found if found is None else round(found, 0 if found >= 10 else 1)


def seconds_since(moment: datetime | None, now: datetime) -> float:
    """How long ago that was; 0 if it is in the future."""
    return max(0.0, (now - moment).total_seconds()) if moment is not None else 0.0


def totals_of(cards: Sequence[Card]) -> dict[str, Any]:
    """Jobs of all pools in the last day, or since the first sample."""
    known = [card.row for card in cards if card.row.day_since is not None]
    return {"since": min((row.day_since for row in known), default=None)} | {
        name: sum(max(0, getattr(row, name) - getattr(row, f"day_{name}")) for row in known)
        for name in ("submitted", "succeeded", "dead", "cancelled", "expired")
    }


def read_readings(connection: Connection, pools: Sequence[Card]) -> HealthReadings:
    """Pools, scheduler, broker, and what delays jobs."""
    services = connection.exec_driver_sql(READ_SERVICES).one()
    held: dict[str, list[tuple[str, str]]] = {}
    for kind, name, detail in services.held:
        held.setdefault(kind, []).append((name, detail))
    seen = services.broker_age if services.relief_age is None else services.relief_age
    return HealthReadings(
        pools=pools,
        leads=is_recent(services.leader_age, LEASE_SECONDS),
        relieved=services.relief_age is not None,
        broker_seen=is_recent(seen, BROKER_SECONDS),
        circuits=dict(held.get("circuit", ())),
        open_until=dict(held.get("open_until", ())),
        outages=dict(held.get("outage", ())),
        closed_quotas=[name for name, _ in held.get("quota", ())],
        quarantined=[name for name, _ in held.get("quarantine", ())],
        throttled=Counter(pool for _, pool in held.get("throttle", ())),
        spiking=len(held.get("spike", ())),
        snapshot_seconds=services.snapshot_age,
    )
