"""Remove a tenant that was deleted: its jobs and all its other rows, in bounded batches.

Called by the scheduler's TenantRemover. Nothing is remembered between two batches: each looks for
what is there, so dying before a commit repeats a batch, and after it leaves blobs that no row
names, which the Collector finds. Running jobs are asked to stop and removed once they have ended.
The row of the tenant goes last, when no job of it is left: see
:mod:`models.tenant_removal`.
"""

from __future__ import annotations

from models.jobs.cancel import NOT_ENDED, UPDATE
from models.leadership import STILL_LEADER

#: Rows of a statement.
BATCH = 500
#: API processes may not know for so long, and admit jobs until then.
NOTICE_SECONDS = 10

FIND_DELETED = f"""
    SELECT id, name FROM tenants
    WHERE deleted_at < now() - interval '{NOTICE_SECONDS} seconds' AND {STILL_LEADER}
    ORDER BY deleted_at LIMIT 1
"""
#: The first jobs of the tenant, but for runs that are being stopped: those are waited for. Rows
#: that somebody has locked are left to the next batch. Status as text: see CLAIM in claim.py.
CHOSEN = f"""
        SELECT id FROM jobs
        WHERE tenant_id = %(tenant)s
          AND (status::text <> 'running' OR cancel_requested_at IS NULL) AND {STILL_LEADER}
        ORDER BY id LIMIT {BATCH}
        FOR UPDATE SKIP LOCKED"""
STOP_JOBS = f"""
    WITH chosen AS ({CHOSEN}
    )
    {UPDATE}
    FROM chosen WHERE job.id = chosen.id AND job.status::text {NOT_ENDED}
"""
REMOVE_JOBS = f"""
    WITH chosen AS ({CHOSEN}
    ), removed AS (
        DELETE FROM jobs AS job USING chosen
        WHERE job.id = chosen.id AND NOT job.status::text {NOT_ENDED}
        RETURNING job.id, job.payload_blob
    ), attempted AS (
        DELETE FROM attempts USING removed WHERE job_id = removed.id
    ), logged AS (
        DELETE FROM run_logs USING removed WHERE job_id = removed.id
    ), applied AS (
        DELETE FROM applications USING removed WHERE applications.id = removed.id
    ), checkpointed AS (
        DELETE FROM checkpoints USING removed WHERE job_id = removed.id RETURNING blob
    )
    SELECT (SELECT count(*) FROM removed) AS removed,
           array(SELECT payload_blob FROM removed WHERE payload_blob IS NOT NULL
                 UNION ALL SELECT blob FROM checkpointed WHERE blob IS NOT NULL) AS blobs
"""
#: Of applications, the scored ones are left, whose jobs were retired: the others went with theirs.
REMOVE_SCORED = f"""
    DELETE FROM applications WHERE {STILL_LEADER} AND ctid = ANY (array(
        SELECT ctid FROM applications WHERE tenant_id = %(tenant)s AND score IS NOT NULL
        LIMIT {BATCH}))
"""
#: Other tables with rows of a tenant.
TABLES = (
    *("events", "idempotency_keys", "erasures", "schedules", "replays", "tenant_limits"),
    *("rate_buckets", "refusals", "usage", "shares", "verdicts", "arrivals", "blob_counts"),
)
REMOVE_ROWS = tuple(
    f"""
    DELETE FROM {table} WHERE {STILL_LEADER} AND ctid = ANY (array(
        SELECT ctid FROM {table} WHERE tenant_id = %(tenant)s LIMIT {BATCH}))
"""
    for table in TABLES
)
