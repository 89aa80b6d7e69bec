"""Index of jobs by the job that they were resubmitted from: they are erased with it.

Most jobs were resubmitted from none and are not in it.
"""

from __future__ import annotations

from migrations.ddl import build_index, drop_index

revision = "0018"
down_revision = "0017"


def upgrade() -> None:
    build_index("jobs_resubmitted", "jobs (resubmitted_from) WHERE resubmitted_from IS NOT NULL")


def downgrade() -> None:
    drop_index("jobs_resubmitted")
