"""Table ``run_logs``, ``jobs.resubmitted_from``, and dead letters that are discarded.

The previous version writes no logs and goes on beside it. It does not discard dead letters either;
one that was is cancelled to it, and no longer a dead letter.
"""

from __future__ import annotations

from alembic import op

revision = "0015"
down_revision = "0013"


def upgrade() -> None:
    op.execute("""
        CREATE TABLE run_logs (
            job_id uuid NOT NULL,
            place smallint NOT NULL,
            lease integer NOT NULL,
            log json,
            dropped bigint NOT NULL DEFAULT 0,
            traceback text,
            written_at timestamptz NOT NULL DEFAULT now(),
            PRIMARY KEY (job_id, place)
        )""")
    op.execute("ALTER TABLE jobs ADD COLUMN resubmitted_from uuid")
    replace_guard(("queued", "cancelled"))


def downgrade() -> None:
    replace_guard(("queued",))
    op.execute("ALTER TABLE jobs DROP COLUMN resubmitted_from")
    op.execute("DROP TABLE run_logs")


def replace_guard(from_dead: tuple[str, ...]) -> None:
    """The moves that are legal, with those of a dead letter."""
    script = op.get_context().script
    assert script is not None
    platform = script.get_revision("0002").module
    platform.replace_guard({**platform.LEGAL_MOVES, "dead": from_dead})
