"""Offers of idle workers in ``express_lanes``: who would run the next job of a pool at once.

The previous version goes on beside it: it makes no offers, and takes none.
"""

from __future__ import annotations

from alembic import op

revision = "0026"
down_revision = "0025"


def upgrade() -> None:
    op.execute("ALTER TABLE express_lanes ADD COLUMN offers text[] NOT NULL DEFAULT '{}'")


def downgrade() -> None:
    op.execute("ALTER TABLE express_lanes DROP COLUMN offers")
