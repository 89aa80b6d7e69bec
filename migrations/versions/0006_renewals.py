"""``processes.renewed_at``: up to when a worker has renewed all leases it holds.

The previous version leaves it null: of its workers the leases decide alone, as before. No table is
rewritten.
"""

from __future__ import annotations

from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    op.execute("ALTER TABLE processes ADD COLUMN renewed_at timestamptz")


def downgrade() -> None:
    op.execute("ALTER TABLE processes DROP COLUMN renewed_at")
