"""Reads of the state store for the cold pages, none slower than a caller is willing to wait."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from flask import current_app
from gevent import Timeout
from sqlalchemy import Connection

from models.errors import StateStoreUnavailable
from models.session import connection


def patience() -> Timeout:
    """Ends what runs inside it when the caller should hear that the state store is away.

    Waiting for a place in the pool, for a connection and for a statement are each bounded;
    this bounds their sum.
    """
    return Timeout(current_app.config["READ_SECONDS"], StateStoreUnavailable())


@contextmanager
def read_state() -> Iterator[Connection]:
    """A connection for the reads of one page."""
    with patience(), connection(current_app.extensions["fairline"].engine) as taken:
        yield taken
