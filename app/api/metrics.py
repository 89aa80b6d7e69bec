"""``/metrics`` for Prometheus. Gauges that describe the system come from the database, so
every API process tells the same."""

from __future__ import annotations

from collections.abc import Iterable

from flask import Blueprint, Response

from app.api.services import services
from app.api.state import read_state
from models.pools import POOLS
from models.presence import PRESENCE_LOST_SECONDS
from models.states import TERMINAL

metrics = Blueprint("metrics", __name__)

READ_COUNTS = """
    SELECT pool, sum(scheduled), sum(queued), sum(dispatched), sum(running), sum(succeeded),
           sum(dead), sum(cancelled), sum(expired)
    FROM job_counts WHERE tenant_id = 0 GROUP BY pool ORDER BY pool
"""
#: The head of each line by id; with priorities it may be younger than the oldest, so all
#: priorities in use are looked at, each one step along the index.
READ_AGES = """
    WITH RECURSIVE head AS (
        SELECT pool.name AS pool, first.priority, first.since
        FROM unnest(%(pools)s::text[]) AS pool (name), LATERAL (
            SELECT priority, greatest(created_at, execute_at) AS since FROM jobs
            WHERE status = 'queued' AND pool = pool.name
            ORDER BY priority DESC, id LIMIT 1) AS first
        UNION ALL
        SELECT head.pool, next.priority, next.since FROM head, LATERAL (
            SELECT priority, greatest(created_at, execute_at) AS since FROM jobs
            WHERE status = 'queued' AND pool = head.pool AND priority < head.priority
            ORDER BY priority DESC, id LIMIT 1) AS next
    )
    SELECT pool, extract(epoch FROM now() - min(since)) FROM head GROUP BY pool
"""
READ_PROCESSES = f"""
    SELECT name, kind, pools, slots, busy, db_size, db_in_use, db_waiters
    FROM processes
    WHERE heartbeat_at > now() - interval '{PRESENCE_LOST_SECONDS:g} seconds' ORDER BY name
"""
STATES = (
    "scheduled",
    "queued",
    "dispatched",
    "running",
    "succeeded",
    "dead",
    "cancelled",
    "expired",
)


@metrics.get("/metrics")
def get_metrics() -> Response:
    with read_state() as taken:
        counts = {
            row[0]: dict(zip(STATES, row[1:], strict=True))
            for row in taken.exec_driver_sql(READ_COUNTS)
        }
        ages = {
            row[0]: float(row[1])
            for row in taken.exec_driver_sql(READ_AGES, {"pools": list(POOLS)})
        }
        processes = taken.exec_driver_sql(READ_PROCESSES).all()
    pools = sorted({*services().served_pools, *counts})
    slots = {pool: [0, 0] for pool in pools}
    for _, kind, served, size, busy, *_ in processes:
        for pool in served if kind == "worker" else ():
            if pool in slots:
                slots[pool][0] += size
                slots[pool][1] += busy
    lines = [
        *family(
            "fairline_queue_depth",
            "gauge",
            "Jobs waiting in the line.",
            (((("pool", pool),), int(counts.get(pool, {}).get("queued", 0))) for pool in pools),
        ),
        *family(
            "fairline_jobs_in_flight",
            "gauge",
            "Jobs at the broker or running.",
            (
                ((("pool", pool), ("state", state)), int(counts.get(pool, {}).get(state, 0)))
                for pool in pools
                for state in ("scheduled", "dispatched", "running")
            ),
        ),
        *family(
            "fairline_oldest_job_age_seconds",
            "gauge",
            "Age of the oldest in the line.",
            (((("pool", pool),), round(ages.get(pool, 0.0), 3)) for pool in pools),
        ),
        *family(
            "fairline_jobs_total",
            "counter",
            "Jobs ended, by outcome.",
            (
                ((("pool", pool), ("outcome", state)), int(counts.get(pool, {}).get(state, 0)))
                for pool in pools
                for state in STATES
                if state in TERMINAL
            ),
        ),
        *family(
            "fairline_pool_slots",
            "gauge",
            "Slots of living workers.",
            (
                ((("pool", pool), ("state", state)), value)
                for pool in pools
                for state, value in (
                    ("busy", slots[pool][1]),
                    ("free", max(0, slots[pool][0] - slots[pool][1])),
                )
            ),
        ),
        *family(
            "fairline_db_pool",
            "gauge",
            "Connections of a process; waiting is the peak since its last heartbeat.",
            (
                ((("process", row[0]), ("state", state)), value)
                for row in processes
                for state, value in (("size", row[5]), ("in_use", row[6]), ("waiting", row[7]))
            ),
        ),
    ]
    return Response("\n".join(lines) + "\n", content_type="text/plain; version=0.0.4")


Sample = tuple[tuple[tuple[str, str], ...], float]


def family(name: str, kind: str, text: str, samples: Iterable[Sample]) -> list[str]:
    """One metric in the Prometheus text format."""
    lines = [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]
    for labels, value in samples:
        inside = ",".join(f'{key}="{escape(text)}"' for key, text in labels)
        lines.append(f"{name}{{{inside}}} {value}")
    return lines


def escape(text: str) -> str:
    """A label value as the format wants it."""
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
