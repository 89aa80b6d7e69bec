"""Rows of ended jobs as the product leaves them, made by the server itself.

Jobs are spread evenly over a month, in the order of their ids. Of a hundred two are dead after
three attempts, one was cancelled, one expired and four succeeded with their second attempt. Every
fourth is an application. Payloads have 600 bytes. The triggers that count jobs stay on.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

from sqlalchemy import Engine

from loadtest.dispatching import MEASURED_TYPE
from loadtest.report import Screen
from loadtest.retention.layout import DAYS, TABLES
from models.job_counts import BATCH as FOLDED
from models.job_counts import CountFolder

#: Rows of one statement, and statements between two vacuums: what was just written is in memory.
BATCH = 50_000
VACUUM_EVERY = 20
#: Statements at a time.
WRITERS = 2
#: On disk, with indexes and all that belongs to a job; measured.
BYTES_PER_JOB = 2_000
#: Write-ahead log, logs, and what the measurements add.
SPARE_BYTES = 6_000_000_000

#: Of the server that is filled. It is started anew with the product's settings afterwards.
FILLING = {
    "fsync": "off",
    "full_page_writes": "off",
    "synchronous_commit": "off",
    "autovacuum": "off",
    "shared_buffers": "1GB",
    "max_wal_size": "4GB",
    "checkpoint_timeout": "1h",
    "work_mem": "128MB",
    "maintenance_work_mem": "1GB",
    "log_min_duration_statement": "-1",
}

ADD_TENANTS = """
    INSERT INTO tenants (id, name, changed_at) OVERRIDING SYSTEM VALUE
    SELECT number, 't' || number, now() - interval '1 hour'
    FROM generate_series(1, %(tenants)s) AS number
"""
#: A few tenants have most of the jobs. ``runs`` are those that ended; the last of a dead job failed
#: too.
MADE = f"""
    SELECT number, at, hash, place,
           (lpad(to_hex(floor(extract(epoch FROM at) * 1000)::bigint), 12, '0') || '7'
            || substr(hash, 1, 3) || '8' || substr(hash, 4, 15))::uuid AS id,
           1 + floor(%(tenants)s
               * power(('x' || substr(hash, 20, 6))::bit(24)::int / 16777216.0, 3))::int
               AS tenant_id,
           1 + number / 100 %% 4 AS kind,
           CASE WHEN place < 2 THEN 'dead' WHEN place = 2 THEN 'cancelled'
                WHEN place = 3 THEN 'expired' ELSE 'succeeded' END::job_status AS status,
           CASE WHEN place < 2 THEN 3 WHEN place < 4 THEN 0 WHEN place < 8 THEN 2 ELSE 1 END
               AS runs,
           CASE WHEN place < 2 THEN 3 WHEN place BETWEEN 4 AND 7 THEN 1 ELSE 0 END AS failures
    FROM generate_series(%(first)s, %(last)s) AS number, LATERAL (
        SELECT md5(number::text) AS hash, number * 37 %% 100 AS place,
               %(until)s::timestamptz
                   - (%(total)s - number + 1) * interval '{DAYS} days' / %(total)s AS at) AS of
"""
#: Six rows of about 1,000 bytes fill a page as far as ``fillfactor`` goes. Were they shorter, each
#: page would have room for one new row, which has no result yet, and every new job would be a whole
#: page in the log. So what has no result has a longer payload instead.
ADD_JOBS = """
    INSERT INTO jobs (id, tenant_id, type, pool, payload, status, priority, dependency, created_at,
                      dispatched_at, started_at, finished_at, attempt, lease, worker, slot_seconds,
                      error_class, error_message, result, ended_xid)
    SELECT id, tenant_id, (ARRAY['echo', 'sleep', 'score_application', 'count'])[kind],
           (ARRAY['short', 'medium', 'medium', 'long'])[kind],
           ('{"candidate": "' || hash || '", "role": "engineer", "text": "'
            || repeat(hash, CASE status WHEN 'succeeded' THEN 16 ELSE 24 END) || '"}')::json,
           status, 0, (ARRAY['', '', 'claude', ''])[kind], at,
           CASE WHEN runs > 0 THEN at + interval '20 ms' END,
           CASE WHEN runs > 0 THEN at + interval '1 s' END, at + interval '3 s', runs, runs,
           CASE WHEN runs > 0 THEN 'worker@host:' || kind END, 2.0 * runs,
           CASE WHEN status = 'dead' THEN 'APP_ERROR' END,
           CASE WHEN status = 'dead' THEN 'the answer made no sense: ' || hash END,
           CASE WHEN status = 'succeeded'
                THEN ('{"score": 87.5, "rationale": "' || repeat(hash, 6) || '"}')::json END,
           pg_current_xact_id()
    FROM made ORDER BY id
"""
ADD_ATTEMPTS = """
    INSERT INTO attempts (job_id, lease, worker, started_at, ended_at, status, error_class,
                          error_message)
    SELECT id, lease, 'worker@host:' || kind, at + interval '1 s', at + interval '2 s',
           CASE WHEN status = 'dead' AND lease = failures THEN 'dead' ELSE 'scheduled'
           END::job_status, 'APP_ERROR', 'the answer made no sense: ' || hash
    FROM made, generate_series(1, failures) AS lease
"""
#: Failed runs leave a traceback, and one in ten of the others has logged something.
ADD_LOGS = """
    INSERT INTO run_logs (job_id, place, lease, log, traceback, written_at)
    SELECT id, lease, lease,
           CASE WHEN failures = 0 THEN ('[{"at": "2026-01-01T00:00:00Z", "level": "info", '
                || '"message": "' || repeat(hash, 8) || '"}]')::json END,
           CASE WHEN failures > 0 THEN 'Traceback (most recent call last): ' || repeat(hash, 24)
           END, at + interval '2 s'
    FROM made, generate_series(1, greatest(failures, (place BETWEEN 10 AND 19)::int)) AS lease
"""
ADD_APPLICATIONS = """
    INSERT INTO applications (id, tenant_id, candidate, role, score, rationale, scored_at, record)
    SELECT id, tenant_id, hash, (ARRAY['engineer', 'designer', 'analyst'])[1 + number %% 3],
           CASE WHEN status = 'succeeded' THEN number %% 9973 / 100.0 END,
           CASE WHEN status = 'succeeded' THEN repeat(hash, 6) END,
           CASE WHEN status = 'succeeded' THEN at + interval '3 s' END,
           CASE WHEN status = 'succeeded'
                THEN ('{"score": 87.5, "rationale": "' || repeat(hash, 6) || '"}')::json END
    FROM made WHERE kind = 3
"""
ADD_EVENTS = """
    INSERT INTO events (tenant_id, kind, job_id, detail, at)
    SELECT tenant_id, 'job_replayed', id, '{"by": "operator"}'::json, at FROM made WHERE place = 99
"""
FILL = f"""
    WITH made AS MATERIALIZED ({MADE}), job AS ({ADD_JOBS}), attempt AS ({ADD_ATTEMPTS}),
         log AS ({ADD_LOGS}), application AS ({ADD_APPLICATIONS})
    {ADD_EVENTS}
"""
#: Those that no constraint needs; of a divided table, for all of its partitions.
READ_INDEXES = """
    SELECT indexrelid::regclass::text AS name,
           replace(pg_get_indexdef(indexrelid), ' ON ONLY ', ' ON ') AS made
    FROM pg_index
    WHERE indrelid = ANY (%(tables)s::regclass[])
      AND NOT EXISTS (SELECT FROM pg_constraint WHERE conindid = indexrelid)
"""
COUNT_DELTAS = "SELECT count(*) FROM job_count_deltas"
VACUUM = f"VACUUM {', '.join(TABLES)}"


def check_space(folder: Path, jobs: int) -> None:
    """End the command if the disk is too small."""
    needed, free = jobs * BYTES_PER_JOB + SPARE_BYTES, shutil.disk_usage(folder).free
    if needed > free:
        raise SystemExit(
            f"{jobs:,} ended jobs need {needed / 1e9:.0f} GB, and {free / 1e9:.0f} GB are free in"
            f" {folder}: take fewer with --jobs, or another folder with --keep"
        )


def prepare(engine: Engine, tenants: int) -> None:
    """What there is before the first job: tenants, and a type that has run before."""
    with engine.connect() as connection:
        connection.exec_driver_sql(ADD_TENANTS, {"tenants": tenants})
        connection.exec_driver_sql(MEASURED_TYPE, {"seconds": 0.005})


def fill(engine: Engine, jobs: int, tenants: int, until: datetime, screen: Screen) -> None:
    """Insert jobs that ended in the month before ``until``, and all that belongs to them."""
    batches = batches_of(jobs)

    def write(batch: tuple[int, int]) -> None:
        first, last = batch
        asked = {"total": jobs, "tenants": tenants, "until": until, "first": first, "last": last}
        with engine.connect() as connection:
            connection.exec_driver_sql(FILL, asked)

    with built_at_last(engine, screen), ThreadPoolExecutor(WRITERS) as writers:
        for number in screen.steps(f"inserting {jobs:,} jobs", -(-len(batches) // VACUUM_EVERY)):
            first = number * VACUUM_EVERY
            list(writers.map(write, batches[first : first + VACUUM_EVERY]))
            run(engine, VACUUM)
    for number in screen.steps("tidying up", 2):
        if number:
            run(engine, "VACUUM ANALYZE")
            run(engine, "CHECKPOINT")
        else:
            fold(engine)


@contextmanager
def built_at_last(engine: Engine, screen: Screen) -> Iterator[None]:
    """Without indexes but those of constraints, which takes a third of the time to fill.

    Built at once, they are as small as they can be: those of a table that has grown are larger.
    """
    with engine.connect() as connection:
        indexes = connection.exec_driver_sql(READ_INDEXES, {"tables": [*TABLES]}).all()
    for index in indexes:
        run(engine, f"DROP INDEX {index.name}")
    yield
    for number in screen.steps("building indexes", len(indexes)):
        run(engine, indexes[number].made)


def batches_of(jobs: int) -> list[tuple[int, int]]:
    """The first and the last number of each batch."""
    return [(first, min(first + BATCH - 1, jobs)) for first in range(1, jobs + 1, BATCH)]


def fold(engine: Engine) -> None:
    """Fold the counts that the triggers have written, as the scheduler does all along."""
    with engine.connect() as connection:
        deltas = connection.exec_driver_sql(COUNT_DELTAS).scalar_one()
    folder = CountFolder(engine)
    for turn in range(deltas // FOLDED + 2):
        folder.run_once(float(turn))


def run(engine: Engine, statement: str) -> None:
    with engine.connect() as connection:
        connection.exec_driver_sql(statement)
