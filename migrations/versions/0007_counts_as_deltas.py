"""Counts of jobs become sums and deltas; arrivals say where in its lane a job was queued.

``job_counts`` was a table whose rows every change of a job updated in place: while any snapshot is
held open, every reader walks all their dead versions. It becomes a view over the newest sum of
each key and the deltas behind it, with the same columns, so that processes of the previous version
read it as they did. Only triggers write counts, so no writer has to change.

One transaction; no large table is rewritten. It waits for transactions that write jobs, and they
for it. The way back is the same in reverse.
"""

from __future__ import annotations

from alembic import op

revision = "0007"
down_revision = "0006"

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
ENDED = STATUSES[4:]
COLUMNS = ", ".join(STATUSES)
KEY = "tenant_id, pool, dependency"

NEW = "SELECT tenant_id, pool, dependency, status, 1 AS one FROM new_jobs"
MOVED = f"""{NEW}
                UNION ALL SELECT tenant_id, pool, dependency, status, -1 FROM old_jobs"""
REMOVED = """SELECT tenant_id, pool, dependency, status, -1 AS one FROM old_jobs
                WHERE status IN ('scheduled', 'queued', 'dispatched', 'running')"""


def upgrade() -> None:
    # In the order in which the triggers reach them.
    op.execute("LOCK TABLE jobs IN SHARE ROW EXCLUSIVE MODE")
    op.execute("LOCK TABLE job_counts, arrivals IN ACCESS EXCLUSIVE MODE")
    create_tables()
    op.execute(f"INSERT INTO job_count_keys SELECT DISTINCT {KEY} FROM job_counts")
    sums = ", ".join(f"sum({each})" for each in STATUSES)
    op.execute(f"""
        INSERT INTO job_count_sums ({KEY}, up_to, {COLUMNS})
        SELECT {KEY}, 0, {sums} FROM job_counts GROUP BY {KEY}""")
    op.execute("DROP TABLE job_counts")
    create_view()
    op.execute("""
        ALTER TABLE arrivals
            ADD COLUMN id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
            ADD COLUMN priority smallint,
            ADD COLUMN first_id uuid,
            ADD COLUMN last_id uuid""")
    # A replayed job stays counted among the deaths: counts of ends never fall.
    op.execute(count_function("count_new_jobs", NEW, arrivals=True))
    op.execute(count_function("count_moved_jobs", MOVED, arrivals=True, floor=True))
    op.execute(count_function("count_removed_jobs", REMOVED))


def create_tables() -> None:
    vacuumed = "autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_cost_delay = 0"
    op.execute(f"""
        CREATE TABLE job_count_keys (
            tenant_id bigint NOT NULL,
            pool text NOT NULL,
            dependency text NOT NULL,
            PRIMARY KEY ({KEY})
        )""")
    op.execute(f"""
        CREATE TABLE job_count_sums (
            tenant_id bigint NOT NULL,
            pool text NOT NULL,
            dependency text NOT NULL,
            up_to bigint NOT NULL,
            {", ".join(f"{each} bigint NOT NULL" for each in STATUSES)},
            PRIMARY KEY ({KEY}, up_to)
        ) WITH (autovacuum_vacuum_threshold = 200, {vacuumed})""")
    op.execute(f"""
        CREATE TABLE job_count_deltas (
            tenant_id bigint NOT NULL,
            pool text NOT NULL,
            dependency text NOT NULL,
            id bigint GENERATED ALWAYS AS IDENTITY,
            {", ".join(f"{each} integer NOT NULL" for each in STATUSES)},
            PRIMARY KEY ({KEY}, id)
        ) WITH (autovacuum_vacuum_threshold = 1000, {vacuumed})""")
    op.execute("CREATE INDEX job_count_deltas_id ON job_count_deltas (id)")


def create_view() -> None:
    """Of each key the newest sum, and the deltas that are not in it.

    Both are found by index conditions that leave out what is dead: older sums have a smaller
    number, and so have the deltas that they include.
    """
    totals = ",\n".join(
        f"coalesce(base.{each}, 0) + coalesce(since.{each}, 0) AS {each}" for each in STATUSES
    )
    deltas = ", ".join(f"sum({each}) AS {each}" for each in STATUSES)
    op.execute(f"""
        CREATE VIEW job_counts AS
        SELECT key.tenant_id, key.pool, key.dependency, 0::smallint AS shard, {totals}
        FROM job_count_keys AS key
        LEFT JOIN LATERAL (
            SELECT * FROM job_count_sums AS summed
            WHERE summed.tenant_id = key.tenant_id AND summed.pool = key.pool
              AND summed.dependency = key.dependency
            ORDER BY up_to DESC LIMIT 1
        ) AS base ON true
        CROSS JOIN LATERAL (
            SELECT {deltas} FROM job_count_deltas AS delta
            WHERE delta.tenant_id = key.tenant_id AND delta.pool = key.pool
              AND delta.dependency = key.dependency AND delta.id > coalesce(base.up_to, 0)
        ) AS since""")


def count_function(name: str, changes: str, *, floor: bool = False, arrivals: bool = False) -> str:
    """The body of a counting trigger. It updates nothing, so no two of them wait for each other,
    but for the first change of a key."""
    one = "coalesce(sum(one) FILTER (WHERE status = '{}'), 0)"
    counts = {each: one.format(each) for each in STATUSES}
    sums = ", ".join(
        f"greatest({count}, 0)" if floor and each in ENDED else count
        for each, count in counts.items()
    )
    noted = """
            INSERT INTO arrivals (pool, tenant_id, dependency, priority, first_id, last_id)
            SELECT pool, tenant_id, dependency, priority, min(id::text COLLATE "C")::uuid,
                   max(id::text COLLATE "C")::uuid
            FROM new_jobs WHERE status = 'queued'
            GROUP BY pool, tenant_id, dependency, priority;"""
    return f"""
        CREATE OR REPLACE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
            WITH counted AS (
                INSERT INTO job_count_deltas ({KEY}, {COLUMNS})
                SELECT coalesce(tenant_id, 0), pool, coalesce(dependency, ''), {sums}
                FROM ({changes}) AS changes
                GROUP BY GROUPING SETS ((tenant_id, pool), (pool, dependency))
                HAVING {" OR ".join(f"{count} <> 0" for count in counts.values())}
                RETURNING {KEY}
            )
            INSERT INTO job_count_keys SELECT {KEY} FROM counted ORDER BY 1, 2, 3
            ON CONFLICT DO NOTHING;
            {noted if arrivals else ""}
            RETURN NULL;
        END $$"""


def downgrade() -> None:
    op.execute("LOCK TABLE jobs IN SHARE ROW EXCLUSIVE MODE")
    op.execute("LOCK TABLE arrivals IN ACCESS EXCLUSIVE MODE")
    op.execute("ALTER VIEW job_counts RENAME TO job_counts_view")
    op.execute(f"""
        CREATE TABLE job_counts (
            tenant_id bigint NOT NULL,
            pool text NOT NULL,
            shard smallint NOT NULL,
            {", ".join(f"{each} bigint NOT NULL DEFAULT 0" for each in STATUSES)},
            dependency text NOT NULL DEFAULT '',
            PRIMARY KEY ({KEY}, shard)
        ) WITH (fillfactor = 50, autovacuum_vacuum_threshold = 200)""")
    op.execute(f"""
        INSERT INTO job_counts ({KEY}, shard, {COLUMNS})
        SELECT {KEY}, shard, {COLUMNS} FROM job_counts_view""")
    op.execute("DROP VIEW job_counts_view")
    op.execute("DROP TABLE job_count_deltas, job_count_sums, job_count_keys")
    script = op.get_context().script
    assert script is not None
    script.get_revision("0003").module.replace_counting()
    op.execute("""
        ALTER TABLE arrivals
            DROP COLUMN id, DROP COLUMN priority, DROP COLUMN first_id, DROP COLUMN last_id""")
