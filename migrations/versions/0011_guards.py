"""Why a circuit is open (``circuits.reason``), and a version of the restrictions.

Every statement that changes ``verdicts`` gives ``verdicts_version`` another version, whichever
release it belongs to, so that workers notice what a scheduler of the previous version imposes. The
previous version neither writes nor reads what is added here.

Until 0020, names are unique per kind: of all tenants only one at a time can be without a retry
budget, and one quarantined per type.
"""

from __future__ import annotations

from alembic import op

revision = "0011"
down_revision = "0010"

#: For each kind of change, the rows that it leaves or takes.
CHANGES = {"INSERT": "NEW", "UPDATE": "NEW", "DELETE": "OLD"}


def upgrade() -> None:
    op.execute("ALTER TABLE circuits ADD COLUMN reason text NOT NULL DEFAULT ''")
    op.execute("""
        CREATE TABLE verdicts_version (
            one boolean PRIMARY KEY DEFAULT true CHECK (one),
            version uuid NOT NULL DEFAULT gen_random_uuid()
        ) WITH (fillfactor = 50)""")
    op.execute("INSERT INTO verdicts_version DEFAULT VALUES")
    # By statement: ten thousand restrictions at once are one change. One that found nothing to
    # change is none.
    op.execute("""
        CREATE FUNCTION change_verdicts_version() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
            IF EXISTS (SELECT 1 FROM changed) THEN
                UPDATE verdicts_version SET version = gen_random_uuid();
            END IF;
            RETURN NULL;
        END $$""")
    for change, rows in CHANGES.items():
        op.execute(f"""
            CREATE TRIGGER verdicts_{change.lower()} AFTER {change} ON verdicts
            REFERENCING {rows} TABLE AS changed
            FOR EACH STATEMENT EXECUTE FUNCTION change_verdicts_version()""")


def downgrade() -> None:
    for change in CHANGES:
        op.execute(f"DROP TRIGGER verdicts_{change.lower()} ON verdicts")
    op.execute("DROP FUNCTION change_verdicts_version()")
    op.execute("DROP TABLE verdicts_version")
    # The previous version would keep them for ever.
    op.execute("DELETE FROM verdicts WHERE kind IN ('retry_budget', 'tenant_quarantine')")
    op.execute("ALTER TABLE circuits DROP COLUMN reason")
