"""The last word of a process about to be killed, written past everything that may be stuck.

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
from sqlalchemy import URL

from models.errors import StateStoreUnavailable
from tasks.runtime.process import native_sleep

#: How long to try.
LAST_WORD_SECONDS = 5.0
#: Rest between two looks for the answer.
POLL_SECONDS = 0.005

#: Innocent neighbours go back to the line. A claimed one counts a deferral, so that its next run
#: is not taken for the first. One that is still dispatched has a claim on its way: either the
#: claim commits first, and this statement waits for the row and finds it running; or the claim
#: finds the job queued and takes nothing.
RELEASE = """
    UPDATE jobs AS job
    SET status = CASE WHEN job.cancel_requested_at IS NOT NULL THEN 'cancelled'::job_status
                      ELSE 'queued'::job_status END,
        finished_at = CASE WHEN job.cancel_requested_at IS NOT NULL THEN now() END,
        lease_expires_at = NULL,
        deferrals = job.deferrals + (job.status::text = 'running')::int
    FROM unnest(%(ids)s::uuid[], %(leases)s::int[]) AS held (id, lease)
    WHERE job.id = held.id AND job.lease = held.lease
      AND (job.status::text = 'running' AND job.worker = %(worker)s
           OR job.status::text = 'dispatched')
"""

Statement = tuple[str, Mapping[str, Any]]


def connect_arguments(url: URL) -> dict[str, Any]:
    """The URL as psycopg2 takes it."""
    arguments: dict[str, Any] = url.translate_connect_args(username="user", database="dbname")
    return {**arguments, **url.query, "options": "-c timezone=UTC -c statement_timeout=4000"}


def say(
    arguments: Mapping[str, Any],
    statements: Sequence[Statement],
    seconds: float = LAST_WORD_SECONDS,
) -> list[list[tuple[Any, ...]]]:
    """Run the statements, each committed by itself; the rows of each."""
    deadline = time.monotonic() + seconds
    answers = []
    try:
        connection = psycopg2.connect(**arguments, async_=True)
        try:
            _wait(connection, deadline)
            cursor = connection.cursor()
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
