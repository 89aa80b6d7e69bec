"""Bounded access to the database for the cold routes: slower than ``read_seconds`` is a 503."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from gevent import Timeout
from sqlalchemy import Connection, Engine

from app.api.services import current_services
from models.store.errors import StateStoreUnavailable
from models.store.session import connect


@contextmanager
def write_state() -> Iterator[Engine]:
    """The engine, for one change.

    Waiting for a place in the pool, for a connection and for a statement are each bounded;
    this bounds their sum.
    """
    services = current_services()
    with Timeout(services.read_seconds, StateStoreUnavailable()):
        yield services.engine


@contextmanager
def read_state() -> Iterator[Connection]:
    """A connection for the reads of one request."""
    with write_state() as engine, connect(engine) as connection:
        yield connection
