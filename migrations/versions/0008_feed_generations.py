"""Feed positions that survive a restore: generations of transaction numbers.

Only adds: the numbers stay what they were until a generation begins, so that the previous version
reads and writes beside this one. See docs/decisions/0022-feed-positions.md.
"""

from __future__ import annotations

from alembic import op

revision = "0008"
down_revision = "0007"

#: Which history of transactions this is: the cluster, and the timeline of its primary. Unknown to
#: a standby, and where a provider has revoked what everybody may read by default.
IDENTITY = """
    CREATE FUNCTION feed_identity() RETURNS text LANGUAGE plpgsql STABLE AS $$
    BEGIN
        RETURN CASE WHEN NOT pg_is_in_recovery() THEN
            (SELECT system_identifier FROM pg_control_system())
            || '/' || left(pg_walfile_name(pg_current_wal_lsn()), 8) END;
    EXCEPTION WHEN insufficient_privilege OR feature_not_supported THEN
        RETURN '';
    END $$"""
#: The number that this transaction has in the feed. Replaced when a generation begins.
NUMBER = """
    CREATE FUNCTION feed_xid() RETURNS xid8 LANGUAGE sql STABLE AS $$
        SELECT pg_current_xact_id()
    $$"""
STAMP = """
    CREATE OR REPLACE FUNCTION stamp_end() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        NEW.ended_xid := {number}();
        RETURN NEW;
    END $$"""
#: Those who have feeds; 0 is all tenants.
FEEDS = "(SELECT id FROM tenants UNION SELECT 0) AS tenant"
#: The last entry of each feed: one look into an index each.
LAST = """
        (SELECT ended_xid AS xid FROM jobs WHERE tenant_id = tenant.id AND ended_xid IS NOT NULL
         ORDER BY ended_xid DESC LIMIT 1)
        UNION ALL
        (SELECT xid FROM events WHERE tenant_id = tenant.id ORDER BY xid DESC LIMIT 1)"""
#: Entries of the last minutes, among those of the last million transactions.
RECENT = """
        (SELECT ended_xid AS xid FROM jobs
         WHERE tenant_id = tenant.id AND ended_xid > recent
           AND finished_at > now() - interval '2 minutes')
        UNION ALL
        (SELECT xid FROM events
         WHERE tenant_id = tenant.id AND xid > recent AND at > now() - interval '2 minutes')"""
#: No table of jobs or events is locked: that would wait for a VACUUM, with all writers behind it.
BEGIN = f"""
    CREATE FUNCTION begin_feed_generation() RETURNS void LANGUAGE plpgsql
    SECURITY DEFINER SET search_path FROM CURRENT SET lock_timeout = '100ms' AS $$
    DECLARE
        here text := feed_identity();
        known feed_generations;
        highest bigint;
        next bigint;
        recent xid8;
        moved bigint;
        begins bigint;
        old_after bigint;
    BEGIN
        -- Of two who notice, the second finds nothing to do.
        LOCK TABLE feed_generations IN SHARE ROW EXCLUSIVE MODE;
        SELECT * INTO known FROM feed_generations ORDER BY number DESC LIMIT 1;
        SELECT coalesce(max(last.xid::text::bigint), 0) INTO highest
        FROM {FEEDS}, LATERAL ({LAST}) AS last;
        -- Afterwards: this history has numbered nothing as high.
        next := pg_snapshot_xmax(pg_current_snapshot())::text::bigint + known.shift;
        IF here = known.identity AND highest < next THEN
            RETURN;
        END IF;
        IF highest < next
           AND split_part(here, '/', 1) = split_part(known.identity, '/', 1) THEN
            -- A promoted standby, or a recovery to an earlier time: the numbers go on, and some
            -- that were told before are used again. Entries not seen yet are of open transactions.
            moved := known.shift;
            recent := greatest(next - 1000000, 0)::text::xid8;
            SELECT least(pg_snapshot_xmin(pg_current_snapshot())::text::bigint + moved,
                         min(again.xid::text::bigint)) INTO begins
            FROM {FEEDS}, LATERAL ({RECENT}) AS again;
        ELSE
            -- Restored, or replicated row by row: begin above everything that came along.
            moved := highest;
            begins := highest + 1;
            -- This cluster numbered nothing before the restore had written the generations, and
            -- it is noticed within minutes. In a migration nobody has looked before.
            SELECT CASE WHEN here = known.identity THEN 0 ELSE
                greatest(pg_current_xact_id()::text::bigint - age(xmin) + known.shift,
                         next - 1000000, 0) END INTO old_after
            FROM feed_generations WHERE number = known.number;
            EXECUTE format('CREATE OR REPLACE FUNCTION feed_xid() RETURNS xid8 LANGUAGE sql STABLE'
                ' AS ''SELECT (pg_current_xact_id()::text::bigint + %s)::text::xid8''', moved);
            UPDATE feed_generations SET renumber_after = NULL WHERE renumber_after IS NOT NULL;
        END IF;
        INSERT INTO feed_generations (number, tag, identity, shift, first_xid, renumber_after)
        VALUES (known.number + 1, left(gen_random_uuid()::text, 8), here, moved,
                begins::text::xid8, old_after::text::xid8);
    END $$"""
#: A row that this cluster wrote since it was restored, unlike those that the restore wrote: it
#: still has the transaction that wrote it.
OURS = """tenant_id = tenant.id AND {xid} > fresh.renumber_after
          AND {xid} <= (pg_current_xact_id()::text::bigint + old_shift)::text::xid8
          AND {table}.xmin::text::bigint = ({xid}::text::bigint - old_shift) % 4294967296"""
RENUMBER = f"""
        UPDATE {{table}} SET {{xid}} = ({{xid}}::text::bigint - old_shift + fresh.shift)::text::xid8
        FROM {FEEDS} WHERE {OURS};"""
#: For when all transactions have ended that may have numbered entries as before.
FINISH = f"""
    CREATE FUNCTION finish_feed_generation() RETURNS void LANGUAGE plpgsql
    SECURITY DEFINER SET search_path FROM CURRENT SET enable_seqscan = off AS $$
    DECLARE
        fresh feed_generations;
        old_shift bigint;
    BEGIN
        SELECT * INTO fresh FROM feed_generations WHERE renumber_after IS NOT NULL FOR UPDATE;
        SELECT shift INTO old_shift FROM feed_generations WHERE number = fresh.number - 1;
        {RENUMBER.format(table="jobs", xid="ended_xid")}
        {RENUMBER.format(table="events", xid="xid")}
        UPDATE feed_generations SET renumber_after = NULL WHERE number = fresh.number;
    END $$"""


def upgrade() -> None:
    op.execute("""
        CREATE TABLE feed_generations (
            number integer PRIMARY KEY,
            tag text NOT NULL,
            identity text NOT NULL,
            shift bigint NOT NULL,
            first_xid xid8 NOT NULL,
            renumber_after xid8,
            begun_at timestamptz NOT NULL DEFAULT now()
        )""")
    for statement in (IDENTITY, NUMBER, BEGIN, FINISH):
        op.execute(statement)
    op.execute("""
        INSERT INTO feed_generations (number, tag, identity, shift, first_xid)
        VALUES (1, '', feed_identity(), 0, '0')""")
    op.execute(STAMP.format(number="feed_xid"))
    op.execute("ALTER TABLE events ALTER COLUMN xid SET DEFAULT feed_xid()")
    # In case it was restored before; the leader finishes it.
    op.execute("SELECT begin_feed_generation()")


def downgrade() -> None:
    # If a generation has begun, the previous version does what it does after a restore; the way up
    # begins one again.
    op.execute("ALTER TABLE events ALTER COLUMN xid SET DEFAULT pg_current_xact_id()")
    op.execute(STAMP.format(number="pg_current_xact_id"))
    op.execute("DROP FUNCTION begin_feed_generation(), finish_feed_generation()")
    op.execute("DROP FUNCTION feed_xid(), feed_identity()")
    op.execute("DROP TABLE feed_generations")
