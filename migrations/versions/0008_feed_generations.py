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
#: A row that this cluster wrote since it was restored, unlike those that the restore wrote: it
#: still has the transaction that wrote it.
OURS = """{xid} <= (raw + known.shift)::text::xid8
              AND {table}.xmin::text::bigint = ({xid}::text::bigint - known.shift) % 4294967296"""
BEGIN = f"""
    CREATE FUNCTION begin_feed_generation() RETURNS void LANGUAGE plpgsql
    SECURITY DEFINER SET search_path FROM CURRENT SET lock_timeout = '2s' AS $$
    DECLARE
        here text := feed_identity();
        known feed_generations;
        raw bigint;
        highest bigint;
        recent xid8;
        moved bigint;
        begins bigint;
    BEGIN
        -- Nobody numbers rows meanwhile. Of two who notice, the second finds nothing to do.
        LOCK TABLE jobs, events IN SHARE ROW EXCLUSIVE MODE;
        SELECT * INTO known FROM feed_generations ORDER BY number DESC LIMIT 1;
        SELECT coalesce(max(last.xid::text::bigint), 0) INTO highest
        FROM {FEEDS}, LATERAL ({LAST}) AS last;
        raw := pg_current_xact_id()::text::bigint;
        IF here = known.identity AND highest <= raw + known.shift THEN
            RETURN;
        END IF;
        IF highest <= raw + known.shift
           AND split_part(here, '/', 1) = split_part(known.identity, '/', 1) THEN
            -- A promoted standby, or a recovery to an earlier time: the numbers go on, and some
            -- that were told before are used again.
            moved := known.shift;
            recent := greatest(raw + moved - 1000000, 0)::text::xid8;
            SELECT least(raw + moved, min(again.xid::text::bigint)) INTO begins
            FROM {FEEDS}, LATERAL ({RECENT}) AS again;
        ELSE
            -- Restored, or replicated row by row: begin above everything that came along.
            moved := highest;
            begins := highest + 1;
            UPDATE jobs SET ended_xid = (ended_xid::text::bigint - known.shift + moved)::text::xid8
            FROM tenants
            WHERE tenant_id = tenants.id AND ended_xid IS NOT NULL
              AND {OURS.format(xid="ended_xid", table="jobs")};
            UPDATE events SET xid = (xid::text::bigint - known.shift + moved)::text::xid8
            WHERE {OURS.format(xid="xid", table="events")};
            EXECUTE format('CREATE OR REPLACE FUNCTION feed_xid() RETURNS xid8 LANGUAGE sql STABLE'
                ' AS ''SELECT (pg_current_xact_id()::text::bigint + %s)::text::xid8''', moved);
        END IF;
        INSERT INTO feed_generations (number, tag, identity, shift, first_xid)
        VALUES (known.number + 1, left(gen_random_uuid()::text, 8), here, moved,
                begins::text::xid8);
    END $$"""


def upgrade() -> None:
    op.execute("""
        CREATE TABLE feed_generations (
            number integer PRIMARY KEY,
            tag text NOT NULL,
            identity text NOT NULL,
            shift bigint NOT NULL,
            first_xid xid8 NOT NULL,
            begun_at timestamptz NOT NULL DEFAULT now()
        )""")
    for statement in (IDENTITY, NUMBER, BEGIN):
        op.execute(statement)
    op.execute("""
        INSERT INTO feed_generations (number, tag, identity, shift, first_xid)
        VALUES (1, '', feed_identity(), 0, '0')""")
    op.execute(STAMP.format(number="feed_xid"))
    op.execute("ALTER TABLE events ALTER COLUMN xid SET DEFAULT feed_xid()")
    # In case it was restored before.
    op.execute("SELECT begin_feed_generation()")


def downgrade() -> None:
    # If a generation has begun, the previous version does what it does after a restore; the way up
    # begins one again.
    op.execute("ALTER TABLE events ALTER COLUMN xid SET DEFAULT pg_current_xact_id()")
    op.execute(STAMP.format(number="pg_current_xact_id"))
    op.execute("DROP FUNCTION begin_feed_generation(), feed_xid(), feed_identity()")
    op.execute("DROP TABLE feed_generations")
