"""Table ``replays``: dead letters that are replayed little by little, at their tenant's rate.

A new table only: the previous version does not know it and goes on beside it.
"""

from __future__ import annotations

from alembic import op

revision = "0009"
down_revision = "0008"


def upgrade() -> None:
    op.execute("""
        CREATE TABLE replays (
            id uuid PRIMARY KEY,
            tenant_id bigint NOT NULL,
            digest text NOT NULL,
            ids uuid[],
            type text,
            error_class text,
            before timestamptz NOT NULL,
            most bigint,
            state text NOT NULL DEFAULT 'running',
            total bigint NOT NULL DEFAULT 0,
            done bigint NOT NULL DEFAULT 0,
            position uuid NOT NULL,
            again boolean NOT NULL DEFAULT false,
            reason text,
            requested_at timestamptz NOT NULL DEFAULT now(),
            worked_at timestamptz NOT NULL DEFAULT now(),
            finished_at timestamptz
        ) WITH (fillfactor = 50)""")
    op.execute("""
        CREATE UNIQUE INDEX replays_running ON replays (tenant_id, digest)
        WHERE state = 'running'""")
    op.execute("CREATE INDEX replays_next ON replays (worked_at) WHERE state = 'running'")


def downgrade() -> None:
    op.execute("DROP TABLE replays")
