"""Prepared statements: what is sent hundreds of times per second is planned once per connection.

A plan that was made for an almost empty table is bad for a full one, and the server keeps it until
the table is analyzed again. So a statement is prepared anew every few seconds, each time after
twice as long up to a limit; later if it was used a few times only, which a bad plan makes no
difference for: a job that comes alone, once in a while, need not wait until its statements are
planned.

It is sent without ``exec_driver_sql``, whose handling of arbitrary statements takes half of the
client's time. SQLAlchemy's events before and after a statement are sent without a context; errors
are wrapped, and lost connections given up, as usual.

Not for use within a transaction of several statements: where a pooler hands every statement to
another session, the first failure is answered by sending the statement itself, from then on always,
and a failure would have ended the transaction.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Mapping, Sequence
from typing import Any, cast

import psycopg2
from sqlalchemy import Connection
from sqlalchemy.engine import IteratorResult
from sqlalchemy.engine.result import SimpleResultMetaData
from sqlalchemy.exc import DBAPIError

#: PostgreSQL's codes for a name that it does not know, and for one that it knows already.
NOT_OURS = ("26000", "42P05")
#: … for a statement whose rows look different since a migration. It was not run.
CHANGED = "0A000"
#: The first plan of a connection is kept this long, the following ones longer, up to the latter.
KEEP_SECONDS = 5.0
KEEP_AT_MOST_SECONDS = 20.0
#: One that has been used less often is kept for so long.
FEW_USES = 20
MOST_SECONDS = 60.0
#: Statements that stay prepared on a connection; of more, the oldest is dropped. There is one for
#: settling each combination of types whose jobs end together.
MOST_PREPARED = 100
PARAMETER = re.compile(r"%\((\w+)\)s")
#: For statements that do not wait for somebody's lock, as others wait for their connection.
SHORT_LOCK_WAIT = "SET LOCAL lock_timeout = '500ms';"
#: For walks along an index of a table that may have been empty when they were planned: reading it
#: from end to end, again for each step, costs nothing then, and seconds in the first moments of a
#: flood.
BY_INDEX = "SET LOCAL enable_seqscan = off;"
#: Where a connection notes what it has prepared.
NOTED = "fairline.prepared"
NO_COLUMNS = SimpleResultMetaData(())


class PreparedResult(IteratorResult[*tuple[Any, ...]]):
    """The rows of a statement, all of them read, and how many it changed or returned."""

    def __init__(self, columns: SimpleResultMetaData, rows: Sequence[Any], rowcount: int) -> None:
        super().__init__(columns, iter(rows))
        self.rowcount = rowcount


class PreparedStatement:
    """A statement that names its parameters as ``%(name)s``, with a type where none is implied."""

    def __init__(self, name: str, sql: str, *, settings: str = "") -> None:
        """``settings``: ``SET LOCAL …;`` for its transaction, sent with it each time.

        Also with the PREPARE, which waits for the same locks of tables.
        """
        self._sql = f"{settings} {sql}"
        names = dict.fromkeys(PARAMETER.findall(sql))
        places = {parameter: place for place, parameter in enumerate(names, 1)}
        body = PARAMETER.sub(lambda found: f"${places[found[1]]}", sql)
        # A session may know an older statement by the same name.
        self._name = f"{name}_{hashlib.blake2b(sql.encode(), digest_size=6).hexdigest()}"
        self._forget = f"DEALLOCATE {self._name}"
        self._prepare = f"{settings} PREPARE {self._name} AS {body}".lstrip()
        given = ", ".join(f"%({parameter})s" for parameter in names)
        call = f"EXECUTE {self._name}" + (f" ({given})" if given else "")
        self._execute = f"{settings} {call}".lstrip()
        #: Cleared where statements do not stay in their session.
        self._stays = True
        #: The columns that it returned last, and their names.
        self._columns: tuple[list[str], SimpleResultMetaData] | None = None

    def execute(self, connection: Connection, parameters: Mapping[str, Any]) -> PreparedResult:
        """Run it on a connection that commits each statement."""
        given = dict(parameters)
        if self._stays:
            try:
                self._make_ready(connection)
                try:
                    return self._send(connection, self._execute, given)
                except DBAPIError as error:
                    if code_of(error) != CHANGED:
                        raise
                self._make_ready(connection, anew=True)
                return self._send(connection, self._execute, given)
            except DBAPIError as error:
                if code_of(error) not in NOT_OURS:
                    raise
                self._stays = False
        return self._send(connection, self._sql, given)

    def _send(self, connection: Connection, sql: str, given: dict[str, Any]) -> PreparedResult:
        """Send it through the driver's cursor; errors are those of ``exec_driver_sql``."""
        cursor: Any = None
        heard = cast(Any, connection.dispatch)
        try:
            cursor = connection.connection.cursor()
            for listener in heard.before_cursor_execute:
                sql, given = listener(connection, cursor, sql, given, None, False)
            cursor.execute(sql, given)
            for listener in heard.after_cursor_execute:
                listener(connection, cursor, sql, given, None, False)
            if cursor.description is None:
                return PreparedResult(NO_COLUMNS, (), cursor.rowcount)
            names, columns = [column[0] for column in cursor.description], self._columns
            if columns is None or names != columns[0]:
                self._columns = columns = names, SimpleResultMetaData(names)
            return PreparedResult(columns[1], cursor.fetchall(), cursor.rowcount)
        except BaseException as error:  # noqa: BLE001 - also a timeout of gevent's; this raises it
            # The statement becomes part of the message: of an error that is not the driver's own,
            # SQLAlchemy would make another one.
            named = sql if isinstance(error, psycopg2.Error) else None
            connection._handle_dbapi_exception(error, named, given, cursor, None)
        finally:
            if cursor is not None:
                cursor.close()

    def _make_ready(self, connection: Connection, *, anew: bool = False) -> None:
        """Prepare it on this connection, unless it is prepared and the plan is fresh."""
        noted: dict[str, list[float]] = connection.info.setdefault(NOTED, {})
        known, now = noted.get(self._name), time.monotonic()
        keep = KEEP_SECONDS
        if known is not None:
            made_at, uses, keep = known
            if not anew and now - made_at < (keep if uses >= FEW_USES else MOST_SECONDS):
                known[1] += 1
                return
            keep = min(2 * keep, KEEP_AT_MOST_SECONDS)
            del noted[self._name]
            connection.exec_driver_sql(self._forget)
        elif len(noted) >= MOST_PREPARED:
            oldest = next(iter(noted))
            del noted[oldest]
            connection.exec_driver_sql(f"DEALLOCATE {oldest}")
        connection.exec_driver_sql(self._prepare)
        noted[self._name] = [now, 1, keep]


def code_of(error: DBAPIError) -> str | None:
    """PostgreSQL's code for what went wrong."""
    code: str | None = getattr(error.orig, "pgcode", None)
    return code
