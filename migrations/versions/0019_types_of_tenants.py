"""``tenants.types``: the job types that a tenant may submit; null: all.

The previous version goes on beside it, and does not keep to it: limit a tenant once all its
processes are gone.
"""

from __future__ import annotations

from alembic import op

revision = "0019"
down_revision = "0018"


def upgrade() -> None:
    op.execute("ALTER TABLE tenants ADD COLUMN types text[]")


def downgrade() -> None:
    op.execute("ALTER TABLE tenants DROP COLUMN types")
