"""The baseline's state: one table, one SQLAlchemy pool a process, of 20 unless told otherwise."""

from __future__ import annotations

import os

import psycopg2.extensions
from gevent.monkey import is_module_patched
from gevent.socket import wait_read, wait_write
from sqlalchemy import (
    JSON,
    Column,
    DateTime,
    Engine,
    MetaData,
    String,
    Table,
    Text,
    Uuid,
    create_engine,
    func,
)
from sqlalchemy.pool import QueuePool

from loadtest.baselines.plain_celery.watched_pool import watch_in

POOL_SIZE = int(os.environ.get("PLAIN_POOL_SIZE", "20"))
#: Where each process says who waits for its pool; nobody is told unless it is set.
POOL_FOLDER = os.environ.get("PLAIN_POOL_FOLDER")

metadata = MetaData()
applications = Table(
    "applications",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column("candidate", String(200), nullable=False),
    Column("role", String(200), nullable=False),
    Column("payload", JSON, nullable=False),
    Column("status", Text, nullable=False, server_default="pending"),
    Column("created_at", DateTime(timezone=True), nullable=False, server_default=func.now()),
    Column("finished_at", DateTime(timezone=True)),
)


def open_engine() -> Engine:
    """The process's engine; green if the process is."""
    if is_module_patched("socket"):
        psycopg2.extensions.set_wait_callback(wait_green)
    return create_engine(
        os.environ["PLAIN_DATABASE_URL"],
        poolclass=watch_in(POOL_FOLDER) if POOL_FOLDER else QueuePool,
        pool_size=POOL_SIZE,
        max_overflow=0,
    )


def wait_green(connection: psycopg2.extensions.connection) -> None:
    """What psycogreen does: let other greenlets run while the server works."""
    while (state := connection.poll()) != psycopg2.extensions.POLL_OK:
        if state == psycopg2.extensions.POLL_READ:
            wait_read(connection.fileno())
        else:
            wait_write(connection.fileno())
