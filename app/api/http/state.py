"""Reads of the state store for the cold pages, none slower than a caller is willing to wait."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from gevent import Timeout
from sqlalchemy import Connection

from app.api.services import current_services
from models.store.errors import StateStoreUnavailable
from models.store.session import connect


def patience(seconds: float) -> Timeout:
    """Ends what runs inside it when the caller should hear that the state store is away.

    Waiting for a place in the pool, for a connection and for a statement are each bounded;
    this bounds their sum.
    """
    return Timeout(seconds, StateStoreUnavailable())


@contextmanager
def read_state() -> Iterator[Connection]:
    """A connection for the reads of one page."""
    with (
        patience(current_services().read_seconds),
        connect(current_services().engine) as connection,
    ):
        yield connection
