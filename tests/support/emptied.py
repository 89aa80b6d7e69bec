"""A database for many tests: emptied before each, which is cheaper than a fresh one."""

from __future__ import annotations

from tests.support.database_fixture import DatabaseFixture

#: The tables of the view ``job_counts``.
COUNTS = "job_count_deltas, job_count_sums, job_count_keys"
TABLES = (
    f"jobs, applications, {COUNTS}, processes, leaders, express_lanes, attempts, checkpoints,"
    " idempotency_keys, events, tallies, circuits, verdicts, usage, arrivals, shares,"
    " tenant_limits, blob_counts, rate_buckets, refusals, quotas, job_types, schedules,"
    " desired_workers, predictions, pool_samples, replays, run_logs,"
    " erasures, audit_log, away_tenants, intake_jobs, transfer_marks"
)
#: Name of keys that the tests of a module share; they and their sessions stay.
KEPT = "kept"
#: Tables without a page are left alone: to truncate all of them takes ten times as long. The audit
#: log refuses it, except to the owner of the table who says so.
TRUNCATE = f"""
    DO $$
    DECLARE
        used text := (
            SELECT string_agg(name::text, ', ') FROM unnest('{{{TABLES}}}'::regclass[]) AS name
            WHERE pg_relation_size(name) > 0
        );
    BEGIN
        ALTER TABLE audit_log DISABLE TRIGGER audit_log_keep_all;
        IF used IS NOT NULL THEN
            EXECUTE 'TRUNCATE ' || used;
        END IF;
        ALTER TABLE audit_log ENABLE TRIGGER audit_log_keep_all;
    END $$;
    DELETE FROM api_keys WHERE name <> '{KEPT}';
    DELETE FROM sessions WHERE NOT EXISTS (SELECT FROM api_keys WHERE id = key_id)
"""


def emptied(database: DatabaseFixture) -> DatabaseFixture:
    """The same database with nothing in it but tenants, and a leader in place."""
    database.execute(TRUNCATE)
    return DatabaseFixture(database.engine)
