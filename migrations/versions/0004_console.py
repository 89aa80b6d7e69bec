"""The console: samples behind its charts, workers that can be drained one by one, scores that keep
their record.

One transaction, without a rewrite of any table: jobs go on meanwhile, but for a moment in which
the dead letters are indexed anew. Writers wait then, and readers for the blink at its end.
"""

from __future__ import annotations

from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    # Behind a long statement it gives up rather than keep everybody waiting behind itself.
    op.execute("SET LOCAL lock_timeout = '10s'")
    add_drains()
    create_samples()
    add_records()
    widen_dead_letters()  # last: from its end on readers wait too, until the commit


def add_drains() -> None:
    op.execute("""
        ALTER TABLE processes
            ADD COLUMN parent text,
            ADD COLUMN node text NOT NULL DEFAULT '',
            ADD COLUMN drain_requested_at timestamptz""")


def create_samples() -> None:
    op.execute("""
        CREATE TABLE pool_samples (
            step integer NOT NULL,
            pool text NOT NULL,
            at timestamptz NOT NULL,
            submitted bigint NOT NULL,
            succeeded bigint NOT NULL,
            dead bigint NOT NULL,
            cancelled bigint NOT NULL,
            expired bigint NOT NULL,
            scheduled bigint NOT NULL,
            queued bigint NOT NULL,
            dispatched bigint NOT NULL,
            running bigint NOT NULL,
            oldest_seconds double precision NOT NULL,
            busy integer NOT NULL,
            slots integer NOT NULL,
            workers integer NOT NULL,
            PRIMARY KEY (step, pool, at)
        )""")


def widen_dead_letters() -> None:
    """Dead letters are counted by pool, type and class without a look at their rows."""
    op.execute("""
        CREATE INDEX jobs_dead_wide ON jobs (tenant_id, id) INCLUDE (pool, type, error_class)
        WHERE status = 'dead'""")
    op.execute("DROP INDEX jobs_dead")
    op.execute("ALTER INDEX jobs_dead_wide RENAME TO jobs_dead")


def add_records() -> None:
    op.execute("ALTER TABLE applications ADD COLUMN record json")


def downgrade() -> None:
    op.execute("ALTER TABLE applications DROP COLUMN record")
    op.execute("DROP INDEX jobs_dead")
    op.execute("CREATE INDEX jobs_dead ON jobs (tenant_id, id) WHERE status = 'dead'")
    op.execute("DROP TABLE pool_samples")
    op.execute("""
        ALTER TABLE processes
            DROP COLUMN parent, DROP COLUMN node, DROP COLUMN drain_requested_at""")
