"""Bounds of tenants: requests per second that submit nothing, and idempotency keys that are kept.

Null is the limit of the tier, where those hold. The previous version goes on beside it, and does
not keep to it.
"""

from __future__ import annotations

from alembic import op

revision = "0025"
down_revision = "0022"


def upgrade() -> None:
    op.execute("""
        ALTER TABLE tenants
            ADD COLUMN requests_per_second double precision CHECK (requests_per_second > 0),
            ADD COLUMN idempotency_keys bigint CHECK (idempotency_keys > 0)""")


def downgrade() -> None:
    op.execute("ALTER TABLE tenants DROP COLUMN requests_per_second, DROP COLUMN idempotency_keys")
