"""Rows that are read in one database and inserted into another, as when a tenant moves.

Each column as its text, which PostgreSQL reads back as the same value, whatever its type: JSON
keeps its spelling, a floating-point number its last bit. Python looks into none of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Table
from sqlalchemy.dialects import postgresql

from models.store.arrays import text_array

#: The texts of a row by column.
TextRow = Mapping[str, str | None]
#: SQL in place of columns: expressions over the row ``given``.
Instead = Mapping[str, str]
NOTHING: Instead = {}


class CopiedTable:
    """A table whose rows are copied; all its columns, unless some are left out."""

    def __init__(self, table: Table, leave_out: Iterable[str] = ()) -> None:
        dialect = postgresql.dialect()  # type: ignore[no-untyped-call]
        self.name = table.name
        #: SQL types by column.
        self.types = {
            column.name: column.type.compile(dialect=dialect)
            for column in table.columns
            if column.name not in set(leave_out)
        }
        self.key = [column.name for column in table.primary_key if column.name in self.types]

    def read(self, connection: Connection, rest: str, parameters: Any) -> list[TextRow]:
        """The rows for which a condition holds; ``rest``: all that follows FROM."""
        found = connection.exec_driver_sql(
            f"SELECT {self.texts} FROM {self.name} {rest}", parameters
        )
        return [dict(row) for row in found.mappings()]

    def take(self, connection: Connection, condition: str, parameters: Any) -> list[TextRow]:
        """Delete the rows for which the condition holds, and return them."""
        found = connection.exec_driver_sql(
            f"DELETE FROM {self.name} WHERE {condition} RETURNING {self.texts}", parameters
        )
        return [dict(row) for row in found.mappings()]

    def insert(
        self,
        connection: Connection,
        rows: Sequence[TextRow],
        conflict: str = "ON CONFLICT DO NOTHING",
        *,
        instead: Instead = NOTHING,
        where: str = "true",
    ) -> int:
        """Insert the rows, of ``given`` those for which ``where`` holds; how many were written."""
        if not rows:
            return 0
        # In one order, so that two of them cannot wait for each other.
        order = ", ".join(f'given."{name}"' for name in self.key)
        statement = f"""
            INSERT INTO {self.name} AS known ({self.columns})
            SELECT {self.values(instead)} FROM {self.given} WHERE {where}
            {f"ORDER BY {order}" if order else ""}
            {conflict}"""
        return connection.exec_driver_sql(statement, self.parameters(rows)).rowcount

    def add(
        self, connection: Connection, rows: Sequence[TextRow], *, instead: Instead = NOTHING
    ) -> None:
        """Add the rows up with those that are there: all columns outside of the key are sums."""
        if not rows:
            return
        sums = [name for name in self.types if name not in self.key]
        keys = [instead.get(name, f'given."{name}"') for name in self.key]
        places = ", ".join(str(place) for place in range(1, len(keys) + 1))
        statement = f"""
            INSERT INTO {self.name} AS known ({quoted([*self.key, *sums])})
            SELECT {", ".join(keys)}, {", ".join(f'sum(given."{name}")' for name in sums)}
            FROM {self.given} GROUP BY {places} ORDER BY {places}
            ON CONFLICT ({quoted(self.key)}) DO UPDATE
            SET {", ".join(f'"{name}" = known."{name}" + excluded."{name}"' for name in sums)}"""
        connection.exec_driver_sql(statement, self.parameters(rows))

    @property
    def columns(self) -> str:
        """The names of the columns, with commas, for SQL."""
        return quoted(self.types)

    @property
    def texts(self) -> str:
        """The columns as texts, for a SELECT."""
        return ", ".join(f'{self.name}."{name}"::text AS "{name}"' for name in self.types)

    @property
    def given(self) -> str:
        """The rows of ``parameters`` with their types, to be selected from: ``given``."""
        arrays = ", ".join(f"%(given_{name})s::text[]" for name in self.types)
        typed = ", ".join(f'"{name}"::{type_} AS "{name}"' for name, type_ in self.types.items())
        return f"(SELECT {typed} FROM unnest({arrays}) AS texts ({self.columns})) AS given"

    def values(self, instead: Instead = NOTHING) -> str:
        """The columns of ``given``, to be inserted."""
        return ", ".join(instead.get(name, f'given."{name}"') for name in self.types)

    def parameters(self, rows: Sequence[TextRow]) -> dict[str, str]:
        """The rows, for ``given``."""
        return {f"given_{name}": text_array(row[name] for row in rows) for name in self.types}


def quoted(names: Iterable[str]) -> str:
    """Columns as a list of SQL: some of their names are words of it."""
    return ", ".join(f'"{name}"' for name in names)
