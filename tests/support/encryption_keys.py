"""Keys for tests of encryption at rest, and a search for readable content in everything stored."""

from __future__ import annotations

import os
import secrets
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from models.encryption.values import ring_of, use_key_ring
from tests.support.database_fixture import DatabaseFixture

#: Every column that may hold content, of every table.
CONTENT_COLUMNS = """
    SELECT table_name AS "table", column_name AS "column" FROM information_schema.columns
    WHERE table_schema = 'public' AND data_type IN
        ('text', 'character varying', 'json', 'jsonb', 'bytea', 'ARRAY', 'USER-DEFINED')
      AND table_name IN (SELECT tablename FROM pg_tables WHERE schemaname = 'public')
"""
#: Also as PostgreSQL writes the bytes of a bytea.
FIND = """
    SELECT count(*) AS rows FROM "{table}"
    WHERE strpos("{column}"::text, %s) > 0 OR strpos("{column}"::text, %s) > 0
"""


def new_key(name: str) -> str:
    """A key as the setting has it."""
    return f"{name}:{b64encode(secrets.token_bytes(32)).decode()}"


@contextmanager
def encrypting(setting: str) -> Iterator[None]:
    """Use these keys in the process of the test."""
    before = use_key_ring(ring_of(setting))
    try:
        yield
    finally:
        use_key_ring(before)


def python_path() -> str:
    """For processes started by a test: the project and what the test itself can import."""
    return os.pathsep.join((".", *filter(None, [os.environ.get("PYTHONPATH")])))


def readable_in(database: DatabaseFixture, marker: str, *folders: Path) -> list[str]:
    """Columns and files in which the marker can be read."""
    found = []
    for row in database.query(CONTENT_COLUMNS):
        sql = FIND.format(table=row.table, column=row.column)
        if database.query(sql, marker, marker.encode().hex())[0].rows:
            found.append(f"{row.table}.{row.column}")
    for folder in folders:
        files = [path for path in folder.rglob("*") if path.is_file()]
        found += [str(path) for path in files if marker.encode() in path.read_bytes()]
    return sorted(found)
