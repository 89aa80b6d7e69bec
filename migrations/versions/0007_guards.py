"""Why a circuit is open: ``circuits.reason``.

The version before writes circuits without a reason, and does not read it.
"""

from __future__ import annotations

from alembic import op

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '10s'")
    op.execute("ALTER TABLE circuits ADD COLUMN reason text NOT NULL DEFAULT ''")


def downgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '10s'")
    op.execute("ALTER TABLE circuits DROP COLUMN reason")
