"""Recent counts of runs, failures and crashes (table ``tallies``)."""

from __future__ import annotations

from sqlalchemy import Connection

from models.tallies import TallyKind
from tasks.retry.circuit import Window

#: A bucket belongs to the window in which it begins: a window is short by up to one bucket.
READ_WINDOWS = """
    SELECT name, sum(total)::bigint AS total, sum(amount)::bigint AS amount FROM tallies
    WHERE kind = %(kind)s AND bucket > now() - make_interval(secs => %(seconds)s)
    GROUP BY name
"""


def read_windows(connection: Connection, kind: TallyKind, seconds: float) -> dict[str, Window]:
    """The counts of the last ``seconds``, by name."""
    rows = connection.exec_driver_sql(READ_WINDOWS, {"kind": kind, "seconds": seconds})
    return {row.name: Window(row.total, row.amount) for row in rows}
