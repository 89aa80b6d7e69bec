"""Numbers of removed cells, which no other cell gets; keys of an intake belong to a tenant's id.

The previous version goes on beside it: it reads keys by the tenant's name, as before.
"""

from __future__ import annotations

from alembic import op

revision = "0028"
down_revision = "0027"

#: As those of 0027.
GRANTS = {"fairline_api": {"removed_cells": "SI"}}


def upgrade() -> None:
    op.execute("""
        CREATE TABLE removed_cells (
            number smallint PRIMARY KEY CHECK (number BETWEEN 1 AND 4095),
            name text NOT NULL,
            removed_at timestamptz NOT NULL DEFAULT now()
        )""")
    op.execute("GRANT SELECT, INSERT ON removed_cells TO fairline_api")
    op.execute("DROP INDEX intake_jobs_key")
    op.execute("""
        CREATE UNIQUE INDEX intake_jobs_key ON intake_jobs (tenant_id, key)
        WHERE key IS NOT NULL""")


def downgrade() -> None:
    op.execute("DROP INDEX intake_jobs_key")
    # Of two tenants of one name the one with the later request is still there.
    op.execute("""
        UPDATE intake_jobs AS kept SET key = NULL
        WHERE EXISTS (
            SELECT FROM intake_jobs AS other
            WHERE other.tenant = kept.tenant AND other.key = kept.key
              AND (other.created_at, other.id) > (kept.created_at, kept.id))""")
    op.execute("""
        CREATE UNIQUE INDEX intake_jobs_key ON intake_jobs (tenant, key) WHERE key IS NOT NULL""")
    op.execute("DROP TABLE removed_cells")
