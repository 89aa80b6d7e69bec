"""The tables of ended jobs divided by time: an experiment, made from the schema as it is.

``jobs``, ``attempts``, ``run_logs`` and ``events`` become tables of partitions. Ids of jobs sort by
time, so ranges of ids are ranges of time, and the primary key stays what it is. Everything else is
taken from the catalogue: columns, indexes, triggers and storage parameters. Row-level security is
left out: the owner of the tables, who measures, is not bound by it.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from sqlalchemy import Connection, Engine

from app.reads.search import id_before
from models.store.session import transaction

#: Days of ended jobs that are on disk.
DAYS = 30
#: Partitions must be there before their first row.
DAYS_AHEAD = 2

#: By table, the column that it is divided by. Of ``events``, ids say nothing about the time.
KEYS = {"jobs": "id", "attempts": "job_id", "run_logs": "job_id", "events": "at"}
#: All tables that retention works on. Scored applications outlive their jobs.
TABLES = (*KEYS, "applications")

READ_OPTIONS = "SELECT reloptions FROM pg_class WHERE oid = %(table)s::regclass"
#: Those of the primary key without its name, which the old table still has.
READ_INDEXES = """
    SELECT pg_get_indexdef(indexrelid) AS made, indisprimary AS is_key,
           array(SELECT attname::text FROM unnest(indkey) WITH ORDINALITY AS part (number, place)
                 JOIN pg_attribute ON attrelid = indrelid AND attnum = number
                 ORDER BY place) AS columns
    FROM pg_index WHERE indrelid = %(table)s::regclass
"""
READ_TRIGGERS = """
    SELECT pg_get_triggerdef(oid) AS made FROM pg_trigger
    WHERE tgrelid = %(table)s::regclass AND NOT tgisinternal
"""


class Layout(NamedTuple):
    """How the tables are stored."""

    name: str
    #: Days of a partition; 0: none.
    days: int = 0

    @property
    def database(self) -> str:
        return f"retention_{self.days}"


class Span(NamedTuple):
    """The time of a partition."""

    number: int
    since: datetime
    until: datetime

    def partition(self, table: str) -> str:
        return f"{table}_{self.number:02}"

    def bounds(self, table: str) -> tuple[str, str]:
        """From, and to but without."""
        if KEYS[table] == "at":
            return self.since.isoformat(), self.until.isoformat()
        return id_before(self.since), id_before(self.until)


def spans(until: datetime, days: int) -> list[Span]:
    """The partitions of the days up to ``until``, the oldest first, and of the next ones."""
    since, each = until - timedelta(DAYS), timedelta(days)
    count = -(-(DAYS + DAYS_AHEAD) // days)
    return [Span(n, since + n * each, since + (n + 1) * each) for n in range(count)]


def divide(engine: Engine, made: Sequence[Span]) -> None:
    """Replace the tables, which are empty, by tables of these partitions."""
    with transaction(engine) as connection:
        for table, key in KEYS.items():
            options = divide_table(connection, table, key)
            for span in made:
                create_partition(connection, table, span, options)


def divide_table(connection: Connection, table: str, key: str) -> str:
    """Replace a table by one without partitions yet; their storage parameters."""
    asked, options = {"table": table}, options_of(connection, table)
    indexes = connection.exec_driver_sql(READ_INDEXES, asked).all()
    triggers = connection.exec_driver_sql(READ_TRIGGERS, asked).all()
    connection.exec_driver_sql(f"ALTER TABLE {table} RENAME TO {table}_whole")
    connection.exec_driver_sql(
        f"CREATE TABLE {table} (LIKE {table}_whole INCLUDING DEFAULTS INCLUDING IDENTITY"
        f" INCLUDING STORAGE) PARTITION BY RANGE ({key})"
    )
    # With the policies of other tables that ask it whose a row is.
    connection.exec_driver_sql(f"DROP TABLE {table}_whole CASCADE")
    for index in indexes:
        connection.exec_driver_sql(key_of(table, key, index) if index.is_key else index.made)
    for trigger in triggers:
        connection.exec_driver_sql(trigger.made)
    return options


def options_of(connection: Connection, table: str) -> str:
    """Its storage parameters, as SQL."""
    found = connection.exec_driver_sql(READ_OPTIONS, {"table": table}).scalar_one()
    return f" WITH ({', '.join(found)})" if found else ""


def key_of(table: str, key: str, index: Any) -> str:
    """The primary key, which must have the column that a table is divided by."""
    columns = index.columns if key in index.columns else [*index.columns, key]
    return f"ALTER TABLE {table} ADD PRIMARY KEY ({', '.join(columns)})"


def create_partition(connection: Connection, table: str, span: Span, options: str) -> None:
    first, last = span.bounds(table)
    connection.exec_driver_sql(
        f"CREATE TABLE {span.partition(table)} PARTITION OF {table}"
        f" FOR VALUES FROM ('{first}') TO ('{last}'){options}"
    )
