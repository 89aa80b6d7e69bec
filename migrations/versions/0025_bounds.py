"""Bounds of tenants: other requests per second, idempotency keys, bytes of blobs; ``blob_counts``.

Null is the limit of the tier, where those hold. The previous version goes on beside it, and does
not keep to it.
"""

from __future__ import annotations

from alembic import op

revision = "0025"
down_revision = "0024"


def upgrade() -> None:
    op.execute("""
        ALTER TABLE tenants
            ADD COLUMN requests_per_second double precision CHECK (requests_per_second > 0),
            ADD COLUMN idempotency_keys bigint CHECK (idempotency_keys > 0),
            ADD COLUMN blob_bytes bigint CHECK (blob_bytes > 0)""")
    op.execute("""
        CREATE TABLE blob_counts (
            tenant_id bigint PRIMARY KEY,
            bytes bigint NOT NULL,
            counted_at timestamptz NOT NULL
        ) WITH (fillfactor = 70)""")


def downgrade() -> None:
    op.execute("DROP TABLE blob_counts")
    op.execute("""
        ALTER TABLE tenants DROP COLUMN requests_per_second, DROP COLUMN idempotency_keys,
                            DROP COLUMN blob_bytes""")
