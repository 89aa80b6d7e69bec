"""Index of scheduled jobs by tenant: due jobs of one tenant do not delay those of all others.

Jobs that are not scheduled are not in it.
"""

from __future__ import annotations

from migrations.ddl import build_index, drop_index

revision = "0029"
down_revision = "0028"


def upgrade() -> None:
    build_index(
        "jobs_due_by_tenant", "jobs (pool, tenant_id, execute_at) WHERE status = 'scheduled'"
    )


def downgrade() -> None:
    drop_index("jobs_due_by_tenant")
