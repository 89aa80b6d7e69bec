"""Limits by tier: ``tenants.tier_limits``, and ``express_lanes.slots`` to keep to them.

Tenants that are there keep what they have: an upgrade limits nobody. New ones are created with the
limits of their tier; the previous version, which knows of none, creates them without. Its
schedulers write no slots: tenants with a cap then use no express lane.
"""

from __future__ import annotations

from alembic import op

revision = "0013"
down_revision = "0011"


def upgrade() -> None:
    op.execute("ALTER TABLE tenants ADD COLUMN tier_limits boolean NOT NULL DEFAULT false")
    op.execute("ALTER TABLE express_lanes ADD COLUMN slots integer")


def downgrade() -> None:
    op.execute("ALTER TABLE express_lanes DROP COLUMN slots")
    op.execute("ALTER TABLE tenants DROP COLUMN tier_limits")
