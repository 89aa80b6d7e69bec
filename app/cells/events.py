"""``/events`` of a tenant that lives in several cells: their feeds as one stream.

Each cell's feed is read by the cell's own application, whose limits and checks hold. A cell that is
away is asked again until it is back; what happened there follows. A client that begins needs all
cells, or its position would not be one of all. The stream ends when a cell's ends (a key was
revoked, the process stops) or when the tenant lives elsewhere: the client comes back at once, with
its position.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from app.api.http.sub_request import SUB_REQUEST, SubRequest
from app.cells.fan_out import BegunResponse, CellAnswer, begin, each, query_of, with_query
from app.cells.feed_merge import FeedMerge, FeedPosition, parse_feed_position
from app.cells.tenant_request import OtherAnswer, TenantRequest, missing_cells
from app.errors import invalid_field
from app.log_ids import CALLER
from app.reads.events.message import KEEP_ALIVE, OPENING
from app.reads.events.position import parse_position
from app.reads.events.stream import KEEP_ALIVE_SECONDS

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIApplication

logger = logging.getLogger(__name__)

HEADER, IN_ENVIRON = "Last-Event-ID", "HTTP_LAST_EVENT_ID"
#: How often a cell that is away is tried, and the placement is compared.
LOOK_SECONDS = 2.0


def merged_feed(asked: TenantRequest) -> WSGIApplication:
    """Follow all jobs of the tenant."""
    if asked.environ["REQUEST_METHOD"] == "HEAD":
        return asked.first(**of_position(asked, None))
    known = position_of(asked)
    merge = FeedMerge(asked.cells, known, time.time())
    streams = open_streams(asked, merge, needs_all=known is None)
    first = next(iter(streams.values()))
    return BegunResponse(first.status, first.headers, MergedStream(asked, merge, streams).pieces())


def position_of(asked: TenantRequest) -> FeedPosition | None:
    """How far the client has read; None: it begins."""
    text = asked.environ.get(IN_ENVIRON) or query_of(asked.environ).get("last_event_id")
    if not text:
        return None
    found = parse_feed_position(text)
    if found is None and parse_position(text) is not None:
        # Given out when the tenant lived in one cell; when that was is not known.
        found = FeedPosition(0, {former_cell(asked): text})
    if found is None:
        raise invalid_field(HEADER, "is not one this server gave out")
    return found


def former_cell(asked: TenantRequest) -> str:
    """The cell that the tenant lived in when it lived in one: it leaves it, or it was the first."""
    placement = asked.placement
    if placement.leaving:
        return placement.leaving[0]
    return next(cell for cell in asked.apps.cell_names() if cell in placement.weights)


def of_position(asked: TenantRequest, position: str | None) -> dict[str, Any]:
    """The change of a request that begins at a position of one cell."""
    return {IN_ENVIRON: position, **with_query(asked.environ, last_event_id=None)}


def open_streams(
    asked: TenantRequest, merge: FeedMerge, *, needs_all: bool
) -> dict[str, BegunResponse]:
    """The stream of each cell that answers."""
    counted = asked.counted_cell()
    copies = {
        cell: asked.copy(
            **of_position(asked, merge.feeds[cell].position),
            **{SUB_REQUEST: SubRequest(counted=cell == counted)},
        )
        for cell in asked.cells
    }
    opened = each(asked.apps, asked.cells, lambda cell, app: begin(app, copies[cell]))
    streams = {cell: one for cell, one in opened.items() if one.status == HTTPStatus.OK}
    for cell, one in opened.items():
        if cell not in streams:
            answer = CellAnswer(cell, one.status, one.headers, one.read())
            if asked.has_left(answer):
                del merge.feeds[cell]
            elif not answer.away:
                raise OtherAnswer(answer)
    missing = [cell for cell in merge.feeds if cell not in streams]
    if missing and (needs_all or not streams):
        raise missing_cells(missing)
    for cell in missing:
        merge.feeds[cell].connected = False
    return streams


class MergedStream:
    """The streams of several cells while a client reads them as one."""

    def __init__(
        self, asked: TenantRequest, merge: FeedMerge, streams: dict[str, BegunResponse]
    ) -> None:
        self._asked = asked
        self._merge = merge
        self._streams = streams
        self._changed = threading.Condition()
        #: One of the cells' streams has: what was read of it is still sent.
        self._ended = False
        #: The client has gone.
        self._closed = False
        # As the cells found out.
        caller = asked.environ.get(CALLER)
        self._tenant: str | None = getattr(getattr(caller, "tenant", None), "name", None)

    def pieces(self) -> Iterator[bytes]:
        """What to write. A stream that is never read from leaves nothing behind."""
        for cell in self._merge.feeds:
            threading.Thread(
                target=self._read, args=(cell,), name=f"events of {cell}", daemon=True
            ).start()
        try:
            yield OPENING
            sent_at = time.monotonic()
            while not self._has_moved():
                data = self._next()
                if data is None:
                    return
                if not data and time.monotonic() - sent_at >= KEEP_ALIVE_SECONDS:
                    data = KEEP_ALIVE
                if data:
                    yield data
                    sent_at = time.monotonic()
        finally:
            with self._changed:
                self._closed = True
                self._changed.notify_all()

    def _next(self) -> bytes | None:
        """What is there within a moment; None: it has ended."""
        with self._changed:
            now = time.monotonic()
            data = self._merge.take(now)
            if not data and not self._ended:
                wait = self._merge.seconds_until_next(now)
                self._changed.wait(LOOK_SECONDS if wait is None else min(wait, LOOK_SECONDS))
                data = self._merge.take(time.monotonic())
            if data:
                self._changed.notify_all()  # there is room again
            return None if self._ended and not data else data

    def _has_moved(self) -> bool:
        """Whether the tenant's cells are no longer those that are read."""
        if self._tenant is None:
            return False
        placement = self._asked.apps.placement_of(self._tenant)
        return placement is None or set(placement.weights) != set(self._asked.cells)

    def _read(self, cell: str) -> None:
        """Read one cell's stream until it ends, or the client has gone."""
        try:
            stream = self._streams.get(cell) or self._open_again(cell)
            if stream is None:
                return
            try:
                for data in stream.pieces:
                    if not self._keep(cell, data):
                        return
            finally:
                with suppress(Exception):  # it has ended, one way or another
                    stream.close()
        except Exception:
            logger.exception("events of cell %s cannot be read", cell)
        finally:
            with self._changed:
                self._ended = True
                self._changed.notify_all()

    def _keep(self, cell: str, data: bytes) -> bool:
        """Keep what a cell has sent; False: nobody wants it any more."""
        with self._changed:
            self._merge.feeds[cell].add(data, time.monotonic())
            self._changed.notify_all()
            while not self._closed and not self._merge.has_room(cell):
                self._changed.wait(LOOK_SECONDS)
            return not self._closed

    def _open_again(self, cell: str) -> BegunResponse | None:
        """The stream of a cell that was away, once it is back; None: the client has gone."""
        while True:
            with self._changed:
                self._changed.wait(LOOK_SECONDS)
                if self._closed or self._ended:
                    return None
                position = self._merge.feeds[cell].position
            app = self._asked.app(cell)
            if app is None:
                continue
            stream = begin(app, self._asked.copy(**of_position(self._asked, position)))
            if stream.status == HTTPStatus.OK:
                with self._changed:
                    self._merge.feeds[cell].connected = True
                return stream
            answer = CellAnswer(cell, stream.status, stream.headers, stream.read())
            if not answer.away:
                return None  # the client finds out why when it comes back
