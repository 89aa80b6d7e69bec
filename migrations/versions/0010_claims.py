"""Lost claims and lost runs: ``waiting_lease``, ``lost_claims`` and ``lost_at`` of ``jobs``.

Processes of the previous version leave them alone. What they claim counts as begun, whatever an
earlier claim has written: its lease number is another one.
"""

from __future__ import annotations

from alembic import op

revision = "0010"
down_revision = "0009"


def upgrade() -> None:
    op.execute("""
        ALTER TABLE jobs ADD COLUMN waiting_lease integer,
                         ADD COLUMN lost_claims smallint NOT NULL DEFAULT 0,
                         ADD COLUMN lost_at timestamptz""")


def downgrade() -> None:
    op.execute("""
        ALTER TABLE jobs DROP COLUMN waiting_lease, DROP COLUMN lost_claims,
                         DROP COLUMN lost_at""")
