"""Which statements are sent to the database."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import event

from tests.support.database_fixture import DatabaseFixture
from tests.support.statement_roles import without_role


@contextmanager
def statements(database: DatabaseFixture) -> Iterator[list[str]]:
    """What is sent meanwhile."""
    sent: list[str] = []

    def note(_: Any, __: Any, sql: str, *___: Any) -> None:
        sent.append(without_role(sql))

    event.listen(database.engine, "before_cursor_execute", note)
    try:
        yield sent
    finally:
        event.remove(database.engine, "before_cursor_execute", note)
