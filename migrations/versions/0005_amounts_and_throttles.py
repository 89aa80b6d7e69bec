"""``tallies.amount`` beside ``bad``; tenant and pool of a restriction beside its name.

``bad`` held failures, microseconds, retries or thousandths; a throttle was keyed by the text
"tenant:pool". This is the first half of their replacement, and 0020 the second. In between triggers
keep old and new columns equal, so that processes of the previous version and of this one read and
write side by side and no count is lost. After 0020 a process of the previous version cannot write
its counts nor read throttles any more.

One transaction. No table is rewritten but ``tallies``, which has some thousand rows: workers, which
add to it every two seconds, wait for that long.
"""

from __future__ import annotations

from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    # In the order in which workers read them: the other way round they would wait for each other.
    op.execute("LOCK TABLE verdicts, tallies IN ACCESS EXCLUSIVE MODE")
    op.execute("ALTER TABLE tallies ADD COLUMN amount bigint NOT NULL DEFAULT 0")
    op.execute("UPDATE tallies SET amount = bad WHERE bad <> 0")
    op.execute("""
        ALTER TABLE verdicts
            ADD COLUMN tenant_id bigint NOT NULL DEFAULT 0,
            ADD COLUMN pool text NOT NULL DEFAULT '',
            ALTER COLUMN name SET DEFAULT ''""")
    op.execute("""
        UPDATE verdicts
        SET tenant_id = split_part(name, ':', 1)::bigint, pool = split_part(name, ':', 2)
        WHERE kind IN ('throttle', 'spike')""")
    # The unique constraint is what a scheduler of the previous version inserts by.
    op.execute("""
        ALTER TABLE verdicts
            DROP CONSTRAINT verdicts_pkey,
            ADD PRIMARY KEY (kind, name, tenant_id, pool),
            ADD CONSTRAINT verdicts_by_name UNIQUE (kind, name)""")
    keep_equal()


def keep_equal() -> None:
    """Triggers that give each row the columns that its writer does not know."""
    # Both are equal before every statement. Of an upsert, the proposed row passes here first.
    op.execute("""
        CREATE FUNCTION align_tally() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
            IF TG_OP = 'INSERT' THEN
                NEW.amount := NEW.amount + NEW.bad;
            ELSIF NEW.bad <> OLD.bad THEN
                NEW.amount := NEW.bad;
            END IF;
            NEW.bad := NEW.amount;
            RETURN NEW;
        END $$""")
    op.execute("""
        CREATE TRIGGER tallies_align BEFORE INSERT OR UPDATE ON tallies
        FOR EACH ROW EXECUTE FUNCTION align_tally()""")
    op.execute("""
        CREATE FUNCTION align_verdict() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
            IF NEW.name = '' THEN
                NEW.name := concat_ws(':', NEW.tenant_id, nullif(NEW.pool, ''));
            ELSE
                NEW.tenant_id := split_part(NEW.name, ':', 1)::bigint;
                NEW.pool := split_part(NEW.name, ':', 2);
            END IF;
            RETURN NEW;
        END $$""")
    op.execute("""
        CREATE TRIGGER verdicts_align BEFORE INSERT ON verdicts
        FOR EACH ROW WHEN (NEW.kind IN ('throttle', 'spike'))
        EXECUTE FUNCTION align_verdict()""")


def downgrade() -> None:
    # In the order in which workers read them: the other way round they would wait for each other.
    op.execute("LOCK TABLE verdicts, tallies IN ACCESS EXCLUSIVE MODE")
    op.execute("DROP TRIGGER tallies_align ON tallies")
    op.execute("DROP TRIGGER verdicts_align ON verdicts")
    op.execute("DROP FUNCTION align_tally(), align_verdict()")
    op.execute("ALTER TABLE tallies DROP COLUMN amount")
    op.execute("""
        ALTER TABLE verdicts
            DROP CONSTRAINT verdicts_pkey,
            DROP CONSTRAINT verdicts_by_name,
            DROP COLUMN tenant_id,
            DROP COLUMN pool,
            ALTER COLUMN name DROP DEFAULT,
            ADD PRIMARY KEY (kind, name)""")
