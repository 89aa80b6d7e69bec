"""Live pages: a page is read and rendered once for all its viewers, and only while it has some.

Each viewer is sent the parts that have changed, as a server-sent event ``parts`` with HTML by name.
Not guaranteed: states between two renderings. While the state store is unavailable viewers get
``away`` and stay connected. A stream ends when the viewer loses access, at the next rendering.
"""

from __future__ import annotations

import logging
import select
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator

import orjson
from flask import Flask, g

from app.console.page import LivePage, PageRequest, render_parts
from app.errors import FairlineError, TooManyStreams
from app.reads.events.stream import KEEP_ALIVE_SECONDS
from models.store.errors import StateStoreError

logger = logging.getLogger(__name__)

#: Viewers of one process.
MOST_VIEWERS = 500
#: Of them, those of one tenant: none may take the places of all others.
MOST_OF_TENANT = 20
#: A page is rendered again after so many times as long as rendering took, so that ten pages stay
#: well below two percent of a core, whatever is in the tables; but no later than this, and earlier
#: for a viewer that comes, who may have just changed something.
REST_FACTOR = 1_000.0
LONGEST_REST_SECONDS = 20.0
#: Browsers reconnect after so long.
OPENING = b"retry: 2000\n\n"
KEEP_ALIVE = b": \n\n"
#: The state store is unavailable.
AWAY = "away"
#: What the page shows no longer exists, for example because its job was retired.
GONE = "gone"


class ViewedPage:
    """A page that has viewers, and its newest parts."""

    def __init__(self, page: LivePage, asked: PageRequest) -> None:
        self.page = page
        self.asked = asked
        #: Rises with every rendering, and when viewers have to be checked.
        self.version = 0
        #: Number of the newest rendering that began, and of the newest that ended.
        self.begun = 0
        self.rendered = 0
        #: A viewer has come since the newest rendering began.
        self.entered = threading.Event()
        self.parts: dict[str, str] = {}
        #: AWAY or GONE if there is nothing new, else empty.
        self.trouble = ""
        self.viewers = 0
        #: Until then it is read from the primary: a viewer has just changed something.
        self.newest_until = 0.0
        self.changed = threading.Condition()

    @property
    def tenant_id(self) -> int:
        """Whose page it is; 0 for the operators'."""
        return self.asked.tenant.id if self.asked.tenant else 0

    def publish(self, parts: dict[str, str], trouble: str = "") -> None:
        """Pass on what was rendered."""
        with self.changed:
            self.parts, self.trouble = parts, trouble
            self.rendered = self.begun
        self.wake_viewers()

    def wake_viewers(self) -> None:
        """Make every stream look at it, and at its viewer's access."""
        with self.changed:
            self.version += 1
            self.changed.notify_all()

    def wait(self, seen: int, seconds: float) -> bool:
        """Whether there was a version after ``seen`` within the time."""
        with self.changed:
            return self.changed.wait_for(lambda: self.version != seen, seconds)

    def begin(self) -> None:
        """Whoever comes from here on waits for the rendering after the next."""
        self.entered.clear()
        self.begun += 1

    def render(self) -> None:
        """Read and render it, and pass it on."""
        try:
            self.publish(render_parts(self.page, self.asked))
        except StateStoreError:
            self.publish(self.parts, AWAY)
        except FairlineError:
            self.publish(self.parts, GONE)
        except Exception:
            logger.exception("the page %s cannot be rendered", self.asked.url)
            self.publish(self.parts, AWAY)


class LivePages:
    """The viewed pages of one process."""

    def __init__(self, app: Flask, most_viewers: int = MOST_VIEWERS) -> None:
        self._app = app
        self._most_viewers = most_viewers
        self._viewed: dict[tuple[str, int], ViewedPage] = {}
        self._changing = threading.Lock()
        #: Number of viewers.
        self.viewers = 0
        self._of_tenants: Counter[int] = Counter()
        self._closed = False

    def watch(
        self,
        page: LivePage,
        asked: PageRequest,
        allowed: Callable[[], bool],
        newest_seconds: float = 0.0,
    ) -> Iterator[bytes]:
        """A viewer's stream; ``allowed`` says whether it may continue."""
        viewed = self._enter(page, asked)
        viewed.newest_until = max(viewed.newest_until, time.monotonic() + newest_seconds)
        stream = self._stream(viewed, allowed)
        next(stream)  # a generator that was never started would not run its ``finally``
        return stream

    def close(self) -> None:
        """End all streams: the process stops."""
        self._closed = True
        self.check_rights()

    def check_rights(self) -> None:
        """Make every stream check its viewer's access again: keys were revoked."""
        for viewed in list(self._viewed.values()):
            viewed.wake_viewers()

    def _stream(self, viewed: ViewedPage, allowed: Callable[[], bool]) -> Iterator[bytes]:
        known: dict[str, str] = {}
        seen = 0
        # A rendering that began before may be older than the page that the viewer has loaded.
        before = viewed.begun
        viewed.entered.set()
        sent_trouble = ""
        try:
            yield b""
            yield OPENING
            sent_at = time.monotonic()
            while True:
                rest = sent_at + KEEP_ALIVE_SECONDS - time.monotonic()
                # Nothing is sent while nothing changes: only this notices a closed connection.
                if rest <= 0 or not viewed.wait(seen, rest):
                    sent_at = time.monotonic()
                    yield KEEP_ALIVE
                    continue
                if self._closed or not allowed():
                    return
                seen, rendered = viewed.version, viewed.rendered
                parts, trouble = viewed.parts, viewed.trouble
                if rendered <= before:
                    continue
                if trouble and trouble != sent_trouble:
                    yield event(trouble, {})
                if trouble == GONE:
                    return
                fresh = {name: html for name, html in parts.items() if known.get(name) != html}
                if not trouble and (fresh or sent_trouble):
                    known.update(fresh)
                    sent_at = time.monotonic()
                    yield event("parts", fresh)
                sent_trouble = trouble
        finally:
            with self._changing:
                self.viewers -= 1
                viewed.viewers -= 1
                self._of_tenants -= Counter([viewed.tenant_id])

    def _enter(self, page: LivePage, asked: PageRequest) -> ViewedPage:
        fresh = ViewedPage(page, asked)
        key = (asked.url, fresh.tenant_id)
        with self._changing:
            if self._closed or self.viewers >= self._most_viewers:
                raise TooManyStreams
            if asked.tenant and self._of_tenants[asked.tenant.id] >= MOST_OF_TENANT:
                raise TooManyStreams("Too many open tabs with this tenant's pages.")
            self.viewers += 1
            self._of_tenants[fresh.tenant_id] += 1
            viewed = self._viewed.setdefault(key, fresh)
            if viewed is fresh:
                threading.Thread(
                    target=self._render, args=(key, viewed), name="live page", daemon=True
                ).start()
            viewed.viewers += 1
        return viewed

    def _render(self, key: tuple[str, int], viewed: ViewedPage) -> None:
        """Render the page again and again until it has no viewers."""
        rest = threading.Event()
        took, took_before = 0.0, 0.0
        with self._app.app_context():
            while True:
                # The shorter of two: one that had to wait says nothing about its cost.
                longest = rest_seconds(viewed.page.every_seconds, min(took, took_before))
                rest.wait(viewed.page.every_seconds)
                viewed.entered.wait(longest - viewed.page.every_seconds)
                with self._changing:
                    if not viewed.viewers:
                        del self._viewed[key]
                        return
                viewed.begin()
                began = time.monotonic()
                g.newest = began < viewed.newest_until
                viewed.render()
                took, took_before = time.monotonic() - began, took


def rest_seconds(every_seconds: float, took_seconds: float) -> float:
    """How long to wait until the next rendering."""
    return max(every_seconds, min(took_seconds * REST_FACTOR, LONGEST_REST_SECONDS))


def has_left(wire: socket.socket | None) -> bool:
    """Whether a viewer has closed its connection; otherwise only a write would notice."""
    if wire is None:
        return False
    try:
        readable, _, _ = select.select([wire], [], [], 0)
        return bool(readable) and wire.recv(1, socket.MSG_PEEK) == b""
    except (OSError, ValueError):  # closed by us
        return True


def event(name: str, document: object) -> bytes:
    return b"event: %s\ndata: %s\n\n" % (name.encode(), orjson.dumps(document))
