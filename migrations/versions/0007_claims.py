"""Claims that wait in a worker: ``jobs.waiting_lease`` and ``jobs.lost_claims``.

Workers of before leave both alone. What they claim counts as begun, whatever an earlier claim has
written: its lease number is another one.
"""

from __future__ import annotations

from alembic import op

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '10s'")
    op.execute("""
        ALTER TABLE jobs ADD COLUMN waiting_lease integer,
                         ADD COLUMN lost_claims smallint NOT NULL DEFAULT 0""")


def downgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '10s'")
    op.execute("ALTER TABLE jobs DROP COLUMN waiting_lease, DROP COLUMN lost_claims")
