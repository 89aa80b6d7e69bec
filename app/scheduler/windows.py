"""Windows: what the workers counted lately, read from the tallies."""

from __future__ import annotations

from sqlalchemy import Connection

from tasks.retry import Window

#: A bucket belongs to the window in which it begins: a window is short by up to one bucket.
READ_WINDOWS = """
    SELECT name, sum(total)::bigint, sum(bad)::bigint FROM tallies
    WHERE kind = %(kind)s AND bucket > now() - make_interval(secs => %(seconds)s)
    GROUP BY name
"""
READ_VERDICTS = "SELECT name FROM verdicts WHERE kind = %(kind)s"


def read_windows(taken: Connection, kind: str, seconds: float) -> dict[str, Window]:
    """The counts of the last ``seconds``, by name."""
    rows = taken.exec_driver_sql(READ_WINDOWS, {"kind": kind, "seconds": seconds})
    return {row[0]: Window(row[1], row[2]) for row in rows}


def read_verdicts(taken: Connection, kind: str) -> set[str]:
    """Whoever has a verdict of this kind."""
    return {row[0] for row in taken.exec_driver_sql(READ_VERDICTS, {"kind": kind})}
