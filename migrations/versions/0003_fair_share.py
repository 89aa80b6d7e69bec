"""Fair share and admission: tenants with tiers and keys, a line for each tenant, limits, quotas.

One transaction. Indexes are built with writers waiting, as in 0002. The line of a pool is
one of each tenant now: a scheduler of the previous version cannot pick from it quickly, so it
is replaced first.
"""

from __future__ import annotations

from alembic import op

revision = "0003"
down_revision = "0002"

STATUSES = (
    "scheduled",
    "queued",
    "dispatched",
    "running",
    "succeeded",
    "dead",
    "cancelled",
    "expired",
)
LIVE = STATUSES[:4]
ENDED = STATUSES[4:]
SHARDS = 16

NEW = "SELECT tenant_id, pool, dependency, status, 1 AS one FROM new_jobs"
MOVED = f"""{NEW}
                UNION ALL SELECT tenant_id, pool, dependency, status, -1 FROM old_jobs"""
REMOVED = """SELECT tenant_id, pool, dependency, status, -1 AS one FROM old_jobs
                WHERE status IN ('scheduled', 'queued', 'dispatched', 'running')"""


def upgrade() -> None:
    create_tenants()
    create_lines()
    create_limits()
    create_quotas()
    create_job_types()
    create_schedules()
    create_scaling()


def create_tenants() -> None:
    op.execute("""
        ALTER TABLE tenants
            ADD COLUMN tier text NOT NULL DEFAULT 'standard'
                CHECK (tier IN ('free', 'standard', 'pro', 'enterprise')),
            ADD COLUMN weight double precision CHECK (weight > 0),
            ADD COLUMN submit_per_second double precision CHECK (submit_per_second > 0),
            ADD COLUMN submit_burst double precision CHECK (submit_burst >= 1),
            ADD COLUMN changed_at timestamptz NOT NULL DEFAULT now()""")
    op.execute("CREATE INDEX tenants_changed ON tenants (changed_at)")
    op.execute("""
        CREATE TABLE tenant_limits (
            tenant_id bigint NOT NULL,
            pool text NOT NULL,
            in_flight integer CHECK (in_flight >= 1),
            reserved integer CHECK (reserved >= 1),
            depth bigint CHECK (depth >= 0),
            PRIMARY KEY (tenant_id, pool)
        )""")
    op.execute("""
        CREATE TABLE api_keys (
            id text PRIMARY KEY,
            tenant_id bigint REFERENCES tenants,
            name text NOT NULL DEFAULT '',
            digest bytea NOT NULL,
            created_at timestamptz NOT NULL DEFAULT now(),
            revoked_at timestamptz
        )""")
    op.execute("CREATE INDEX api_keys_revoked ON api_keys (revoked_at)")
    op.execute("CREATE INDEX api_keys_of_tenant ON api_keys (tenant_id)")


def create_lines() -> None:
    op.execute("DROP INDEX jobs_line")
    op.execute("""
        CREATE INDEX jobs_line ON jobs (pool, tenant_id, dependency, priority DESC, id)
        WHERE status = 'queued'""")
    op.execute("ALTER TABLE jobs ADD COLUMN slice text NOT NULL DEFAULT ''")
    op.execute("ALTER TABLE usage ADD COLUMN slice_seconds double precision NOT NULL DEFAULT 0")
    op.execute("""
        CREATE INDEX jobs_in_slice ON jobs (pool, slice)
        WHERE status IN ('dispatched', 'running') AND slice <> ''""")
    op.execute("""
        CREATE TABLE arrivals (
            pool text NOT NULL,
            tenant_id bigint NOT NULL,
            dependency text NOT NULL
        ) WITH (autovacuum_vacuum_threshold = 200, autovacuum_vacuum_scale_factor = 0,
                autovacuum_vacuum_cost_delay = 0)""")
    op.execute("""
        CREATE TABLE shares (
            tenant_id bigint NOT NULL,
            pool text NOT NULL,
            pass double precision NOT NULL,
            counted_day date NOT NULL,
            counted_seconds double precision NOT NULL,
            weight double precision NOT NULL,
            in_flight integer NOT NULL DEFAULT 0,
            started_per_second double precision NOT NULL DEFAULT 0,
            updated_at timestamptz NOT NULL DEFAULT now(),
            PRIMARY KEY (tenant_id, pool)
        ) WITH (fillfactor = 50, autovacuum_vacuum_threshold = 200)""")
    count_by_dependency()
    replace_counting()


def count_by_dependency() -> None:
    """The sums over all tenants are kept by dependency: what a held lane holds is a sum."""
    op.execute("""
        ALTER TABLE job_counts
            ADD COLUMN dependency text NOT NULL DEFAULT '',
            DROP CONSTRAINT job_counts_pkey,
            ADD PRIMARY KEY (tenant_id, pool, dependency, shard)""")
    live = " ".join(f", {s} = 0" for s in LIVE[1:])
    op.execute(f"UPDATE job_counts SET {LIVE[0]} = 0{live} WHERE tenant_id = 0")
    counts = ", ".join(f"count(*) FILTER (WHERE status = '{s}')" for s in LIVE)
    additions = ", ".join(f"{s} = excluded.{s}" for s in LIVE)
    op.execute(f"""
        INSERT INTO job_counts (tenant_id, pool, dependency, shard, {", ".join(LIVE)})
        SELECT 0, pool, dependency, 0, {counts} FROM jobs WHERE status IN ({sql(LIVE)})
        GROUP BY pool, dependency
        ON CONFLICT (tenant_id, pool, dependency, shard) DO UPDATE SET {additions}""")


def replace_counting() -> None:
    """Count as before, by dependency where it is everybody's, and ring for the scheduler.

    Whatever makes a job wait in a line leaves a row in arrivals: so the scheduler knows whose
    line to look at without looking at all of them.
    """
    op.execute(count_function("count_new_jobs", NEW, rings=True))
    # A replayed job stays counted among the deaths: counts of ends never fall.
    op.execute(count_function("count_moved_jobs", MOVED, rings=True, floor=True))
    op.execute(count_function("count_removed_jobs", REMOVED))


def count_function(
    name: str, changes: str, *, floor: bool = False, rings: bool = False, lanes: bool = True
) -> str:
    """The body of a counting trigger; without ``lanes`` as it was before dependencies."""
    sums = ", ".join(f"sum(one) FILTER (WHERE status = '{s}')" for s in STATUSES)
    changed = " OR ".join(
        f"coalesce(sum(one) FILTER (WHERE status = '{s}'), 0) <> 0" for s in STATUSES
    )
    columns = ", ".join(STATUSES)
    values = ", ".join(
        f"greatest(coalesce({s}, 0), 0)" if floor and s in ENDED else f"coalesce({s}, 0)"
        for s in STATUSES
    )
    additions = ", ".join(f"{s} = job_counts.{s} + excluded.{s}" for s in STATUSES)
    line = "tenant_id, pool, dependency" if lanes else "tenant_id, pool"
    everybody = "pool, dependency" if lanes else "pool"
    found = "pool, coalesce(dependency, '')" if lanes else "pool"
    bell = """
            INSERT INTO arrivals (pool, tenant_id, dependency)
            SELECT DISTINCT pool, tenant_id, dependency FROM new_jobs WHERE status = 'queued';"""
    return f"""
        CREATE OR REPLACE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
            INSERT INTO job_counts ({line}, shard, {columns})
            SELECT {line}, pg_backend_pid() % {SHARDS}, {values}
            FROM (
                SELECT coalesce(tenant_id, 0), {found}, {sums}
                FROM ({changes}) AS changes
                GROUP BY GROUPING SETS ((tenant_id, pool), ({everybody}))
                HAVING {changed}
                ORDER BY {"1, 2, 3" if lanes else "1, 2"}
            ) AS sums ({line}, {columns})
            ON CONFLICT ({line}, shard) DO UPDATE SET {additions};
            {bell if rings else ""}
            RETURN NULL;
        END $$"""


def create_limits() -> None:
    op.execute("""
        CREATE TABLE rate_buckets (
            tenant_id bigint PRIMARY KEY,
            spent_until timestamptz NOT NULL DEFAULT to_timestamp(0)
        ) WITH (fillfactor = 50)""")
    op.execute("""
        CREATE TABLE refusals (
            tenant_id bigint NOT NULL,
            day date NOT NULL,
            code text NOT NULL,
            refused bigint NOT NULL DEFAULT 0,
            PRIMARY KEY (tenant_id, day, code)
        ) WITH (fillfactor = 50)""")


def create_quotas() -> None:
    op.execute("""
        CREATE TABLE quotas (
            dependency text PRIMARY KEY,
            requests_per_minute double precision CHECK (requests_per_minute > 0),
            tokens_in_per_minute double precision CHECK (tokens_in_per_minute > 0),
            tokens_out_per_minute double precision CHECK (tokens_out_per_minute > 0),
            reading json,
            read_at timestamptz,
            closed_until timestamptz,
            refused bigint NOT NULL DEFAULT 0,
            calls bigint NOT NULL DEFAULT 0,
            tokens_in bigint NOT NULL DEFAULT 0,
            tokens_out bigint NOT NULL DEFAULT 0,
            changed_at timestamptz NOT NULL DEFAULT now()
        ) WITH (fillfactor = 50)""")


def create_job_types() -> None:
    op.execute("""
        CREATE TABLE job_types (
            type text PRIMARY KEY,
            declared_pool text NOT NULL,
            pool text NOT NULL,
            moved_at timestamptz,
            mean_seconds double precision,
            p95_seconds double precision,
            runs bigint NOT NULL DEFAULT 0,
            changed_at timestamptz NOT NULL DEFAULT now()
        ) WITH (fillfactor = 50)""")


def create_schedules() -> None:
    op.execute("""
        CREATE TABLE schedules (
            id uuid PRIMARY KEY,
            tenant_id bigint NOT NULL,
            name text NOT NULL,
            cron text NOT NULL,
            timezone text NOT NULL,
            overlap text NOT NULL CHECK (overlap IN ('allow', 'skip')),
            catch_up text NOT NULL CHECK (catch_up IN ('none', 'one', 'all')),
            type text NOT NULL,
            payload json NOT NULL,
            priority smallint NOT NULL DEFAULT 0,
            paused boolean NOT NULL DEFAULT false,
            next_at timestamptz,
            last_at timestamptz,
            last_job_id uuid,
            made bigint NOT NULL DEFAULT 0,
            skipped bigint NOT NULL DEFAULT 0,
            created_at timestamptz NOT NULL DEFAULT now(),
            UNIQUE (tenant_id, name)
        ) WITH (fillfactor = 70)""")
    op.execute("CREATE INDEX schedules_next ON schedules (next_at) WHERE NOT paused")


def create_scaling() -> None:
    op.execute("""
        CREATE TABLE desired_workers (
            pool text PRIMARY KEY,
            workers integer NOT NULL,
            reason text NOT NULL,
            living integer NOT NULL DEFAULT 0,
            depth bigint NOT NULL DEFAULT 0,
            oldest_seconds double precision NOT NULL DEFAULT 0,
            utilisation double precision NOT NULL DEFAULT 0,
            changed_at timestamptz NOT NULL DEFAULT now(),
            updated_at timestamptz NOT NULL DEFAULT now()
        ) WITH (fillfactor = 50)""")
    op.execute("""
        CREATE TABLE predictions (
            job_id uuid PRIMARY KEY,
            pool text NOT NULL,
            made_at timestamptz NOT NULL DEFAULT now(),
            wait_seconds double precision NOT NULL
        ) WITH (fillfactor = 70)""")


def sql(values: tuple[str, ...]) -> str:
    return ", ".join(f"'{value}'" for value in values)


def downgrade() -> None:
    op.execute(
        "DROP TABLE predictions, desired_workers, schedules, job_types, quotas, refusals,"
        " rate_buckets, shares, api_keys, tenant_limits"
    )
    op.execute("DROP INDEX tenants_changed")
    op.execute("""
        ALTER TABLE tenants DROP COLUMN tier, DROP COLUMN weight, DROP COLUMN submit_per_second,
            DROP COLUMN submit_burst, DROP COLUMN changed_at""")
    op.execute("DROP INDEX jobs_in_slice, jobs_line")
    op.execute("ALTER TABLE jobs DROP COLUMN slice")
    op.execute("ALTER TABLE usage DROP COLUMN slice_seconds")
    op.execute("""
        CREATE INDEX jobs_line ON jobs (pool, dependency, priority DESC, id)
        WHERE status = 'queued'""")
    restore_counting()
    op.execute("DROP TABLE arrivals")


def restore_counting() -> None:
    """Counts without dependency and without the bell, as 0001 and 0002 left them."""
    columns = ", ".join(STATUSES)
    sums = ", ".join(f"sum({s})" for s in STATUSES)
    op.execute(f"""
        CREATE TEMPORARY TABLE counted ON COMMIT DROP AS
        SELECT tenant_id, pool, shard, {", ".join(f"sum({s}) AS {s}" for s in STATUSES)}
        FROM job_counts GROUP BY tenant_id, pool, shard""")
    op.execute("TRUNCATE job_counts")
    op.execute("""
        ALTER TABLE job_counts
            DROP CONSTRAINT job_counts_pkey,
            DROP COLUMN dependency,
            ADD PRIMARY KEY (tenant_id, pool, shard)""")
    op.execute(f"""
        INSERT INTO job_counts (tenant_id, pool, shard, {columns})
        SELECT tenant_id, pool, shard, {sums} FROM counted GROUP BY tenant_id, pool, shard""")
    op.execute("DROP TABLE counted")
    op.execute(count_function("count_new_jobs", NEW, lanes=False))
    op.execute(count_function("count_moved_jobs", MOVED, lanes=False, floor=True))
    op.execute(count_function("count_removed_jobs", REMOVED, lanes=False))
