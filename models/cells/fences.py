"""Fence of a tenant's move between cells: a runner that was replaced can write nothing more.

Everything that a runner writes in a cell is a transaction that begins with its own number in the
row ``runner/<tenant>`` of ``transfer_marks``. The row is locked until the commit, so of an old
runner and its successor one has written everything before the other begins, and once the
successor's number is there the old one is refused. The row stays when the move has ended: a process
that was frozen all the time may wake up at any later time.

The numbers come from the registry. Where that lost commits in a failover, a cell may know a higher
one; whoever has the lease then raises its number: see `models.cells.moves`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import Connection, Engine

from models.store.session import transaction

ENTER = """
    INSERT INTO transfer_marks AS known (mark, number) VALUES (%(mark)s, %(fence)s)
    ON CONFLICT (mark) DO UPDATE SET number = excluded.number, at = now()
    WHERE known.number <= excluded.number
    RETURNING number
"""
READ = "SELECT number FROM transfer_marks WHERE mark = %(mark)s"


class StaleRunner(Exception):
    """Another runner has taken the move over, or a cell has seen a higher fence."""

    def __init__(self, known: int) -> None:
        super().__init__(f"a cell has seen the fence {known}")
        self.known = known


@contextmanager
def fenced(engine: Engine, tenant: str, fence: int) -> Iterator[Connection]:
    """A transaction in a cell, as the runner with this number; `StaleRunner` if it was replaced."""
    mark = {"mark": f"runner/{tenant}", "fence": fence}
    with transaction(engine) as connection:
        if connection.exec_driver_sql(ENTER, mark).first() is None:
            raise StaleRunner(connection.exec_driver_sql(READ, mark).scalar_one())
        yield connection
