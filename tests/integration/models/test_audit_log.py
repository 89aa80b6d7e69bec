"""The audit log as the database keeps it: rows are added, and go by retention alone."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import Engine
from sqlalchemy.exc import DBAPIError

from app.scheduler.maintenance.retirer import Kept, Retirer
from models.audit import Act, Actor, acting, record, recording
from models.blobs import open_blobs
from tests.support.database_fixture import DatabaseFixture

DAY = 86_400.0
SOMEBODY = Actor("api", "abcd1234", "operator", (Act.TENANT_CHANGE,), "127.0.0.1", "r-1")


@pytest.fixture
def database(engine: Engine) -> DatabaseFixture:
    return DatabaseFixture(engine)


@pytest.fixture
def written(engine: Engine) -> None:
    with acting(SOMEBODY), recording(engine) as connection:
        record(connection, Act.TENANT_CHANGE, "demo", tenant=1, after={"weight": 2})


def test_a_row_says_who_did_what_where(database: DatabaseFixture, written: None) -> None:
    [row] = database.query("SELECT * FROM audit_log")
    assert (row.via, row.who, row.who_name, row.role) == ("api", "abcd1234", None, "operator")
    assert (row.tenant, row.what, row.target) == ("demo", "tenant.change", "demo")
    assert (row.before, row.after) == (None, {"weight": 2})
    assert (row.address, row.request_id) == ("127.0.0.1", "r-1")


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE audit_log SET who = 'nobody'",
        "DELETE FROM audit_log",
        "TRUNCATE audit_log",
        "SELECT retire_audit(1000, 10); DELETE FROM audit_log",
    ],
)
def test_the_database_refuses_to_change_it(
    database: DatabaseFixture, written: None, statement: str
) -> None:
    with pytest.raises(DBAPIError, match="audit_log can only be added to"):
        database.execute(statement)
    assert [row.who for row in database.query("SELECT who FROM audit_log")] == ["abcd1234"]


def test_a_change_that_is_rolled_back_takes_its_row_with_it(
    database: DatabaseFixture, engine: Engine
) -> None:
    def change() -> None:
        with acting(SOMEBODY), recording(engine) as connection:
            connection.exec_driver_sql("UPDATE tenants SET weight = 2")
            record(connection, Act.TENANT_CHANGE, "demo")
            raise RuntimeError("after all")

    with pytest.raises(RuntimeError, match="after all"):
        change()
    assert not database.query("SELECT FROM audit_log")
    assert not database.query("SELECT FROM tenants WHERE weight = 2")


def test_where_nobody_acts_nothing_is_recorded(database: DatabaseFixture, engine: Engine) -> None:
    with recording(engine) as connection:
        record(connection, Act.TENANT_CHANGE, "demo")
    assert not database.query("SELECT FROM audit_log")


def test_old_rows_go_in_batches(
    database: DatabaseFixture, engine: Engine, written: None, tmp_path: Path
) -> None:
    database.execute("""
        INSERT INTO audit_log (at, via, who, role, what)
        SELECT now() - make_interval(days => 366), 'api', 'old', 'operator', 'tenant.change'
        FROM generate_series(1, 600)""")
    kept = Kept(finished=DAY, dead=DAY, events=DAY, keys=DAY, audit=365 * DAY)
    retirer = Retirer(engine, database.leader, open_blobs(str(tmp_path)), kept)
    left = []
    for _ in range(3):
        retirer.run_once(0.0)
        left.append(database.query("SELECT count(*) AS rows FROM audit_log")[0].rows)
    assert left == [101, 1, 1]
    assert database.query("SELECT who FROM audit_log")[0].who == "abcd1234"


def test_nobody_but_the_leader_deletes(
    database: DatabaseFixture, engine: Engine, tmp_path: Path
) -> None:
    database.execute("""
        INSERT INTO audit_log (at, via, who, role, what)
        VALUES (now() - interval '400 days', 'api', 'old', 'operator', 'tenant.change')""")
    kept = Kept(finished=DAY, dead=DAY, events=DAY, keys=DAY)
    retirer = Retirer(engine, database.leader, open_blobs(str(tmp_path)), kept)
    database.execute("UPDATE leaders SET epoch = epoch + 1")
    retirer.run_once(0.0)
    assert database.query("SELECT FROM audit_log")
