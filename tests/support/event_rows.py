"""Rows of ``events`` and ends of jobs as the processes write them; a database closed to all."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg2
from sqlalchemy import Connection

from app.stack.postgres import EmbeddedPostgres
from app.stack.services import Running
from models.jobs.admit import admit_group
from models.jobs.claim import JobRef
from models.jobs.ids import new_id
from models.jobs.submission import Submission, SubmissionGroup
from tests.support.database_fixture import DatabaseFixture

#: Legal moves from the line to each end.
WAYS = {
    "succeeded": ("dispatched", "running", "succeeded"),
    "dead": ("dispatched", "running", "dead"),
    "cancelled": ("cancelled",),
    "expired": ("expired",),
}


def submit_many(database: DatabaseFixture, count: int) -> list[str]:
    """Jobs in line, in the order of their ids."""
    jobs = tuple(Submission(new_id(), 1, "echo", "medium", "{}") for _ in range(count))
    admit_group(database.engine, [SubmissionGroup(jobs)], False)
    return sorted(job.id for job in jobs)


def start(database: DatabaseFixture) -> JobRef:
    """A job that runs; the leader of a database that several tests share may be out of date."""
    database.leader.run_once(0.0)
    return database.start().ref


def end(database: DatabaseFixture, status: str = "cancelled", **fields: Any) -> str:
    """A job that has just come to an end; its id."""
    job_id = database.submit(**fields)
    bring(database, job_id, status)
    return job_id


def bring(database: DatabaseFixture, job_id: str, status: str) -> None:
    """Move a job from the line to its end."""
    for step in WAYS[status]:
        database.execute(
            "UPDATE jobs SET status = %s, finished_at = now() WHERE id = %s", step, job_id
        )


def end_in(connection: Connection, ids: Iterable[str]) -> None:
    """End jobs in a transaction that stays open."""
    connection.exec_driver_sql(
        "UPDATE jobs SET status = 'cancelled', finished_at = now() WHERE id = ANY (%s::uuid[])",
        (list(ids),),
    )


def announce(database: DatabaseFixture, kind: str, tenant_id: int, detail: str = "{}") -> None:
    """Something else a tenant should hear of; tenant 0 is everybody."""
    database.execute(
        "INSERT INTO events (tenant_id, kind, detail) VALUES (%s, %s, %s)", tenant_id, kind, detail
    )


@contextmanager
def locked_out(database: DatabaseFixture, postgres: Running[EmbeddedPostgres]) -> Iterator[None]:
    """Nobody has, or gets, a connection to the database."""
    name = database.engine.url.database

    def order(sql: str, *parameters: Any) -> None:
        connection = psycopg2.connect(
            dbname="postgres", user="postgres", host=str(postgres.service.sockets), port=5432
        )
        connection.autocommit = True
        with connection.cursor() as cursor:
            cursor.execute(sql, parameters)
        connection.close()

    order(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS false')
    try:
        order("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", name)
        yield
    finally:
        order(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS true')
        database.engine.dispose()
