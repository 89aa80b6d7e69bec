"""Roles for API, schedulers, workers and one tenant, and row-level security on every tenant's rows.

The roles cannot log in: logins are members of them (see docs/operations.md). They belong to the
whole server, so they are only created where they are missing, and stay on the way down. Owners of
tables are not bound by row-level security: the previous version, which connects as the owner, goes
on beside it.

``fairline_tenant`` sees the rows of the tenant whose id is in the setting ``fairline.tenant``; the
others pass policies by, or have one that is true where the owner may not let them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from alembic import op

revision = "0023"
down_revision = "0026"

API, SCHEDULER, WORKER, TENANT = ROLES = (
    "fairline_api",
    "fairline_scheduler",
    "fairline_worker",
    "fairline_tenant",
)
#: The tenant that is set; null: none, and nothing is seen. Empty after a transaction that set it.
CURRENT = "nullif(current_setting('fairline.tenant', true), '')::bigint"
OWN = f"tenant_id = {CURRENT}"
#: Tenant 0 is all of them: sums, and what concerns everybody.
OWN_OR_COMMON = f"tenant_id IN (0, {CURRENT})"
#: Subqueries of a policy are subject to the policies of their own tables.
OF_JOB = "EXISTS (SELECT FROM jobs WHERE jobs.id = job_id)"
#: What is counted with a replay or when dead letters are discarded.
OWN_COUNTS = f"""{CURRENT} IS NOT NULL AND (
    kind = 'discarded' OR (kind = 'submission' AND name = ({CURRENT})::text))"""
OWN_NAME = "tenant = (SELECT name FROM tenants) AND role = 'tenant'"
#: What a tenant may read, and what it may write, of the rows of each table; empty: nothing.
POLICIES: Mapping[str, tuple[str, str]] = {
    **dict.fromkeys(
        (
            *("jobs", "applications", "idempotency_keys", "erasures", "replays", "schedules"),
            *("tenant_limits", "api_keys", "rate_buckets", "refusals", "usage", "arrivals"),
        ),
        (OWN, OWN),
    ),
    **dict.fromkeys(
        (
            *("events", "job_count_keys", "job_count_sums", "job_count_deltas", "shares"),
            *("verdicts", "blob_counts"),
        ),
        (OWN_OR_COMMON, OWN),
    ),
    **dict.fromkeys(("attempts", "run_logs", "checkpoints", "predictions"), (OF_JOB, OF_JOB)),
    "tenants": (f"id = {CURRENT}", f"id = {CURRENT}"),
    "audit_log": (OWN_NAME, OWN_NAME),
    "tallies": (OWN_COUNTS, OWN_COUNTS),
    "sessions": ("", ""),
}

#: Privileges by role and table or sequence: S(elect), I(nsert), U(pdate), D(elete), T(runcate). In
#: brackets the columns that a privilege is for.
GRANTS: Mapping[str, Mapping[str, str]] = {
    API: {
        **dict.fromkeys(
            (
                *("alembic_version", "arrivals", "blob_counts", "circuits", "desired_workers"),
                *("feed_generations", "job_count_deltas", "job_count_keys", "job_count_sums"),
                *("job_counts", "job_types", "leaders", "pool_samples", "predictions", "shares"),
                *("usage", "verdicts", "verdicts_version"),
            ),
            "S",
        ),
        # Submissions, cancellations, replays, erasures; re-encryption, by an operator's command.
        "jobs": "SIUD",
        "applications": "SIUD",
        "attempts": "SUD",
        "checkpoints": "SUD",
        "run_logs": "SUD",
        "idempotency_keys": "SIU",
        "erasures": "SIU",
        "events": "SIU(detail)D",
        "replays": "SIU",
        "schedules": "SIUD",
        "express_lanes": "SU",
        "rate_buckets": "SIU",
        "refusals": "SIU",
        "tallies": "SIU",
        "processes": "SIUD",
        "quotas": "SIUD",
        "tenants": "SIU",
        "tenant_limits": "SIUD",
        "api_keys": "SIU",
        "sessions": "SIUD",
        "audit_log": "SI",
    },
    SCHEDULER: {
        **dict.fromkeys(
            ("alembic_version", "feed_generations", "job_counts", "verdicts_version"), "S"
        ),
        "jobs": "SIUD",
        "applications": "SID",
        "attempts": "SID",
        "checkpoints": "SD",
        "run_logs": "SD",
        "idempotency_keys": "SIUD",
        "erasures": "SIUD",
        "events": "SID",
        "replays": "SUD",
        "schedules": "SUD",
        "express_lanes": "SIU",
        "rate_buckets": "SIUD",
        "refusals": "SIUD",
        "tallies": "SIUD",
        "processes": "SIUD",
        "quotas": "SIUD",
        "tenants": "SD",
        "tenant_limits": "SD",
        "api_keys": "S(tenant_id)D",
        "sessions": "SD",
        "leaders": "SIU",
        "desired_workers": "SIUD",
        "pool_samples": "SID",
        "circuits": "SIUD",
        "verdicts": "SIUD",
        "job_types": "SIUD",
        "arrivals": "SDT",
        "shares": "SIUD",
        "predictions": "SIUD",
        "usage": "SIUD",
        "blob_counts": "SIUD",
        "job_count_keys": "SD",
        "job_count_sums": "SID",
        "job_count_deltas": "SID",
        # Which numbers were drawn.
        "job_count_deltas_id_seq": "S",
        "arrivals_id_seq": "S",
    },
    WORKER: {
        **dict.fromkeys(
            ("alembic_version", "circuits", "job_types", "leaders", "tenants", "verdicts"), "S"
        ),
        "verdicts_version": "S",
        # Offers to run a job.
        "express_lanes": "S(pool, offers)U(offers)",
        "jobs": "SU",
        "applications": "SU",
        "attempts": "SI",
        "checkpoints": "SIU",
        "run_logs": "SIU",
        "usage": "SIU",
        "tallies": "SIUD",
        "processes": "SIUD",
        "quotas": "SIU",
    },
    TENANT: {
        **dict.fromkeys(
            (
                *("circuits", "job_types", "job_counts", "job_count_deltas", "job_count_keys"),
                *("job_count_sums", "quotas", "refusals", "tenant_limits", "tenants", "usage"),
                *("shares", "verdicts"),
            ),
            "S",
        ),
        # Whether the worker of a job is alive; its queues name tenants.
        "processes": "S(name, heartbeat_at)",
        "tallies": "SIU",
        "jobs": "SUD",
        "applications": "SD",
        "attempts": "SD",
        "checkpoints": "SD",
        "run_logs": "SD",
        "idempotency_keys": "SU",
        "erasures": "SIU",
        "events": "SID",
        "replays": "SIU",
        "schedules": "SIUD",
        "rate_buckets": "SIU",
        "api_keys": "S(id, tenant_id, name, created_at, revoked_at, scopes, expires_at,"
        " last_used_at)",
        "audit_log": "I",
    },
}
PRIVILEGES = {"S": "SELECT", "I": "INSERT", "U": "UPDATE", "D": "DELETE", "T": "TRUNCATE"}
#: Functions of triggers that write where the roles may not.
TRIGGERS = (
    *("count_new_jobs()", "count_moved_jobs()", "count_removed_jobs()"),
    "change_verdicts_version()",
)
RETIRE_AUDIT = "retire_audit(double precision, integer)"
#: These were the owner's before.
FEED = ("begin_feed_generation()", "finish_feed_generation()")
OF_SCHEDULER = (RETIRE_AUDIT, *FEED)

#: Two databases of a server may be migrated at the same time: the second finds the role there.
CREATE_ROLES = f"""
    DO $$
    DECLARE
        wanted name;
        set_role text := CASE WHEN current_setting('server_version_num')::int >= 160000
                              THEN 'SET' ELSE 'MEMBER' END;
    BEGIN
        FOREACH wanted IN ARRAY ARRAY{list(ROLES)}::name[] LOOP
            IF to_regrole(wanted) IS NULL THEN
                BEGIN
                    EXECUTE format('CREATE ROLE %I NOLOGIN', wanted);
                EXCEPTION WHEN duplicate_object OR unique_violation THEN NULL;
                END;
            END IF;
            -- So that whoever has one login for everything can go on with it.
            IF NOT pg_has_role(current_user, wanted, set_role) THEN
                BEGIN
                    EXECUTE format('GRANT %I TO %I', wanted, current_user);
                EXCEPTION WHEN unique_violation THEN NULL;
                END;
            END IF;
        END LOOP;
    EXCEPTION WHEN insufficient_privilege THEN
        RAISE EXCEPTION 'the login % may not create the roles of Fairline', current_user
        USING HINT = format('As a superuser: {" ".join(f"CREATE ROLE {role};" for role in ROLES)} '
            'GRANT {", ".join(ROLES)} TO %I WITH ADMIN OPTION; then migrate again.', current_user);
    END $$"""
#: Who waits for whom, and the oldest transaction, are seen of other logins by members of this role.
#: An owner that may not give it goes on; see docs/operations.md.
SEE_SESSIONS = f"""
    DO $$ BEGIN
        GRANT pg_read_all_stats TO {API}, {SCHEDULER};
    EXCEPTION WHEN insufficient_privilege THEN
        RAISE WARNING 'the age of the oldest snapshot is not measured until a superuser runs: '
            'GRANT pg_read_all_stats TO {API}, {SCHEDULER}';
    WHEN unique_violation THEN NULL;
    END $$"""
#: Where there is a policy, even true, the planner uses no statistics of columns with operators that
#: are not leakproof, such as ``status``: it would read all of ``jobs`` to find those in flight.
PASS_POLICIES = f"""
    DO $$
    DECLARE wanted name;
    BEGIN
        FOR wanted IN SELECT rolname FROM pg_roles WHERE NOT rolbypassrls
                      AND rolname = ANY (ARRAY{[API, SCHEDULER, WORKER]}) LOOP
            EXECUTE format('ALTER ROLE %I BYPASSRLS', wanted);
        END LOOP;
    EXCEPTION WHEN insufficient_privilege THEN
        RAISE WARNING 'plans are worse until a superuser runs: '
            '{" ".join(f"ALTER ROLE {role} BYPASSRLS;" for role in (API, SCHEDULER, WORKER))}';
    WHEN internal_error THEN NULL;  -- another migration of the server did it
    END $$"""
#: As the owner, whoever calls it. Nothing that a caller created comes first in the path.
AS_OWNER = """
    DO $$ BEGIN
        EXECUTE format('ALTER FUNCTION {function} SECURITY DEFINER SET search_path = %I, pg_temp',
                       current_schema());
    END $$"""


def upgrade() -> None:
    op.execute(CREATE_ROLES)
    op.execute(SEE_SESSIONS)
    op.execute(PASS_POLICIES)
    op.execute(
        """
        DO $$ BEGIN EXECUTE format('GRANT USAGE ON SCHEMA %I TO {}', current_schema()); END $$
    """.format(", ".join(ROLES))
    )
    for table, (reads, writes) in POLICIES.items():
        secure(table, reads, writes)
    for role, tables in GRANTS.items():
        for table, letters in tables.items():
            op.execute(f"GRANT {privileges(letters)} ON {table} TO {role}")
    # Else the counts of a view would be read as its owner.
    op.execute("ALTER VIEW job_counts SET (security_invoker = true)")
    for function in (*TRIGGERS, *OF_SCHEDULER):
        op.execute(AS_OWNER.format(function=function))
        # A trigger needs no privilege to call its function; who had one could use it on a table
        # of their own.
        op.execute(f"REVOKE ALL ON FUNCTION {function} FROM PUBLIC")
    for function in OF_SCHEDULER:
        op.execute(f"GRANT EXECUTE ON FUNCTION {function} TO {SCHEDULER}")


def secure(table: str, reads: str, writes: str) -> None:
    """Let everybody see nothing but what a policy allows."""
    op.execute(f"ALTER TABLE {table} ENABLE ROW LEVEL SECURITY")
    many = ", ".join(role for role in (API, SCHEDULER, WORKER) if table in GRANTS[role])
    op.execute(f"CREATE POLICY many_tenants ON {table} TO {many} USING (true)")
    if writes:
        op.execute(f"CREATE POLICY one_tenant ON {table} TO {TENANT} USING ({writes})")
    if reads != writes:
        common = f"CREATE POLICY one_tenant_reads ON {table} FOR SELECT TO {TENANT}"
        op.execute(f"{common} USING ({reads})")


def found_in(letters: str) -> list[tuple[str, str]]:
    """The privileges of an entry of ``GRANTS``, with their columns."""
    return re.findall(r"([SIUDT])(\([^)]*\))?", letters)


def privileges(letters: str) -> str:
    """The same as SQL has it."""
    return ", ".join(f"{PRIVILEGES[letter]} {columns}" for letter, columns in found_in(letters))


def downgrade() -> None:
    for function in OF_SCHEDULER:
        op.execute(f"REVOKE ALL ON FUNCTION {function} FROM {SCHEDULER}")
    for function in (*TRIGGERS, *OF_SCHEDULER):
        op.execute(f"GRANT EXECUTE ON FUNCTION {function} TO PUBLIC")
    for function in (*TRIGGERS, RETIRE_AUDIT):
        op.execute(f"ALTER FUNCTION {function} SECURITY INVOKER RESET search_path")
    for function in FEED:
        op.execute(f"ALTER FUNCTION {function} SET search_path FROM CURRENT")
    op.execute("ALTER VIEW job_counts RESET (security_invoker)")
    for role, tables in GRANTS.items():
        for table in tables:
            op.execute(f"REVOKE ALL ON {table} FROM {role}")
    for table in POLICIES:
        op.execute(f"DROP POLICY many_tenants ON {table}")
        op.execute(f"DROP POLICY IF EXISTS one_tenant_reads ON {table}")
        op.execute(f"DROP POLICY IF EXISTS one_tenant ON {table}")
        op.execute(f"ALTER TABLE {table} DISABLE ROW LEVEL SECURITY")
