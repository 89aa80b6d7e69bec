"""A clock that stands still until it is moved, under every statement of one database.

PostgreSQL looks up ``now()`` by name, so a schema of the test's own in front of
``pg_catalog`` decides what time it is for statements and defaults alike. What asks in other
words (``current_date``) keeps the real time.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from sqlalchemy import Engine

INSTALL = """
    CREATE SCHEMA clock;
    CREATE TABLE clock.reading (at timestamptz NOT NULL);
    INSERT INTO clock.reading VALUES (pg_catalog.now());
    CREATE FUNCTION clock.now() RETURNS timestamptz LANGUAGE sql STABLE
        AS 'SELECT at FROM clock.reading';
    GRANT USAGE ON SCHEMA clock TO PUBLIC;
    GRANT SELECT ON clock.reading TO PUBLIC;
    DO $$
    DECLARE found record;
    BEGIN
        FOR found IN
            SELECT adrelid::regclass AS name, attname FROM pg_attrdef
            JOIN pg_attribute ON attrelid = adrelid AND attnum = adnum
            WHERE pg_get_expr(adbin, adrelid) = 'now()'
        LOOP
            EXECUTE format('ALTER TABLE %%s ALTER COLUMN %%I SET DEFAULT clock.now()',
                           found.name, found.attname);
        END LOOP;
        EXECUTE format('ALTER DATABASE %%I SET search_path = clock, pg_catalog, public',
                       current_database());
        EXECUTE format('ALTER DATABASE %%I SET synchronous_commit = off', current_database());
    END $$;
"""


class Clock:
    """The time of one database."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        with engine.connect() as connection:
            connection.exec_driver_sql(INSTALL)
        engine.dispose()  # a search path is read when a connection is made
        self.now = datetime.now(UTC).replace(microsecond=0)
        self.move(timedelta(0))

    def move(self, by: timedelta) -> datetime:
        """Let time pass; what it is then."""
        self.now += by
        with self._engine.connect() as connection:
            connection.exec_driver_sql("UPDATE clock.reading SET at = %s", (self.now,))
        return self.now
