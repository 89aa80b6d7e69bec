"""Recent counts of runs, failures and crashes (table ``tallies``) and active restrictions."""

from __future__ import annotations

from sqlalchemy import Connection

from tasks.retry import Window

#: A bucket belongs to the window in which it begins: a window is short by up to one bucket.
READ_WINDOWS = """
    SELECT name, sum(total)::bigint AS total, sum(bad)::bigint AS bad FROM tallies
    WHERE kind = %(kind)s AND bucket > now() - make_interval(secs => %(seconds)s)
    GROUP BY name
"""
READ_VERDICTS = "SELECT name FROM verdicts WHERE kind = %(kind)s"


def read_windows(connection: Connection, kind: str, seconds: float) -> dict[str, Window]:
    """The counts of the last ``seconds``, by name."""
    rows = connection.exec_driver_sql(READ_WINDOWS, {"kind": kind, "seconds": seconds})
    return {row.name: Window(row.total, row.bad) for row in rows}


def read_verdicts(connection: Connection, kind: str) -> set[str]:
    """Names with a restriction of this kind."""
    return {row.name for row in connection.exec_driver_sql(READ_VERDICTS, {"kind": kind})}
