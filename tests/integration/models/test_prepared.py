"""Prepared statements: planned once a connection, and where that does not work, not at all."""

from __future__ import annotations

from sqlalchemy import Connection, Engine

from models.store import prepared
from models.store.prepared import PreparedStatement
from models.store.session import connect

SQL = """
    SELECT n, n %% 2 FROM unnest(%(numbers)s::int[]) AS n
    WHERE n > %(least)s::int OR %(least)s < 0
"""
KNOWN = "SELECT count(*) FROM pg_prepared_statements WHERE name LIKE 'odd%%'"


def test_it_reads_what_the_statement_reads_and_is_prepared_once(engine: Engine) -> None:
    statement = PreparedStatement("odd", SQL)
    with connect(engine) as connection:
        for least, found in ((1, [(2, 0), (3, 1)]), (2, [(3, 1)]), (-1, [(1, 1), (2, 0), (3, 1)])):
            rows = statement.execute(connection, {"numbers": "{1,2,3}", "least": least}).all()
            assert [tuple(row) for row in rows] == found
        assert connection.exec_driver_sql(KNOWN).scalar_one() == 1


def test_session_that_forgot_it_is_sent_the_statement_itself(engine: Engine) -> None:
    statement = PreparedStatement("odd", SQL)
    asked = {"numbers": "{1,2}", "least": 1}
    with connect(engine) as connection:
        statement.execute(connection, asked)
        connection.exec_driver_sql("DEALLOCATE ALL")  # as if a pooler had given us another session
        assert [tuple(row) for row in statement.execute(connection, asked)] == [(2, 0)]
        assert [tuple(row) for row in statement.execute(connection, asked)] == [(2, 0)]
        assert connection.exec_driver_sql(KNOWN).scalar_one() == 0
        connection.invalidate()  # its notes are wrong now, and the engine is everybody's


def test_session_that_somebody_else_prepared_it_in_is_sent_the_statement_itself(
    engine: Engine,
) -> None:
    asked = {"numbers": "{1,2}", "least": 1}
    with connect(engine) as connection:
        PreparedStatement("odd", SQL).execute(connection, asked)
        connection.info.clear()
        rows = PreparedStatement("odd", SQL).execute(connection, asked).all()
        assert [tuple(row) for row in rows] == [(2, 0)]
        connection.invalidate()


def test_settings_hold_for_its_transaction_alone(engine: Engine) -> None:
    read = "SELECT current_setting('lock_timeout') AS one"
    statement = PreparedStatement("odd", read, settings="SET LOCAL lock_timeout = '123ms';")
    with connect(engine) as connection:
        before = connection.exec_driver_sql(read).scalar_one()
        for _ in range(2):
            assert statement.execute(connection, {}).scalar_one() == "123ms" != before
            assert connection.exec_driver_sql(read).scalar_one() == before


def age(connection: Connection, seconds: float) -> None:
    """Make everything that the connection has prepared so much older."""
    for known in connection.info[prepared.NOTED].values():
        known[0] -= seconds


def test_plan_is_kept_for_seconds_and_longer_while_it_is_hardly_used(engine: Engine) -> None:
    statement = PreparedStatement("odd", SQL)
    made = "SELECT prepare_time FROM pg_prepared_statements WHERE name LIKE 'odd%%'"
    with connect(engine) as connection:

        def prepared_at() -> object:
            rows = statement.execute(connection, {"numbers": "{1}", "least": 0}).all()
            assert [tuple(row) for row in rows] == [(1, 1)]
            return connection.exec_driver_sql(made).scalar_one()

        first = prepared_at()
        assert {prepared_at() for _ in range(2 * prepared.FEW_USES)} == {first}, "it is fresh"
        age(connection, prepared.KEEP_SECONDS)
        second = prepared_at()
        assert second != first, "it is old and was used"
        assert {prepared_at() for _ in range(2 * prepared.FEW_USES)} == {second}
        age(connection, 1.5 * prepared.KEEP_SECONDS)
        assert prepared_at() == second, "the second is kept for twice as long"
        age(connection, prepared.KEEP_SECONDS)
        third = prepared_at()
        assert third != second
        age(connection, 2 * prepared.KEEP_AT_MOST_SECONDS)
        assert {prepared_at() for _ in range(prepared.FEW_USES - 1)} == {third}, "hardly used"
        fourth = prepared_at()
        assert fourth != third
        age(connection, prepared.MOST_SECONDS)
        assert prepared_at() != fourth, "it is too old for anything"
        connection.invalidate()


def test_column_that_changes_its_type_under_a_running_process_is_read_all_the_same(
    engine: Engine,
) -> None:
    statement = PreparedStatement(
        "odd", "SELECT n FROM changing WHERE n = ANY (%(numbers)s::int[])"
    )
    with connect(engine) as connection:
        connection.exec_driver_sql("CREATE TABLE changing (n int)")
        connection.exec_driver_sql("INSERT INTO changing VALUES (7)")
        try:
            assert statement.execute(connection, {"numbers": "{7}"}).scalar_one() == 7
            connection.exec_driver_sql("ALTER TABLE changing ALTER COLUMN n TYPE bigint")
            assert statement.execute(connection, {"numbers": "{7}"}).scalar_one() == 7
        finally:
            connection.exec_driver_sql("DROP TABLE changing")
            connection.invalidate()


def test_connection_forgets_the_oldest_of_many(engine: Engine) -> None:
    with connect(engine) as connection:
        statements = [
            PreparedStatement("odd", f"SELECT {number} AS one")
            for number in range(prepared.MOST_PREPARED + 5)
        ]
        for _ in range(2):
            for number, statement in enumerate(statements):
                assert statement.execute(connection, {}).scalar_one() == number
        assert connection.exec_driver_sql(KNOWN).scalar_one() == prepared.MOST_PREPARED
        connection.invalidate()
