"""Write to the database from a process that may be stuck, over a connection of its own.

For a process about to be killed, and for the parent of one that was.

The connection is asynchronous and asked again and again: no hub, no lock and no pool of the
process takes part. It is fenced like every other settlement. If the state store does not
answer in time, nothing is said: the leases run out and the reaper judges.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import psycopg2
import psycopg2.extensions
import psycopg2.extras
from sqlalchemy import URL

from models.store.errors import StateStoreUnavailable
from tasks.process import native_sleep

#: How long to try.
EMERGENCY_SECONDS = 5.0
#: Rest between two looks for the answer.
POLL_SECONDS = 0.005

Statement = tuple[str, Mapping[str, Any]]


def connect_arguments(url: URL) -> dict[str, Any]:
    """The URL as psycopg2 takes it."""
    arguments: dict[str, Any] = url.translate_connect_args(username="user", database="dbname")
    return {**arguments, **url.query, "options": "-c timezone=UTC -c statement_timeout=4000"}


def write_now(
    arguments: Mapping[str, Any],
    statements: Sequence[Statement],
    seconds: float = EMERGENCY_SECONDS,
) -> list[list[Any]]:
    """Run the statements, each committed by itself; the rows of each, with named columns."""
    deadline = time.monotonic() + seconds
    answers = []
    try:
        connection = psycopg2.connect(**arguments, async_=True)
        try:
            _wait(connection, deadline)
            cursor = connection.cursor(cursor_factory=psycopg2.extras.NamedTupleCursor)
            for sql, parameters in statements:
                cursor.execute(sql, parameters)
                _wait(connection, deadline)
                answers.append(list(cursor.fetchall()) if cursor.description else [])
        finally:
            connection.close()
    except psycopg2.OperationalError as error:
        raise StateStoreUnavailable(str(error).strip()) from error
    return answers


def _wait(connection: psycopg2.extensions.connection, deadline: float) -> None:
    while connection.poll() != psycopg2.extensions.POLL_OK:
        if time.monotonic() > deadline:
            raise StateStoreUnavailable
        native_sleep(POLL_SECONDS)
