"""Table ``erasures``, and ``tenants.suspended_at`` and ``deleted_at``.

The previous version goes on beside it. It erases nothing, accepts and dispatches jobs of suspended
tenants, and answers 404 for what was erased: suspend and delete once all its processes are gone.
"""

from __future__ import annotations

from alembic import op

revision = "0017"
down_revision = "0015"


def upgrade() -> None:
    op.execute("""
        CREATE TABLE erasures (
            id uuid PRIMARY KEY,
            tenant_id bigint NOT NULL,
            requested_at timestamptz NOT NULL DEFAULT now(),
            erased_at timestamptz,
            due_at timestamptz DEFAULT now(),
            blobs text[] NOT NULL DEFAULT '{}'
        ) WITH (fillfactor = 70)""")
    op.execute("CREATE INDEX erasures_due ON erasures (due_at) WHERE due_at IS NOT NULL")
    op.execute("CREATE INDEX erasures_of_tenant ON erasures (tenant_id)")
    op.execute("ALTER TABLE tenants ADD COLUMN suspended_at timestamptz")
    op.execute("ALTER TABLE tenants ADD COLUMN deleted_at timestamptz")


def downgrade() -> None:
    op.execute("ALTER TABLE tenants DROP COLUMN deleted_at")
    op.execute("ALTER TABLE tenants DROP COLUMN suspended_at")
    op.execute("DROP TABLE erasures")
