"""Long requests of a tenant (lists, exports, erasures, replays …) take turns in each process.

So a tenant that sends them without a pause leaves time to the others.

A process serves one request at a time between two waits. A page of 500 jobs takes 10 ms, and as
many connections as ask for one would be served before a poll that came after them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from functools import wraps
from threading import BoundedSemaphore
from typing import ParamSpec, TypeVar
from weakref import WeakValueDictionary

from app.api.http.state import note_waited, time_left
from app.api.services import current_services, current_tenant
from models.store.errors import StateStoreUnavailable

#: Long reads of one tenant that a process serves at once; more of them wait.
READS_AT_ONCE = 1
#: Rows that are written without a pause: half a millisecond for jobs.
ROWS_AT_ONCE = 50

Row = TypeVar("Row")
Given = ParamSpec("Given")
Returned = TypeVar("Returned")

#: By application and tenant; those that nobody uses are forgotten. A process has one application
#: for each cell, and one cell must not wait for another.
_reading: WeakValueDictionary[tuple[int, int], BoundedSemaphore] = WeakValueDictionary()


def long_read(view: Callable[Given, Returned]) -> Callable[Given, Returned]:
    """Declares a view of tenants that takes long: it waits for its turn, no longer than for the
    database."""

    @wraps(view)
    def waiting(*args: Given.args, **kwargs: Given.kwargs) -> Returned:
        whose = id(current_services()), current_tenant().id
        turn = _reading.setdefault(whose, BoundedSemaphore(READS_AT_ONCE))
        began = time.monotonic()
        if not turn.acquire(timeout=time_left()):
            raise StateStoreUnavailable
        try:
            note_waited(time.monotonic() - began)
            return view(*args, **kwargs)
        finally:
            turn.release()

    return waiting


def in_turns(rows: Iterable[Row]) -> Iterator[Row]:
    """The rows; after some of them, requests that wait for this process have their turn."""
    for number, row in enumerate(rows):
        if number and number % ROWS_AT_ONCE == 0:
            time.sleep(0)  # the loop goes on to other greenlets
        yield row
