"""Bounded access to the database for the cold routes: slower than ``read_seconds`` is a 503.

What decides anything, or follows a job, reads the primary: who was told that a job was accepted
finds it. Lists and leaderboards may be read from a standby.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from flask import Response, g, has_request_context, request
from gevent import Timeout
from sqlalchemy import Connection, Engine

from app.api.services import current_services
from models.store.errors import StateStoreError, StateStoreUnavailable
from models.store.session import connect

#: A browser that has just changed something brings this cookie, as long as a standby may be behind.
CHANGED_COOKIE = "fairline_changed"
LAG_HEADER = "Fairline-Lag"
#: What is left to a request that has waited long for its turn.
LEAST_SECONDS = 0.05


def time_left() -> float:
    """How long the request may still wait for the database."""
    return current_services().read_seconds - float(g.get("waited_seconds", 0.0))


def note_waited(seconds: float) -> None:
    """The request has waited for its turn."""
    g.waited_seconds = seconds


@contextmanager
def write_state() -> Iterator[Engine]:
    """The engine, for one change.

    Waiting for a turn, for a place in the pool, for a connection and for a statement are each
    bounded; this bounds their sum.
    """
    services = current_services()
    with Timeout(max(LEAST_SECONDS, time_left()), StateStoreUnavailable()):
        yield services.engine


@contextmanager
def read_state() -> Iterator[Connection]:
    """A connection for the reads of one request."""
    with write_state() as engine, connect(engine) as connection:
        yield connection


@contextmanager
def read_standby() -> Iterator[Connection]:
    """A connection for reads that may be a moment old: to a standby that is near enough, if any."""
    services = current_services()
    standby = services.standby
    found: tuple[Connection, float] | None = None
    began = time.monotonic()
    try:
        with write_state() as engine, ExitStack() as stack:
            if standby is not None and not wants_newest():
                found = standby.take(stack)
            connection, lag = found or (stack.enter_context(connect(engine)), 0.0)
            if standby is not None:
                g.read_lag = lag
            yield connection
    except StateStoreError as error:
        if standby is not None and found is not None:
            standby.note_failure(error)
            # What is slow there would be slow on the primary, and must not burden it.
            g.repeat_on_primary = time.monotonic() - began < services.read_seconds / 2
        raise


def repeats_on_primary() -> bool:
    """Whether the request failed at the standby, and may be handled again without it."""
    return request.method in ("GET", "HEAD") and bool(g.get("repeat_on_primary"))


def wants_newest() -> bool:
    """Whether to read the primary, say because the client wants to see what it has just changed.

    ``g.newest``: the same of a live page, which is rendered without a request.
    """
    if not has_request_context():
        return bool(g.get("newest"))
    if repeats_on_primary():
        return True
    return bool(request.cache_control.no_cache) or CHANGED_COOKIE in request.cookies


def tell_lag(response: Response) -> Response:
    """Say how old, at most, what was read is; nothing where there is no standby."""
    if (lag := g.get("read_lag")) is not None:
        response.headers[LAG_HEADER] = f"{math.ceil(lag * 10) / 10:.1f}"  # at most
    return response
