"""Migrations go both ways with jobs in every state, and lose none."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from click.testing import CliRunner
from sqlalchemy import Engine
from sqlalchemy.exc import DBAPIError

from app.cli import commands
from app.cli.commands import last_expanding
from app.stack.spec import PROJECT_ROOT
from app.tenants.changes import create_tenant
from models.job_counts import CountFolder
from models.jobs import replay_requests
from models.jobs.discard import discard_dead
from models.jobs.replay_requests import ReplayRequest
from models.jobs.run_logs import Logged, keep_logs
from models.jobs.settle import Ending
from models.jobs.states import JobStatus
from models.schema import Base
from tests.support.database_fixture import DatabaseFixture

HEAD = ScriptDirectory.from_config(Config(PROJECT_ROOT / "alembic.ini")).get_current_head()


def alembic(database_url: str, *arguments: str) -> None:
    subprocess.run(
        [sys.executable, "-m", "alembic", *arguments],
        cwd=PROJECT_ROOT,
        env={**os.environ, "FAIRLINE_DATABASE_URL": database_url},
        check=True,
        capture_output=True,
    )


def test_tenants_from_before_tier_limits_keep_what_they_have(
    database_url: str, engine: Engine
) -> None:
    engine.dispose()
    alembic(database_url, "downgrade", "0011")
    database = DatabaseFixture(engine)
    database.execute("INSERT INTO tenants (name, tier) VALUES ('old', 'free')")
    alembic(database_url, "upgrade", "head")
    create_tenant(engine, "new")
    rows = database.query("SELECT name, tier_limits FROM tenants ORDER BY name")
    assert [tuple(row) for row in rows] == [("demo", False), ("new", True), ("old", False)]


def test_database_at_the_former_number_of_the_last_migration_is_migrated(
    database_url: str, engine: Engine
) -> None:
    engine.dispose()
    alembic(database_url, "downgrade", "0011")
    database = DatabaseFixture(engine)
    database.execute("DROP TRIGGER tallies_align ON tallies; DROP FUNCTION align_tally()")
    database.execute("DROP TRIGGER verdicts_align ON verdicts; DROP FUNCTION align_verdict()")
    database.execute("ALTER TABLE tallies DROP COLUMN bad")
    database.execute("ALTER TABLE verdicts DROP CONSTRAINT verdicts_by_name")
    database.execute("UPDATE alembic_version SET version_num = '0012'")
    for way, revision in (("upgrade", "0015"), ("downgrade", "0004"), ("upgrade", "head")):
        alembic(database_url, way, revision)
    create_tenant(engine, "new")
    assert database.query("SELECT version_num FROM alembic_version")[0].version_num == HEAD


def test_database_that_had_the_last_migration_before_others_were_put_in_front_gets_them(
    database_url: str, engine: Engine
) -> None:
    engine.dispose()
    alembic(database_url, "downgrade", "0020")
    database = DatabaseFixture(engine)
    database.execute("DROP INDEX jobs_resubmitted; DROP TABLE erasures")
    drop_audit_log(database)
    database.execute(
        "ALTER TABLE tenants DROP COLUMN types, DROP COLUMN suspended_at, DROP COLUMN deleted_at"
    )
    alembic(database_url, "upgrade", "head")
    assert database.query("SELECT to_regclass('jobs_resubmitted') AS it")[0].it is not None
    assert database.query("SELECT count(suspended_at) FROM tenants")
    assert not database.query("SELECT types FROM tenants WHERE types IS NOT NULL")
    assert database.query("SELECT version_num FROM alembic_version")[0].version_num == HEAD
    assert not database.query(
        "SELECT FROM pg_attribute WHERE attrelid = 'tallies'::regclass AND attname = 'bad'"
    )


#: As before the roles; what they were granted does no harm.
DROP_POLICIES = """
    DO $$
    DECLARE made record;
    BEGIN
        FOR made IN SELECT polname, polrelid::regclass AS secured FROM pg_policy LOOP
            EXECUTE 'DROP POLICY ' || made.polname || ' ON ' || made.secured;
            EXECUTE 'ALTER TABLE ' || made.secured || ' DISABLE ROW LEVEL SECURITY';
        END LOOP;
    END $$"""


def drop_due_by_tenant(database: DatabaseFixture) -> None:
    """As before due jobs were looked for by tenant."""
    database.execute("DROP INDEX jobs_due_by_tenant")


def drop_removed_cells(database: DatabaseFixture) -> None:
    """As before they were noted."""
    drop_due_by_tenant(database)
    database.execute("DROP TABLE removed_cells; DROP INDEX intake_jobs_key")
    database.execute("CREATE UNIQUE INDEX intake_jobs_key ON intake_jobs (tenant, key)")


def drop_cells(database: DatabaseFixture) -> None:
    """As before there were any."""
    drop_removed_cells(database)
    database.execute(
        "DROP TABLE cells, placements, moves, tenant_copies, away_tenants, cell_identity,"
        " intake_jobs, transfer_marks"
    )
    database.execute("ALTER TABLE tenants DROP COLUMN share")


def drop_policies(database: DatabaseFixture) -> None:
    """As before the roles, and what came after them."""
    drop_cells(database)
    database.execute(DROP_POLICIES)


def drop_offers(database: DatabaseFixture) -> None:
    """Of workers, and what came after them."""
    drop_policies(database)
    database.execute("ALTER TABLE express_lanes DROP COLUMN offers")


def drop_bounds(database: DatabaseFixture) -> None:
    """Of tenants, and what came after them."""
    drop_offers(database)
    database.execute("DROP TABLE blob_counts")
    database.execute(
        "ALTER TABLE tenants DROP COLUMN requests_per_second, DROP COLUMN idempotency_keys,"
        " DROP COLUMN blob_bytes"
    )


def drop_sessions_without_keys(database: DatabaseFixture) -> None:
    """And what came after them."""
    drop_bounds(database)
    database.execute(
        "ALTER TABLE sessions DROP CONSTRAINT sessions_of_somebody, DROP COLUMN issuer,"
        " DROP COLUMN subject, DROP COLUMN email, DROP COLUMN granted_by,"
        " ALTER COLUMN key_id SET NOT NULL"
    )


def test_database_that_had_the_last_migration_before_sessions_without_keys_gets_them(
    database_url: str, engine: Engine
) -> None:
    engine.dispose()
    database = DatabaseFixture(engine)
    drop_sessions_without_keys(database)
    alembic(database_url, "upgrade", "head")
    database.execute(
        "INSERT INTO sessions (digest, issuer, subject, granted_by, expires_at, ends_at)"
        " VALUES ('x', 'i', 's', 'g', now(), now())"
    )
    for columns, values in (("key_id, subject", "'k', 's'"), ("granted_by", "'g'")):
        with pytest.raises(DBAPIError, match="sessions_of_somebody"):
            database.execute(
                f"INSERT INTO sessions (digest, expires_at, ends_at, {columns})"
                f" VALUES ('y', now(), now(), {values})"
            )
    alembic(database_url, "downgrade", "0022")
    assert not database.query("SELECT FROM sessions")
    alembic(database_url, "upgrade", "head")


def drop_audit_log(database: DatabaseFixture) -> None:
    """And what came with it and after it."""
    drop_bounds(database)
    database.execute("DROP TABLE sessions")
    database.execute(
        "ALTER TABLE api_keys DROP COLUMN scopes, DROP COLUMN expires_at, DROP COLUMN last_used_at"
    )
    database.execute("DROP FUNCTION retire_audit(double precision, integer)")
    database.execute("DROP TABLE audit_log; DROP FUNCTION keep_audit()")


#: What a database that had the last migration lacks, and whether a look finds something afterwards.
MISSING = {
    "audit log": (drop_audit_log, "SELECT FROM audit_log", False),
    "bounds": (drop_bounds, "SELECT FROM tenants WHERE requests_per_second IS NOT NULL", False),
    "offers": (drop_offers, "SELECT FROM express_lanes WHERE offers <> '{}'", False),
    "cells": (drop_cells, "SELECT FROM tenants WHERE share <> 1", False),
    "due by tenant": (
        drop_due_by_tenant,
        "SELECT FROM pg_indexes WHERE indexname = 'jobs_due_by_tenant'",
        True,
    ),
    "removed cells": (drop_removed_cells, "SELECT FROM removed_cells", False),
    "policies": (drop_policies, "SELECT FROM pg_policy WHERE polrelid = 'jobs'::regclass", True),
}


@pytest.mark.parametrize(("drop", "look", "finds"), MISSING.values(), ids=MISSING)
def test_database_that_had_the_last_migration_before_others_gets_them(
    database_url: str,
    engine: Engine,
    drop: Callable[[DatabaseFixture], None],
    look: str,
    finds: bool,
) -> None:
    engine.dispose()
    database = DatabaseFixture(engine)
    drop(database)
    alembic(database_url, "upgrade", "head")
    assert bool(database.query(look)) == finds
    assert database.query("SELECT version_num FROM alembic_version")[0].version_num == "0020"


def test_jobs_of_every_state_survive_the_way_down_and_up(database_url: str, engine: Engine) -> None:
    database = DatabaseFixture(engine)
    for status in JobStatus:
        database.execute(
            "INSERT INTO jobs (id, tenant_id, type, pool, payload, status)"
            " VALUES (gen_random_uuid(), 1, 'score_application', 'medium', '{}', %s)",
            status.value,
        )
    engine.dispose()
    alembic(database_url, "downgrade", "0001")
    alembic(database_url, "upgrade", "head")
    rows = database.query("SELECT status, dependency, ended_xid IS NOT NULL AS ended FROM jobs")
    assert {row.status for row in rows} == {status.value for status in JobStatus}
    for row in rows:
        assert row.ended == JobStatus(row.status).terminal
        assert row.dependency == ("" if row.ended else "claude"), "old rows join their lane"
    assert not database.miscounted()
    assert database.query("SELECT status::text FROM jobs WHERE status = 'dead'")
    database.execute(
        "UPDATE jobs SET status = 'queued', replays = 1, ended_xid = NULL WHERE status = 'dead'"
    )
    assert not database.miscounted()


#: As a version before 0005 writes a count.
ADD_BAD = """
    INSERT INTO tallies AS tally (kind, bucket, name, total, bad)
    VALUES ('type', date_bin('1 hour', now(), 'epoch'), %s, %s, %s)
    ON CONFLICT (kind, bucket, name) DO UPDATE
    SET total = tally.total + excluded.total, bad = tally.bad + excluded.bad
"""
#: And as this one does.
ADD_AMOUNT = ADD_BAD.replace("bad", "amount")
OLD_VERDICTS = [("quarantine", "echo"), ("spike", "8"), ("throttle", "7:medium")]
NEW_VERDICTS = [
    ("quarantine", "echo", 0, ""),
    ("spike", "", 8, ""),
    ("throttle", "", 7, "medium"),
]


def tallies(database: DatabaseFixture, column: str) -> list[tuple[Any, ...]]:
    return [
        tuple(row)
        for row in database.query(f"SELECT name, total, {column} FROM tallies ORDER BY name")
    ]


def verdicts(database: DatabaseFixture, columns: str) -> list[tuple[Any, ...]]:
    rows = database.query(f"SELECT {columns} FROM verdicts ORDER BY kind, tenant_id")
    return [tuple(row) for row in rows]


def test_counts_and_restrictions_survive_the_way_up_and_down(
    database_url: str, engine: Engine
) -> None:
    database = DatabaseFixture(engine)
    engine.dispose()
    alembic(database_url, "downgrade", "0004")
    database.execute(ADD_BAD, "echo", 9, 4)
    for kind, name in OLD_VERDICTS:
        database.execute("INSERT INTO verdicts (kind, name) VALUES (%s, %s)", kind, name)
    engine.dispose()
    alembic(database_url, "upgrade", "head")
    assert tallies(database, "amount") == [("echo", 9, 4)]
    assert verdicts(database, "kind, name, tenant_id, pool") == NEW_VERDICTS
    database.execute(ADD_AMOUNT, "echo", 1, 1)
    engine.dispose()
    alembic(database_url, "downgrade", "0004")
    assert tallies(database, "bad") == [("echo", 10, 5)]
    rows = database.query("SELECT kind, name FROM verdicts ORDER BY kind")
    assert [tuple(row) for row in rows] == OLD_VERDICTS
    engine.dispose()
    alembic(database_url, "upgrade", "head")


@pytest.mark.parametrize("came_from", ["upgrade", "downgrade"])
def test_both_versions_write_side_by_side_in_between(
    database_url: str, engine: Engine, came_from: str
) -> None:
    database = DatabaseFixture(engine)
    engine.dispose()
    alembic(database_url, "downgrade", "0005" if came_from == "downgrade" else "0004")
    alembic(database_url, "upgrade", "0005")
    for sql in (ADD_BAD, ADD_AMOUNT, ADD_BAD, ADD_AMOUNT):
        database.execute(sql, "begun by bad", 2, 1)
    for sql in (ADD_AMOUNT, ADD_BAD):
        database.execute(sql, "begun by amount", 2, 1)
    for column in ("bad", "amount"):
        assert tallies(database, column) == [("begun by amount", 4, 2), ("begun by bad", 8, 4)]
    old = "INSERT INTO verdicts (kind, name) VALUES (%s, %s) ON CONFLICT (kind, name) DO NOTHING"
    new = (
        "INSERT INTO verdicts (kind, name, tenant_id, pool) VALUES (%s, %s, %s, %s)"
        " ON CONFLICT (kind, name, tenant_id, pool) DO NOTHING"
    )
    for number, (before, after) in enumerate(zip(OLD_VERDICTS, NEW_VERDICTS, strict=True)):
        for sql, row in ((old, before), (new, after))[:: -1 if number % 2 else 1]:
            database.execute(sql, *row)
    assert verdicts(database, "kind, name") == OLD_VERDICTS
    assert [row[2:] for row in verdicts(database, "kind, name, tenant_id, pool")] == [
        row[2:] for row in NEW_VERDICTS
    ]
    engine.dispose()
    alembic(database_url, "upgrade", "head")
    assert verdicts(database, "kind, name, tenant_id, pool") == NEW_VERDICTS


def test_what_a_replay_has_not_queued_stays_dead_on_the_way_down(
    database_url: str, engine: Engine
) -> None:
    database = DatabaseFixture(engine)
    claim = database.start()
    assert database.settle(claim.ref, Ending(JobStatus.DEAD))
    replay_requests.create(engine, ReplayRequest(1), 1)
    engine.dispose()
    alembic(database_url, "downgrade", "0008")
    assert database.job(claim.ref.id).status == "dead"
    engine.dispose()
    alembic(database_url, "upgrade", "head")
    assert replay_requests.find_running(engine, ReplayRequest(1)) is None
    assert database.job(claim.ref.id).status == "dead"


def test_discarded_dead_letters_and_logs_on_the_way_down_and_up(
    database_url: str, engine: Engine
) -> None:
    database = DatabaseFixture(engine)
    discarded, dead = (database.start() for _ in range(2))
    said = Logged('[{"message": "so far"}]')
    for claim in (discarded, dead):
        assert keep_logs(engine, "w1", [(claim.ref, said)])
        assert database.settle(claim.ref, Ending(JobStatus.DEAD))
    assert discard_dead(engine, 1, [discarded.ref.id]) == [discarded.ref.id]
    engine.dispose()
    alembic(database_url, "downgrade", "0013")
    assert database.job(discarded.ref.id).status == "cancelled"
    with pytest.raises(DBAPIError, match="illegal move"):
        discard_dead(engine, 1, [dead.ref.id])
    engine.dispose()
    alembic(database_url, "upgrade", "0015")
    assert not database.query("SELECT FROM run_logs")
    assert discard_dead(engine, 1, [dead.ref.id]) == [dead.ref.id]
    assert not database.miscounted()
    engine.dispose()
    alembic(database_url, "upgrade", "head")


def counts(database: DatabaseFixture) -> list[tuple[Any, ...]]:
    """As a version before 0007 reads them."""
    rows = database.query(
        "SELECT tenant_id, pool, dependency, sum(queued), sum(dispatched), sum(succeeded)"
        " FROM job_counts GROUP BY 1, 2, 3 ORDER BY 1, 2, 3"
    )
    return [tuple(row) for row in rows]


def test_counts_survive_the_way_to_deltas_and_back(database_url: str, engine: Engine) -> None:
    database = DatabaseFixture(engine)
    for tenant_id in (1, 1, 2):
        database.submit(tenant_id=tenant_id, dependency="claude")
    database.dispatch(rooms={1: 1, 2: 0})
    folder = CountFolder(engine)
    folder.run_once(0.0)
    assert counts(database) == [
        (0, "medium", "claude", 2, 1, 0),
        (1, "medium", "", 1, 1, 0),
        (2, "medium", "", 1, 0, 0),
    ]
    for command, revision in (("downgrade", "0006"), ("upgrade", "0007"), ("downgrade", "0006")):
        before = counts(database)
        engine.dispose()
        alembic(database_url, command, revision)
        assert counts(database) == before
        database.execute(
            "UPDATE jobs SET status = 'cancelled' WHERE tenant_id = 2 AND status = 'queued'"
        )
        # By hand: the statement of today's version needs today's columns.
        database.execute(
            "INSERT INTO jobs (id, tenant_id, type, pool, payload, status)"
            " VALUES (gen_random_uuid(), 2, 'echo', 'medium', '{}', 'queued')"
        )
        assert not database.miscounted()
    engine.dispose()
    alembic(database_url, "upgrade", "head")


@pytest.mark.filterwarnings("ignore:Did not recognize type 'xid8'")
def test_the_tables_are_what_the_migrations_make(engine: Engine) -> None:
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, Base.metadata) == []


def test_what_the_version_before_cannot_work_with_comes_last() -> None:
    config = Config(PROJECT_ROOT / "alembic.ini")
    newest_first = list(ScriptDirectory.from_config(config).walk_revisions())
    contracting = [getattr(one.module, "contract", False) for one in newest_first]
    assert contracting == sorted(contracting, reverse=True)
    assert newest_first[sum(contracting)].revision == last_expanding(config)


def test_migrate_stops_before_what_the_version_before_cannot_work_with_and_goes_back(
    database_url: str, engine: Engine
) -> None:
    database = DatabaseFixture(engine)
    config = Config(PROJECT_ROOT / "alembic.ini")
    engine.dispose()

    def revision_after(*arguments: str) -> str:
        subprocess.run(
            [sys.executable, "-m", "flask", "--app", "app", "migrate", *arguments],
            cwd=PROJECT_ROOT,
            env={**os.environ, "FAIRLINE_DATABASE_URL": database_url},
            check=True,
            capture_output=True,
        )
        return str(database.query("SELECT version_num FROM alembic_version")[0].version_num)

    head = ScriptDirectory.from_config(config).get_current_head()
    assert revision_after("--back", "expand") == last_expanding(config) != head
    assert revision_after("--back", "0004") == "0004"
    assert revision_after("--expand") == last_expanding(config)
    assert revision_after() == head
    recorded = database.query("SELECT before, after, via FROM audit_log ORDER BY id")
    assert [(row.before["revision"], row.after["revision"]) for row in recorded] == [
        ("0004", last_expanding(config)),
        (last_expanding(config), head),
    ]
    assert {row.via for row in recorded} == {"command line"}


def test_an_empty_database_has_no_version_before(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = DatabaseFixture(engine)
    targets: list[str] = []
    monkeypatch.setattr("alembic.command.upgrade", lambda _, target: targets.append(target))
    monkeypatch.setattr("app.cli.login.owner_database", lambda: engine)
    monkeypatch.setattr("app.cli.login.keep_login", lambda *_: None)

    def expand() -> None:
        CliRunner().invoke(commands.migrate, ["--expand"], catch_exceptions=False)

    expand()
    [row] = database.query("SELECT version_num FROM alembic_version")
    database.execute("DELETE FROM alembic_version")
    expand()
    database.execute("INSERT INTO alembic_version VALUES (%s)", row.version_num)
    assert targets == [last_expanding(Config(PROJECT_ROOT / "alembic.ini")), "head"]


def test_reasons_and_tenants_restrictions_go_with_the_way_down_and_nothing_else(
    database_url: str, engine: Engine
) -> None:
    database = DatabaseFixture(engine)
    database.execute("INSERT INTO circuits VALUES ('claude', 'open', now(), 'no key (401)')")
    restrictions = [("quarantine", 0)]
    restrictions += [
        (kind, one) for kind in ("tenant_quarantine", "retry_budget") for one in (7, 8)
    ]
    for kind, tenant_id in restrictions:
        database.execute(
            "INSERT INTO verdicts (kind, name, tenant_id) VALUES (%s, 'echo', %s)", kind, tenant_id
        )
    engine.dispose()
    alembic(database_url, "downgrade", "0010")
    assert verdicts(database, "kind, tenant_id") == [("quarantine", 0)]
    database.execute("UPDATE circuits SET state = 'half_open'")
    engine.dispose()
    alembic(database_url, "upgrade", "head")
    [row] = database.query("SELECT state, reason FROM circuits")
    assert tuple(row) == ("half_open", "")
    assert database.query("SELECT version FROM verdicts_version")


def test_keys_keep_their_rights_and_those_that_are_limited_do_not_outlive_a_downgrade(
    database_url: str, engine: Engine
) -> None:
    database = DatabaseFixture(engine)
    engine.dispose()
    alembic(database_url, "downgrade", "0021")
    database.execute("INSERT INTO api_keys (id, tenant_id, digest) VALUES ('old', 1, '')")
    alembic(database_url, "upgrade", "head")
    [old] = database.query("SELECT scopes, expires_at, last_used_at FROM api_keys")
    assert tuple(old) == (None, None, None)
    limited = "INSERT INTO api_keys (id, tenant_id, digest, scopes, expires_at) VALUES"
    database.execute(f"{limited} ('less', 1, '', '{{read}}', NULL)")
    database.execute(f"{limited} ('brief', 1, '', NULL, now() + interval '1 day')")
    engine.dispose()
    alembic(database_url, "downgrade", "0021")
    valid = database.query("SELECT id FROM api_keys WHERE revoked_at IS NULL")
    assert [row.id for row in valid] == ["old"]
    engine.dispose()
    alembic(database_url, "upgrade", "head")
