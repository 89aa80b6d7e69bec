"""Writes to the database from a process that may be stuck, over a separate connection.

For a process about to be killed, and for the parent of one that was. The connection is
asynchronous and polled: no hub, lock or pool of the process takes part. If the state store does
not answer in time, nothing is written: the leases expire and the reaper takes over.

Imports no more than the driver: see :mod:`tasks.watchdog.presence_keeper`.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import psycopg2
import psycopg2.extensions
import psycopg2.extras

from models import database_url
from models.store.errors import StateStoreUnavailable, server_is_lost
from models.store.roles import DatabaseRole, role_option
from tasks.process import native_sleep

if TYPE_CHECKING:
    from sqlalchemy import URL

    from models.jobs.claim import JobRef

#: How long to try.
EMERGENCY_SECONDS = 5.0
POLL_SECONDS = 0.005

Statement = tuple[str, Mapping[str, Any]]


def connect_arguments(url: URL) -> dict[str, Any]:
    """The URL as psycopg2 takes it."""
    return {
        **database_url.connect_arguments(url),
        "options": f"-c timezone=UTC -c statement_timeout=4000{role_option(DatabaseRole.WORKER)}",
    }


def ref_parameters(refs: Iterable[JobRef], **more: Any) -> dict[str, Any]:
    """Parameters of a statement about some leases, in the lock order of a claim."""
    ordered = sorted(refs)
    return {"ids": [ref.id for ref in ordered], "leases": [ref.lease for ref in ordered], **more}


def write_now(
    arguments: Mapping[str, Any],
    statements: Sequence[Statement],
    seconds: float = EMERGENCY_SECONDS,
) -> list[list[Any]]:
    """Run the statements, each in its own transaction; the rows of each, with named columns.

    One that fails keeps none after it from being tried: its error is raised at the end.
    """
    deadline = time.monotonic() + seconds
    answers = []
    failure: psycopg2.Error | None = None
    try:
        connection = _connect(arguments, deadline)
        try:
            cursor = connection.cursor(cursor_factory=psycopg2.extras.NamedTupleCursor)
            for sql, parameters in statements:
                try:
                    cursor.execute(sql, parameters)
                    _wait(connection, deadline)
                except psycopg2.Error as error:
                    if connection.closed:
                        raise
                    failure = failure or error
                    continue
                answers.append(list(cursor.fetchall()) if cursor.description else [])
        finally:
            connection.close()
        if failure is not None:
            raise failure
    except psycopg2.Error as error:
        if isinstance(error, psycopg2.OperationalError) or server_is_lost(error.pgcode):
            raise StateStoreUnavailable(str(error).strip()) from error
        raise
    return answers


def _connect(arguments: Mapping[str, Any], deadline: float) -> Any:
    """A connection to the first server that answers, each with its share of the time."""
    *others, last = database_url.one_server_each(arguments)
    for place, server in enumerate(others):
        now = time.monotonic()
        try:
            return _connect_one(server, now + (deadline - now) / (len(others) + 1 - place))
        except (psycopg2.OperationalError, StateStoreUnavailable):
            continue
    return _connect_one(last, deadline)


def _connect_one(server: Mapping[str, Any], deadline: float) -> Any:
    connection = psycopg2.connect(**server, async_=True)
    try:
        _wait(connection, deadline)
    except BaseException:
        connection.close()
        raise
    return connection


def _wait(connection: psycopg2.extensions.connection, deadline: float) -> None:
    while connection.poll() != psycopg2.extensions.POLL_OK:
        if time.monotonic() > deadline:
            raise StateStoreUnavailable
        native_sleep(POLL_SECONDS)
