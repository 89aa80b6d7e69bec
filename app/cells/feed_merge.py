"""Merging the event streams of several cells into one, by time. Pure: the caller has the clock.

Within a cell the order is the cell's. Between cells it is that of the events' times: an event waits
until every other cell has one to compare it with, or long enough for those to have been read. So
events are out of order only if a cell is read, or answers, that much later than another.

A position holds one position per cell and the time of the last event: ``1763391234~a:17-4,b:9-1``.
What was not passed on yet is behind it, so a client that comes back with it misses nothing and gets
nothing twice. A cell that joined since is read from its beginning, without events that are much
older than the last one: those are about the cell, and the tenant was not there.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple

import orjson

from app.policy.placement import CELLS_OF_A_TENANT
from app.reads.events.message import place
from app.reads.events.position import of_event

#: Longer than cells rest between two reads.
HOLD_SECONDS = 0.6
#: Messages of a cell that may wait; a page of its feed fits on top.
ROOM = 50
#: Clocks of cells differ by less, and events are seen so soon after they happened.
LATE_SECONDS = 60
#: The position of a cell that was not there yet: behind what was moved there long after it ended
#: (`models.jobs.transfer`).
BEGINNING = str(of_event(2, 0))

PART = r"[a-z][a-z0-9-]{0,30}:[0-9a-f.-]{3,100}"
#: A tenant that moves from as many cells as it may live in to as many others is in all of them.
MERGED_POSITION = re.compile(
    rf"(\d{{1,12}})~({PART}(?:,{PART}){{0,{2 * CELLS_OF_A_TENANT - 1}}})", re.ASCII
)


class FeedPosition(NamedTuple):
    """How far a client has read the feeds of all cells."""

    #: When the last event happened that it got, in seconds.
    at: int
    #: By name of the cell.
    cells: Mapping[str, str]

    def __str__(self) -> str:
        return f"{self.at}~{','.join(f'{cell}:{at}' for cell, at in sorted(self.cells.items()))}"


def parse_feed_position(text: str) -> FeedPosition | None:
    """What a client sends back; None if it is no position of several cells."""
    found = MERGED_POSITION.fullmatch(text)
    if found is None:
        return None
    parts = [part.partition(":") for part in found[2].split(",")]
    return FeedPosition(int(found[1]), {cell: position for cell, _, position in parts})


class FeedMessage(NamedTuple):
    """One message of a cell's feed."""

    #: Of the cell, behind it.
    position: str
    #: Everything but its position; empty: it is that alone.
    lines: bytes
    #: When it happened, in seconds; of a position alone, that of the event before.
    at: float
    #: When it was received, by the caller's clock.
    received: float


@dataclass(slots=True)
class CellFeed:
    """What one cell has sent and is not passed on yet."""

    #: Of the last message that was passed on; None: it is not known yet.
    position: str | None
    #: Events before this are left out.
    since: float = 0.0
    #: Whether it is being read: nobody waits for one that is away.
    connected: bool = True
    waiting: deque[FeedMessage] = field(default_factory=deque)
    last_at: float = 0.0

    def add(self, data: bytes, now: float) -> None:
        """Whole messages, as the cell sends them."""
        for lines in data.split(b"\n\n"):
            message = parse_message(lines, self.last_at, now)
            if message is not None:
                self.last_at = message.at
                if message.lines and message.at < self.since:
                    message = message._replace(lines=b"")
                if self.waiting and not (message.lines or self.waiting[-1].lines):
                    self.waiting.pop()  # of two positions the later one says all
                self.waiting.append(message)


def parse_message(lines: bytes, last_at: float, now: float) -> FeedMessage | None:
    """A message without the blank line behind it; None if it has no position."""
    position, kept, at = "", [], last_at
    for line in lines.split(b"\n"):
        name, _, value = line.partition(b": ")
        if name == b"id":
            position = value.decode()
        elif name in (b"event", b"data"):
            kept.append(line)
        if name == b"data":
            at = seconds_of(orjson.loads(value).get("at")) or last_at
    return FeedMessage(position, b"\n".join(kept), at, now) if position else None


def seconds_of(moment: object) -> float | None:
    """A time of the API."""
    return datetime.fromisoformat(moment).timestamp() if isinstance(moment, str) else None


class FeedMerge:
    """The feeds of a tenant's cells, as one."""

    def __init__(self, cells: Collection[str], known: FeedPosition | None, now: float) -> None:
        """``known``: what the client has; None: it begins now, in seconds."""
        self._at = int(now) if known is None else known.at
        self.feeds = {cell: CellFeed(None if known is None else BEGINNING) for cell in cells}
        self._told = False
        if known is None:
            return
        for cell, feed in self.feeds.items():
            if cell in known.cells:
                feed.position = known.cells[cell]
            else:
                feed.since = known.at - LATE_SECONDS

    @property
    def position(self) -> FeedPosition | None:
        """Behind everything that was passed on; None until every cell has said where it begins."""
        found = {cell: feed.position or "" for cell, feed in self.feeds.items()}
        return FeedPosition(self._at, found) if all(found.values()) else None

    def has_room(self, cell: str) -> bool:
        """Whether to read more of a cell."""
        return len(self.feeds[cell].waiting) < ROOM

    def take(self, now: float) -> bytes:
        """What is to be sent now."""
        self._begin()
        position = self.position
        if position is None:
            return b""
        sent = [] if self._told else [place(str(position))]
        self._told = True
        sent += self._ready(now)
        return b"".join(sent)

    def _begin(self) -> None:
        """The first message of a cell says where its feed begins."""
        for feed in self.feeds.values():
            if feed.position is None and feed.waiting:
                feed.position = feed.waiting[0].position

    def _ready(self, now: float) -> Iterator[bytes]:
        while (cell := self._next(now)) is not None:
            feed = self.feeds[cell]
            message = feed.waiting.popleft()
            if message.position == feed.position and not message.lines:
                continue
            feed.position = message.position
            if not message.lines:
                yield place(str(self.position))
                continue
            self._at = max(self._at, int(message.at))
            yield b"id: %b\n%b\n\n" % (str(self.position).encode(), message.lines)

    def _next(self, now: float) -> str | None:
        """The cell whose first message is the next; None if it is not known yet."""
        first = self._first()
        return first if first is not None and now >= self._ready_at(first) else None

    def _first(self) -> str | None:
        """The cell whose first message is the earliest, of those that have some."""
        waiting = [cell for cell, feed in self.feeds.items() if feed.waiting]
        return min(waiting, key=lambda cell: (self.feeds[cell].waiting[0].at, cell), default=None)

    def _ready_at(self, cell: str) -> float:
        """When it is clear that no other cell has an earlier one; 0: it is."""
        silent = any(feed.connected and not feed.waiting for feed in self.feeds.values())
        return self.feeds[cell].waiting[0].received + HOLD_SECONDS if silent else 0.0

    def seconds_until_next(self, now: float) -> float | None:
        """How long until there is something to send, as far as is known; None: it is not."""
        first = self._first()
        if first is None or self.position is None:
            return None
        return max(0.0, self._ready_at(first) - now)
