"""Drop ``tallies.bad`` and the names of throttles: the second half of 0005, which says when.

One transaction, and no table is rewritten. It was 0012 for a time: see ``renumber`` in
``migrations/env.py``.
"""

from __future__ import annotations

from alembic import op

revision = "0020"
down_revision = "0029"
contract = True


def upgrade() -> None:
    # In the order in which workers read them: the other way round they would wait for each other.
    op.execute("LOCK TABLE verdicts, tallies IN ACCESS EXCLUSIVE MODE")
    op.execute("DROP TRIGGER tallies_align ON tallies")
    op.execute("DROP TRIGGER verdicts_align ON verdicts")
    op.execute("DROP FUNCTION align_tally(), align_verdict()")
    op.execute("ALTER TABLE tallies DROP COLUMN bad")
    op.execute("ALTER TABLE verdicts DROP CONSTRAINT verdicts_by_name")
    op.execute("UPDATE verdicts SET name = '' WHERE kind IN ('throttle', 'spike')")


def downgrade() -> None:
    # In the order in which workers read them: the other way round they would wait for each other.
    op.execute("LOCK TABLE verdicts, tallies IN ACCESS EXCLUSIVE MODE")
    op.execute("ALTER TABLE tallies ADD COLUMN bad bigint NOT NULL DEFAULT 0")
    op.execute("UPDATE tallies SET bad = amount WHERE amount <> 0")
    # Of these, several have one name; the leader imposes them again as far as that is possible.
    op.execute("DELETE FROM verdicts WHERE kind IN ('retry_budget', 'tenant_quarantine')")
    op.execute("""
        UPDATE verdicts SET name = concat_ws(':', tenant_id, nullif(pool, ''))
        WHERE kind IN ('throttle', 'spike')""")
    op.execute("ALTER TABLE verdicts ADD CONSTRAINT verdicts_by_name UNIQUE (kind, name)")
    script = op.get_context().script
    assert script is not None
    script.get_revision("0005").module.keep_equal()
