"""Locks that somebody holds for as long as a test wants: their session has no time-out."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg2

from tests.support.database_fixture import DatabaseFixture


@contextmanager
def held_lock(database: DatabaseFixture, sql: str, *parameters: str) -> Iterator[None]:
    """Hold what ``sql`` locks; nothing is changed in the end."""
    url = database.engine.url.render_as_string(hide_password=False)
    holder = psycopg2.connect(url.replace("+psycopg2", ""))
    try:
        holder.cursor().execute(sql, parameters)
        yield
        holder.rollback()
    finally:
        holder.close()
