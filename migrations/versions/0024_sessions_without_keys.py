"""Sessions of operators who signed in by OpenID Connect, without a key.

To the previous version, which goes on beside it, such a session has ended. A downgrade ends them.
"""

from __future__ import annotations

from alembic import op

revision = "0024"
down_revision = "0022"


def upgrade() -> None:
    op.execute("""
        ALTER TABLE sessions ALTER COLUMN key_id DROP NOT NULL,
                             ADD COLUMN issuer text, ADD COLUMN subject text,
                             ADD COLUMN email text, ADD COLUMN granted_by text,
                             ADD CONSTRAINT sessions_of_somebody CHECK (
                                 num_nonnulls(key_id, subject) = 1
                                 AND num_nonnulls(issuer, subject, granted_by) IN (0, 3))""")


def downgrade() -> None:
    op.execute("DELETE FROM sessions WHERE key_id IS NULL")
    op.execute("""
        ALTER TABLE sessions DROP CONSTRAINT sessions_of_somebody, DROP COLUMN issuer,
                             DROP COLUMN subject, DROP COLUMN email, DROP COLUMN granted_by,
                             ALTER COLUMN key_id SET NOT NULL""")
