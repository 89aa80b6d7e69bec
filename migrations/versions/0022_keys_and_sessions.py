"""``api_keys``: scopes (null: all that the kind of key may do), expiry, and when it was last used.

The previous version goes on beside it and knows neither scopes nor expiry: limit keys once all its
processes are gone. For the same reason a downgrade revokes the keys that are limited.
"""

from __future__ import annotations

from alembic import op

revision = "0022"
down_revision = "0020"


def upgrade() -> None:
    op.execute("""
        ALTER TABLE api_keys ADD COLUMN scopes text[], ADD COLUMN expires_at timestamptz,
                             ADD COLUMN last_used_at timestamptz""")


def downgrade() -> None:
    op.execute("""
        UPDATE api_keys SET revoked_at = clock_timestamp()
        WHERE revoked_at IS NULL AND (scopes IS NOT NULL OR expires_at IS NOT NULL)""")
    op.execute("""
        ALTER TABLE api_keys DROP COLUMN last_used_at, DROP COLUMN expires_at,
                             DROP COLUMN scopes""")
