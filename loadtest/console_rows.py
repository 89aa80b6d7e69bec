"""A week of rows that the console is measured with, and how long its pages take to load."""

from __future__ import annotations

import statistics
import tempfile
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import Engine

from loadtest.pictures.camera import opened_camera
from loadtest.report import Screen

TENANTS = 50
#: Rows of one statement.
BATCH = 50_000

#: Jobs in the order of their ids, over the last week. Of a hundred that ended, four are dead and
#: two were cancelled.
FILL = """
    INSERT INTO jobs (id, tenant_id, type, pool, payload, status, priority, dependency,
                      created_at, started_at, finished_at, attempt, lease, worker, slot_seconds,
                      error_class, error_message, result, ended_xid)
    SELECT (lpad(to_hex((extract(epoch FROM at) * 1000)::bigint), 12, '0') || '7'
            || substr(md5(n::text), 1, 3) || '8' || substr(md5(n::text), 4, 15))::uuid,
           1 + n %% %(tenants)s, (ARRAY['echo', 'sleep', 'score_application', 'count'])[1 + n %% 4],
           (ARRAY['short', 'medium', 'medium', 'long'])[1 + n %% 4], '{"number": 1}', status,
           n %% 2, (ARRAY['', '', 'claude', ''])[1 + n %% 4], at,
           CASE WHEN status <> 'queued' THEN at + interval '1 s' END,
           CASE WHEN status <> 'queued' THEN at + interval '3 s' END,
           (status <> 'queued')::int, (status <> 'queued')::int,
           CASE WHEN status <> 'queued' THEN 'worker@host:1' END, 2.0,
           CASE WHEN status = 'dead'
                THEN (ARRAY['APP_ERROR', 'TIMEOUT', 'PERMANENT'])[1 + n %% 3] END,
           CASE WHEN status = 'dead' THEN 'the answer made no sense: ' || n END,
           CASE WHEN status = 'succeeded' THEN '{"ok": true}'::json END,
           CASE WHEN status <> 'queued' THEN pg_current_xact_id() END
    FROM (SELECT n, now() - (%(total)s - n) * interval '7 days' / %(total)s AS at,
                 CASE WHEN n > %(ended)s THEN 'queued' WHEN n %% 100 < 4 THEN 'dead'
                      WHEN n %% 100 < 6 THEN 'cancelled' ELSE 'succeeded' END::job_status AS status
          FROM generate_series(%(first)s, %(last)s) AS n) AS made
"""
AFTERWARDS = (
    """
    INSERT INTO usage (tenant_id, day, pool, shard, jobs, runs, slot_seconds)
    SELECT tenant, current_date - day, pool, 0, 900, 1000, 2000 + tenant
    FROM generate_series(1, %(tenants)s) AS tenant, generate_series(0, 29) AS day,
         unnest(ARRAY['short', 'medium', 'long']) AS pool""",
    """
    INSERT INTO pool_samples
    SELECT step, pool, date_bin(make_interval(secs => step), now(), 'epoch')
               - n * make_interval(secs => step),
           1000000 - n * 100, 900000 - n * 90, 30000, 10000, 0, 0, 30000, 0, 0, n, 5, 10, 1
    FROM (VALUES (5, 230), (300, 290)) AS kept (step, samples), generate_series(1, samples) AS n,
         unnest(ARRAY['short', 'medium', 'long']) AS pool""",
    "VACUUM ANALYZE",
    "CHECKPOINT",
)


def fill(engine: Engine, ended: int, waiting: int, screen: Screen) -> str:
    """Insert the jobs; the id of one that is dead."""
    total = ended + waiting
    with engine.connect() as connection:
        connection.exec_driver_sql("SET synchronous_commit = off")
        connection.exec_driver_sql(
            "INSERT INTO tenants (id, name) OVERRIDING SYSTEM VALUE SELECT n, 't' || n"
            " FROM generate_series(2, %(tenants)s) AS n",
            {"tenants": TENANTS},
        )
        for batch in screen.steps("filling the tables", -(-total // BATCH)):
            first = batch * BATCH + 1
            last = min(first + BATCH - 1, total)
            counts = {"tenants": TENANTS, "ended": ended, "total": total}
            connection.exec_driver_sql(FILL, {**counts, "first": first, "last": last})
        for number in screen.steps("tidying up", len(AFTERWARDS)):
            connection.exec_driver_sql(AFTERWARDS[number], {"tenants": TENANTS})
        found = connection.exec_driver_sql("SELECT max(id::text) FROM jobs WHERE status = 'dead'")
        return str(found.scalar_one())


#: What is loaded in a browser, and how often.
LOADED = ("/", "/console/jobs", "/console/tenants")
LOADS = 5


@dataclass(frozen=True, slots=True)
class Load:
    """Milliseconds until a page is ready for use, and until its charts are drawn."""

    loaded: float
    drawn: float


def time_loads(base: str, screen: Screen) -> dict[str, Load]:
    """Pages in a real browser with an empty cache: the medians of some loads."""
    found = {}
    with tempfile.TemporaryDirectory() as folder, opened_camera(base, Path(folder)) as camera:
        for number in screen.steps("loading pages in a browser", len(LOADED)):
            times = [camera.load_milliseconds(LOADED[number]) for _ in range(LOADS)]
            found[LOADED[number]] = Load(*map(statistics.median, zip(*times, strict=True)))
    return found
