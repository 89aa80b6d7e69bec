"""Database roles: which privileges they have, and that row-level security hides other tenants."""

from __future__ import annotations

from typing import Any

import pytest
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import Engine
from sqlalchemy.exc import ProgrammingError

from app.stack.spec import PROJECT_ROOT
from models.settings import DatabaseSettings
from models.store.errors import StateStoreUnavailable
from models.store.roles import DatabaseRole, every_tenant, in_role, tenant_scope
from models.store.session import connect, execute, fetch, open_engine, transaction
from tests.support.database_fixture import DatabaseFixture

SCRIPTS = ScriptDirectory.from_config(Config(PROJECT_ROOT / "alembic.ini"))
MIGRATION = SCRIPTS.get_revision("0023")
#: By migration: what a later one grants is added.
GRANTS = (
    MIGRATION.module.GRANTS,
    *(SCRIPTS.get_revision(revision).module.GRANTS for revision in ("0027", "0028")),
)
#: Tables of a tenant's rows that have no column ``tenant_id``, and how a row says whose it is.
BY_OTHER_COLUMNS = {
    "tenants": "id = {}",
    "audit_log": "tenant = (SELECT name FROM tenants WHERE id = {})",
    "tallies": "kind = 'submission' AND name = '{}'",
    **dict.fromkeys(
        ("attempts", "run_logs", "checkpoints", "predictions"),
        "job_id IN (SELECT id FROM jobs WHERE tenant_id = {})",
    ),
}
#: Tables that hold no tenant's rows; processes names some.
OF_NOBODY = {
    *("alembic_version", "circuits", "desired_workers", "express_lanes", "feed_generations"),
    *("job_types", "leaders", "pool_samples", "processes", "quotas"),
    "verdicts_version",
    # Of cells; a tenant's role may do nothing with them.
    *("cells", "removed_cells", "placements", "moves", "tenant_copies", "cell_identity"),
    "transfer_marks",
}
READ_TABLES = """
    SELECT relname AS name, relrowsecurity AS secured,
           EXISTS (SELECT FROM pg_attribute WHERE attrelid = pg_class.oid
                   AND attname = 'tenant_id' AND NOT attisdropped) AS of_tenants,
           array(SELECT polname::text FROM pg_policy WHERE polrelid = pg_class.oid) AS policies
    FROM pg_class WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace
"""
READ_GRANTS = """
    SELECT grantee::regrole::text AS grantee, relname AS name, privilege_type AS privilege, part
    FROM (
        SELECT relname, NULL AS part, relacl AS acl, relnamespace AS schema FROM pg_class
        UNION ALL
        SELECT relname, attname, attacl, relnamespace
        FROM pg_attribute JOIN pg_class ON pg_class.oid = attrelid
    ) AS given, aclexplode(acl)
    WHERE schema = 'public'::regnamespace AND grantee <> 0
      AND starts_with(grantee::regrole::text, 'fairline_')
"""


@pytest.fixture
def database(engine: Engine) -> DatabaseFixture:
    """Two tenants with a row in every table that tenants have rows in."""
    database = DatabaseFixture(engine)
    database.execute("INSERT INTO tenants (name) VALUES ('second')")
    for tenant_id in (1, 2):
        fill(database, tenant_id)
    return database


def fill(database: DatabaseFixture, tenant_id: int) -> None:
    job_id = database.submit_application(tenant_id=tenant_id)
    of_tenant = {
        "api_keys": ("id, digest", f"'key{tenant_id}', ''"),
        "away_tenants": ("away", "false"),
        "blob_counts": ("bytes, counted_at", "1, now()"),
        "erasures": ("id", f"'{job_id}'"),
        "events": ("kind", "'x'"),
        "idempotency_keys": ("key, digest, job_ids", "'k', '', '{}'"),
        "intake_jobs": (
            "id, job_ids, tenant, cell, body",
            f"'{job_id}', '{{{job_id}}}', '', '', ''",
        ),
        "job_count_sums": (
            "pool, dependency, up_to, scheduled, queued, dispatched, running, succeeded, dead,"
            " cancelled, expired",
            "'medium', '', -1, 0, 0, 0, 0, 0, 0, 0, 0",
        ),
        "rate_buckets": ("spent_until", "now()"),
        "refusals": ("day, code", "current_date, 'X'"),
        "replays": ("id, digest, before, position", f"'{job_id}', '', now(), '{job_id}'"),
        "schedules": (
            "id, name, cron, timezone, overlap, catch_up, type, payload",
            f"'{job_id}', 'n', '* * * * *', 'UTC', 'allow', 'none', 'echo', '{{}}'",
        ),
        "shares": (
            "pool, pass, counted_day, counted_seconds, weight",
            "'medium', 0, current_date, 0, 1",
        ),
        "tenant_limits": ("pool", "'medium'"),
        "usage": ("day, pool, shard", "current_date, 'medium', 0"),
        "verdicts": ("kind", "'spike'"),
    }
    for table, (columns, values) in of_tenant.items():
        database.execute(
            f"INSERT INTO {table} (tenant_id, {columns}) VALUES ({tenant_id}, {values})"
        )
    of_job = {
        "attempts": ("lease, status", "1, 'dead'"),
        "run_logs": ("place, lease", "0, 1"),
        "checkpoints": ("lease", "1"),
        "predictions": ("pool, wait_seconds", "'medium', 1"),
    }
    for table, (columns, values) in of_job.items():
        database.execute(f"INSERT INTO {table} (job_id, {columns}) VALUES ('{job_id}', {values})")
    database.execute(
        "INSERT INTO tallies (kind, bucket, name, total)"
        f" VALUES ('submission', now(), '{tenant_id}', 1)"
    )
    database.execute(
        "INSERT INTO audit_log (via, who, role, tenant, what)"
        f" SELECT 'api', 'x', 'tenant', name, 'x' FROM tenants WHERE id = {tenant_id}"
    )


@pytest.fixture
def unlimited(engine: Engine, database: DatabaseFixture) -> Engine:
    """With every privilege for a tenant's role, so that nothing but policies is in the way."""
    with connect(engine) as connection:
        connection.exec_driver_sql("GRANT ALL ON ALL TABLES IN SCHEMA public TO fairline_tenant")
    return engine


def tables_of_tenants(database: DatabaseFixture) -> dict[str, str]:
    """All tables with rows of tenants, by what says whose a row is."""
    found = {row.name: "tenant_id = {}" for row in database.query(READ_TABLES) if row.of_tenants}
    return found | BY_OTHER_COLUMNS


def count(engine: Engine, table: str, whose: str, tenant_id: int) -> int:
    [row] = fetch(engine, f"SELECT count(*) AS rows FROM {table} WHERE {whose.format(tenant_id)}")
    return int(row.rows)


def test_every_table_of_tenants_is_secured(database: DatabaseFixture) -> None:
    tables = {row.name: row for row in database.query(READ_TABLES)}
    assert set(tables) == tables_of_tenants(database).keys() | OF_NOBODY | {"sessions"}
    for name in (*tables_of_tenants(database), "sessions"):
        assert tables[name].secured, f"{name} has no row-level security"
        assert "many_tenants" in tables[name].policies
        assert name == "sessions" or "one_tenant" in tables[name].policies, name


def test_the_policy_of_the_many_costs_nothing(database: DatabaseFixture) -> None:
    """It is a constant, and none for roles that see the same statistics as the owner."""
    rows = database.query("SELECT qual, with_check, roles FROM pg_policies")
    many = [row for row in rows if "fairline_tenant" not in row.roles]
    assert {(row.qual, row.with_check) for row in many} == {("true", None)}
    for _ in range(20):
        database.submit()
    database.execute("ANALYZE jobs")
    explain = "EXPLAIN SELECT id FROM jobs WHERE status = 'running'"  # none is
    plan = [row[0] for row in fetch(database.engine, explain)]
    for role in (DatabaseRole.API, DatabaseRole.SCHEDULER, DatabaseRole.WORKER):
        with in_role(role):
            assert [row[0] for row in fetch(database.engine, explain)] == plan, role


def test_privileges_are_those_that_are_declared(database: DatabaseFixture) -> None:
    given: dict[str, dict[str, set[str]]] = {}
    for row in database.query(READ_GRANTS):
        text = row.privilege if row.part is None else f"{row.privilege} {row.part}"
        given.setdefault(row.grantee, {}).setdefault(row.name, set()).add(text)
    declared: dict[str, dict[str, set[str]]] = {}
    grants = [
        (role, table, letters)
        for of_migration in GRANTS
        for role, tables in of_migration.items()
        for table, letters in tables.items()
    ]
    for role, table, letters in grants:
        declared.setdefault(role, {}).setdefault(table, set()).update(
            " ".join(filter(None, (MIGRATION.module.PRIVILEGES[letter], column.strip())))
            for letter, columns in MIGRATION.module.found_in(letters)
            for column in (columns.strip("()").split(",") if columns else ("",))
        )
    assert given == declared


NOT_ALLOWED = r"permission denied|must be owner"
REFUSED = [
    (DatabaseRole.WORKER, "SELECT FROM api_keys"),
    (DatabaseRole.WORKER, "SELECT FROM sessions"),
    (DatabaseRole.WORKER, "SELECT FROM audit_log"),
    (DatabaseRole.WORKER, "INSERT INTO jobs (id) VALUES (gen_random_uuid())"),
    (DatabaseRole.WORKER, "DELETE FROM jobs"),
    (DatabaseRole.WORKER, "UPDATE tenants SET weight = 9"),
    (DatabaseRole.SCHEDULER, "SELECT FROM audit_log"),
    (DatabaseRole.SCHEDULER, "UPDATE cells SET database_url = ''"),
    (DatabaseRole.WORKER, "SELECT FROM cells"),
    (DatabaseRole.WORKER, "UPDATE away_tenants SET away = false"),
    (DatabaseRole.TENANT, "SELECT FROM placements"),
    (DatabaseRole.TENANT, "SELECT FROM intake_jobs"),
    (DatabaseRole.TENANT, "DELETE FROM away_tenants"),
    (DatabaseRole.SCHEDULER, "INSERT INTO sessions (digest) VALUES ('')"),
    (DatabaseRole.SCHEDULER, "DELETE FROM audit_log"),
    (DatabaseRole.API, "DELETE FROM audit_log"),
    (DatabaseRole.API, "UPDATE audit_log SET who = ''"),
    (DatabaseRole.API, "DELETE FROM tenants"),
    (DatabaseRole.API, "INSERT INTO usage (tenant_id) VALUES (1)"),
    (DatabaseRole.API, "INSERT INTO leaders (role) VALUES ('scheduler')"),
    (DatabaseRole.API, "SELECT retire_audit(0, 1)"),
    (DatabaseRole.WORKER, "SELECT begin_feed_generation()"),
    (DatabaseRole.TENANT, "SELECT digest FROM api_keys"),
    (DatabaseRole.TENANT, "SELECT FROM sessions"),
    (DatabaseRole.TENANT, "SELECT FROM audit_log"),
    (DatabaseRole.TENANT, "SELECT pools FROM processes"),
    (DatabaseRole.TENANT, "DELETE FROM tallies"),
    (DatabaseRole.TENANT, "INSERT INTO jobs (id) VALUES (gen_random_uuid())"),
    (DatabaseRole.TENANT, "UPDATE tenants SET weight = 9"),
    (DatabaseRole.TENANT, "UPDATE usage SET jobs = 0"),
    *[(role, "ALTER TABLE jobs DISABLE ROW LEVEL SECURITY") for role in DatabaseRole],
    *[(role, "TRUNCATE jobs") for role in DatabaseRole],
    *[(role, "CREATE TABLE mine (one int)") for role in DatabaseRole],
    *[
        (role, "INSERT INTO job_count_keys VALUES (1, '', '')")
        for role in DatabaseRole
        if role is not DatabaseRole.SCHEDULER  # which moves counts with their tenants
    ],
]


@pytest.mark.parametrize("role", DatabaseRole)
def test_a_role_can_do_nothing_else(engine: Engine, role: DatabaseRole) -> None:
    for sql in [sql for of, sql in REFUSED if of is role]:
        with in_role(role), pytest.raises(ProgrammingError, match=NOT_ALLOWED):
            execute(engine, sql, {})


def test_a_tenant_sees_and_changes_its_own_rows_of_every_table(
    unlimited: Engine, database: DatabaseFixture
) -> None:
    # As if it was allowed everything: see test_a_role_can_do_nothing_else.
    database.execute("ALTER TABLE audit_log DISABLE TRIGGER ALL")
    for table, whose in tables_of_tenants(database).items():
        assert count(unlimited, table, whose, 1) and count(unlimited, table, whose, 2), table
        with tenant_scope(1):
            assert count(unlimited, table, whose, 1), f"{table}: not its own"
            assert not count(unlimited, table, whose, 2), f"{table}: another's"
            column = column_of(table, whose)
            updated = f"UPDATE {table} SET {column} = {column} WHERE {whose.format(2)}"
            if table not in ("tenants", "audit_log"):  # the id is always generated
                assert execute(unlimited, updated, {}) == 0, table
            assert execute(unlimited, f"DELETE FROM {table} WHERE {whose.format(2)}", {}) == 0
            with pytest.raises(ProgrammingError, match="row-level security"):
                insert_copy(unlimited, table, whose)
        with in_role(DatabaseRole.TENANT):  # and no tenant is set
            common = "tenant_id <> 0" if whose == "tenant_id = {}" else "true"
            assert not fetch(unlimited, f"SELECT FROM {table} WHERE {common}"), table
        assert count(unlimited, table, whose, 2), f"{table}: deleted"


def insert_copy(engine: Engine, table: str, whose: str) -> None:
    """Insert a row of tenant 2, which it does not see; the values are of no matter."""
    other = {"audit_log": "'second'", "tallies": "'2'"}.get(table, "2")
    if "job_id IN" in whose:
        with every_tenant():
            [row] = fetch(engine, "SELECT id::text AS id FROM jobs WHERE tenant_id = 2")
        other = f"'{row.id}'"
    column = column_of(table, whose)
    fields = fetch(
        engine,
        "SELECT attname AS name, format_type(atttypid, atttypmod) AS type, attnotnull AS needed"
        f" FROM pg_attribute WHERE attrelid = '{table}'::regclass AND attnum > 0"
        f" AND NOT attisdropped AND NOT atthasdef AND attidentity = '' AND attname <> '{column}'",
    )
    values = [SAMPLES[field.type] for field in fields if field.needed]
    names = [f'"{field.name}"' for field in fields if field.needed]
    overriding = "OVERRIDING SYSTEM VALUE " if table == "tenants" else ""
    sql = f"INSERT INTO {table} ({', '.join([column, *names])}) {overriding}"
    execute(engine, f"{sql} VALUES ({', '.join([other, *values])})", {})


def column_of(table: str, whose: str) -> str:
    """The column that says whose a row is."""
    named = {"tenants": "id", "audit_log": "tenant", "tallies": "name"}
    return named.get(table) or ("job_id" if "job_id IN" in whose else "tenant_id")


SAMPLES = {
    "text": "'x'",
    "text[]": "'{}'",
    "uuid": "gen_random_uuid()",
    "uuid[]": "'{}'",
    "bytea": "''",
    "bigint": "77",
    "integer": "77",
    "smallint": "7",
    "double precision": "7",
    "jsonb": "'{}'",
    "json": "'{}'",
    "date": "'2000-01-01'",
    "timestamp with time zone": "now()",
    "job_status": "'queued'",
    "xid8": "'7'",
    "boolean": "true",
}


def who(engine: Engine) -> Any:
    [row] = fetch(
        engine, "SELECT current_user AS it, current_setting('fairline.tenant', true) AS tenant"
    )
    return row.it, row.tenant or None


def test_a_pooled_connection_is_never_left_in_another_role(database_url: str) -> None:
    settings = DatabaseSettings(database_url=database_url, db_pool_size=1, db_statement_seconds=1.0)
    engine = open_engine(settings, role=DatabaseRole.API)
    plain = (DatabaseRole.API, None)
    assert who(engine) == plain
    with tenant_scope(7):
        assert who(engine) == (DatabaseRole.TENANT, "7")
        with every_tenant():
            assert who(engine) == plain
        with pytest.raises(ProgrammingError):
            fetch(engine, "SELECT nonsense")
    assert who(engine) == plain
    with tenant_scope(7), pytest.raises(StateStoreUnavailable):
        fetch(engine, "SELECT pg_sleep(3)")
    assert who(engine) == plain
    with tenant_scope(7), transaction(engine) as connection:
        assert connection.exec_driver_sql("SELECT current_user").scalar() == DatabaseRole.TENANT
        assert connection.exec_driver_sql("SELECT current_user").scalar() == DatabaseRole.TENANT
    assert who(engine) == plain
    with tenant_scope(7), pytest.raises(ProgrammingError), transaction(engine) as connection:
        connection.exec_driver_sql("SELECT nonsense")
    assert who(engine) == plain
    engine.dispose()


def test_a_login_without_the_roles_is_told_what_to_do(database_url: str, engine: Engine) -> None:
    execute(engine, "DROP ROLE IF EXISTS newcomer", {})
    execute(engine, "CREATE ROLE newcomer LOGIN NOINHERIT", {})
    url = database_url.replace("postgres@", "newcomer@")
    newcomer = open_engine(DatabaseSettings(database_url=url), role=DatabaseRole.WORKER)
    needed = "GRANT fairline_api, fairline_scheduler, fairline_worker, fairline_tenant TO newcomer"
    with pytest.raises(StateStoreUnavailable, match=needed):
        fetch(newcomer, "SELECT 1")
    execute(engine, needed, {})
    assert who(newcomer)[0] == DatabaseRole.WORKER
    with pytest.raises(ProgrammingError, match="permission denied"):
        fetch(open_engine(DatabaseSettings(database_url=url)), "SELECT FROM jobs")
    newcomer.dispose()
    execute(engine, f"REVOKE {', '.join(DatabaseRole)} FROM newcomer", {})
    execute(engine, "DROP ROLE newcomer", {})


def test_functions_that_run_as_the_owner_find_nothing_of_their_callers(engine: Engine) -> None:
    rows = fetch(
        engine,
        """
        SELECT proname AS name, proconfig AS settings,
               has_function_privilege('fairline_worker', oid, 'EXECUTE') AS anybody
        FROM pg_proc WHERE prosecdef AND pronamespace = current_schema()::regnamespace
        """,
        {},
    )
    assert {"begin_feed_generation", "count_new_jobs", "retire_audit"} <= {r.name for r in rows}
    for row in rows:
        paths = [each for each in row.settings if each.startswith("search_path=")]
        assert paths == ["search_path=public, pg_temp"], row.name
        assert not row.anybody, row.name
