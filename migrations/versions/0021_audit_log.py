"""Table ``audit_log``: what operators and tenants did, which can only be added to.

A trigger refuses UPDATE, TRUNCATE and DELETE with an error, except within ``retire_audit``, which
deletes what is older than the retention. Not a rule: ``DO INSTEAD NOTHING`` would succeed and do
nothing. Not privileges: migrations and processes connect as the same role, which owns the table
and is not bound by them. For the same reason the trigger protects from mistakes, and from whoever
can make a process run a statement of theirs; the owner of the database can drop it.

A new table only: the previous version does not know it and goes on beside it. It is in front of
0020, whose number is lower: see ``renumber`` in ``migrations/env.py``.
"""

from __future__ import annotations

from alembic import op

revision = "0021"
down_revision = "0019"


def upgrade() -> None:
    op.execute("""
        CREATE TABLE audit_log (
            id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
            at timestamptz NOT NULL DEFAULT clock_timestamp(),
            via text NOT NULL,
            who text NOT NULL,
            who_name text,
            role text NOT NULL,
            tenant text,
            what text NOT NULL,
            target text NOT NULL DEFAULT '',
            before jsonb,
            after jsonb,
            address text,
            request_id text
        )""")
    op.execute("CREATE INDEX audit_log_at ON audit_log (at, id)")
    for column in ("tenant", "who", "what"):
        op.execute(f"CREATE INDEX audit_log_{column} ON audit_log ({column}, at, id)")
    op.execute("""
        CREATE FUNCTION keep_audit() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
            IF TG_OP = 'DELETE' AND current_setting('fairline.retire_audit', true) = 'on' THEN
                RETURN OLD;
            END IF;
            RAISE EXCEPTION 'audit_log can only be added to: % is refused', TG_OP;
        END $$""")
    op.execute("""
        CREATE TRIGGER audit_log_keep BEFORE UPDATE OR DELETE ON audit_log
        FOR EACH ROW EXECUTE FUNCTION keep_audit()""")
    op.execute("""
        CREATE TRIGGER audit_log_keep_all BEFORE TRUNCATE ON audit_log
        FOR EACH STATEMENT EXECUTE FUNCTION keep_audit()""")
    # The setting is that of the transaction, and is taken back: nothing else in it may delete.
    op.execute("""
        CREATE FUNCTION retire_audit(kept_seconds double precision, most integer)
        RETURNS bigint LANGUAGE plpgsql AS $$
        DECLARE retired bigint;
        BEGIN
            PERFORM set_config('fairline.retire_audit', 'on', true);
            DELETE FROM audit_log WHERE id = ANY (array(
                SELECT id FROM audit_log WHERE at < now() - make_interval(secs => kept_seconds)
                ORDER BY at, id LIMIT most));
            GET DIAGNOSTICS retired = ROW_COUNT;
            PERFORM set_config('fairline.retire_audit', 'off', true);
            RETURN retired;
        END $$""")


def downgrade() -> None:
    op.execute("DROP FUNCTION retire_audit(double precision, integer)")
    op.execute("DROP TABLE audit_log")
    op.execute("DROP FUNCTION keep_audit()")
