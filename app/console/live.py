"""Live pages: everybody who looks at the same page is told the same, read and rendered once.

A scene is a page that somebody watches. While it has viewers, a greenlet renders its live parts
every few seconds; each viewer is sent those that are not what it was sent before, as a
server-sent event ``parts`` with HTML by name. Without viewers there is no scene and no cost.

Not guaranteed: states between two looks. A viewer that reads slowly is left out of some and then
told the newest. While the state store is away viewers are told so (``away``) and stay. A stream
ends when the visitor's right does, at the next look.
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
from flask import Flask

from app.console.page import LivePage, PageRequest, render_parts
from app.errors import FairlineError, TooManyStreams
from app.reads.events.stream import KEEP_ALIVE_SECONDS
from models.store.errors import StateStoreError

logger = logging.getLogger(__name__)

#: Viewers of one process.
MOST_VIEWERS = 500
#: Of them, those of one tenant: none may take the places of all others.
MOST_OF_TENANT = 20
#: A scene rests so many times as long as a look took, so that ten of them stay well below two
#: percent of a core, whatever is in the tables; but no longer than this.
REST_FACTOR = 1_000.0
LONGEST_REST_SECONDS = 20.0
#: Browsers come back after so long.
OPENING = b"retry: 2000\n\n"
KEEP_ALIVE = b": \n\n"
#: The state store is away.
AWAY = "away"
#: The page is no more, say because its job was removed.
GONE = "gone"


class Scene:
    """A page that somebody watches."""

    def __init__(self, page: LivePage, asked: PageRequest) -> None:
        self.page = page
        self.asked = asked
        #: Rises with every look.
        self.version = 0
        self.parts: dict[str, str] = {}
        #: Empty, or why there is nothing new.
        self.trouble = ""
        self.viewers = 0
        self.changed = threading.Condition()

    def tell(self, parts: dict[str, str], trouble: str = "") -> None:
        """What the last look has shown."""
        with self.changed:
            self.parts, self.trouble = parts, trouble
            self.version += 1
            self.changed.notify_all()

    def wait(self, seen: int, seconds: float) -> bool:
        """Whether there was a look after the version ``seen``, within the time."""
        with self.changed:
            return self.changed.wait_for(lambda: self.version != seen, seconds)


class Stage:
    """The scenes of one process."""

    def __init__(self, app: Flask, most_viewers: int = MOST_VIEWERS) -> None:
        self._app = app
        self._most_viewers = most_viewers
        self._scenes: dict[tuple[str, int], Scene] = {}
        self._changing = threading.Lock()
        self._viewers = 0
        self._of_tenants: Counter[int] = Counter()
        self._closed = False

    @property
    def viewers(self) -> int:
        """How many look at something."""
        return self._viewers

    def watch(
        self, page: LivePage, asked: PageRequest, allowed: Callable[[], bool]
    ) -> Iterator[bytes]:
        """A viewer's stream; ``allowed`` says whether it may go on."""
        stream = self._stream(self._enter(page, asked), allowed)
        next(stream)  # a generator that was never begun would not leave the scene either
        return stream

    def close(self) -> None:
        """End all streams: the process stops."""
        self._closed = True
        self.check_rights()

    def check_rights(self) -> None:
        """Have every viewer ask anew whether it may go on: keys were revoked."""
        for scene in list(self._scenes.values()):
            scene.tell(scene.parts, scene.trouble)

    def _stream(self, scene: Scene, allowed: Callable[[], bool]) -> Iterator[bytes]:
        known: dict[str, str] = {}
        seen = 0
        told_trouble = ""
        try:
            yield b""
            yield OPENING
            told_at = time.monotonic()
            while True:
                rest = told_at + KEEP_ALIVE_SECONDS - time.monotonic()
                # Looks that show nothing new say nothing: who has gone is noticed by this alone.
                if rest <= 0 or not scene.wait(seen, rest):
                    told_at = time.monotonic()
                    yield KEEP_ALIVE
                    continue
                if self._closed or not allowed():
                    return
                seen, parts, trouble = scene.version, scene.parts, scene.trouble
                if trouble and trouble != told_trouble:
                    yield event(trouble, {})
                if trouble == GONE:
                    return
                fresh = {name: html for name, html in parts.items() if known.get(name) != html}
                if not trouble and (fresh or told_trouble):
                    known.update(fresh)
                    told_at = time.monotonic()
                    yield event("parts", fresh)
                told_trouble = trouble
        finally:
            self._exit(scene)

    def _enter(self, page: LivePage, asked: PageRequest) -> Scene:
        key = (asked.url, asked.tenant.id if asked.tenant else 0)
        with self._changing:
            if self._closed or self._viewers >= self._most_viewers:
                raise TooManyStreams
            if asked.tenant and self._of_tenants[asked.tenant.id] >= MOST_OF_TENANT:
                raise TooManyStreams("Too many tabs follow this tenant's pages.")
            self._viewers += 1
            self._of_tenants[key[1]] += 1
            scene = self._scenes.get(key)
            if scene is None:
                scene = self._scenes[key] = Scene(page, asked)
                threading.Thread(
                    target=self._play, args=(key, scene), name="scene", daemon=True
                ).start()
            scene.viewers += 1
        return scene

    def _exit(self, scene: Scene) -> None:
        with self._changing:
            self._viewers -= 1
            scene.viewers -= 1
            self._of_tenants -= Counter([scene.asked.tenant.id if scene.asked.tenant else 0])

    def _play(self, key: tuple[str, int], scene: Scene) -> None:
        """Look until nobody watches any more."""
        rest = threading.Event()
        took, took_before = 0.0, 0.0
        with self._app.app_context():
            while True:
                # The shorter of two: one that was kept waiting says nothing about its cost.
                rest.wait(rest_seconds(scene.page.every_seconds, min(took, took_before)))
                with self._changing:
                    if not scene.viewers:
                        del self._scenes[key]
                        return
                began = time.monotonic()
                try:
                    scene.tell(render_parts(scene.page, scene.asked))
                except StateStoreError:
                    scene.tell(scene.parts, AWAY)
                except FairlineError:
                    scene.tell(scene.parts, GONE)
                except Exception:
                    logger.exception("the page %s cannot be rendered", scene.asked.url)
                    scene.tell(scene.parts, AWAY)
                took, took_before = time.monotonic() - began, took


def rest_seconds(every_seconds: float, look_seconds: float) -> float:
    """How long to wait until the next look."""
    return max(every_seconds, min(look_seconds * REST_FACTOR, LONGEST_REST_SECONDS))


def has_left(wire: socket.socket | None) -> bool:
    """Whether a viewer has closed its connection; nothing else tells before the next write."""
    if wire is None:
        return False
    try:
        readable, _, _ = select.select([wire], [], [], 0)
        return bool(readable) and wire.recv(1, socket.MSG_PEEK) == b""
    except (OSError, ValueError):  # closed by us
        return True


def event(name: str, document: object) -> bytes:
    """A server-sent event."""
    return b"event: %s\ndata: %s\n\n" % (name.encode(), orjson.dumps(document))
