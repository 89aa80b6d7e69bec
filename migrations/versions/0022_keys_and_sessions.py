"""Keys get scopes (null: all that their kind may do), an expiry and a last use; table ``sessions``.

The previous version goes on beside it and knows neither scopes nor expiry: limit keys once all its
processes are gone. For the same reason a downgrade revokes the keys that are limited. It has
the key itself in the cookie: whoever is signed in to one version signs in again at the other.
"""

from __future__ import annotations

from alembic import op

revision = "0022"
down_revision = "0021"


def upgrade() -> None:
    op.execute("""
        ALTER TABLE api_keys ADD COLUMN scopes text[], ADD COLUMN expires_at timestamptz,
                             ADD COLUMN last_used_at timestamptz""")
    op.execute("""
        CREATE TABLE sessions (
            digest bytea PRIMARY KEY,
            key_id text NOT NULL,
            created_at timestamptz NOT NULL DEFAULT now(),
            expires_at timestamptz NOT NULL,
            ends_at timestamptz NOT NULL
        )""")
    op.execute("CREATE INDEX sessions_ends ON sessions (ends_at)")


def downgrade() -> None:
    op.execute("DROP TABLE sessions")
    op.execute("""
        UPDATE api_keys SET revoked_at = clock_timestamp()
        WHERE revoked_at IS NULL AND (scopes IS NOT NULL OR expires_at IS NOT NULL)""")
    op.execute("""
        ALTER TABLE api_keys DROP COLUMN last_used_at, DROP COLUMN expires_at,
                             DROP COLUMN scopes""")
