"""A client of the swarm: submits three applications, polls each once per second, starts over.

It sends the ETag that it knows and reads the header ``Fairline-Status``; no document is parsed.
Polls that take longer than a second are repeated at once, so very many clients make a closed loop.
A refused submission is repeated in the next second; one that is gone (404) is given up.
"""

from __future__ import annotations

import itertools
import random
import resource
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import gevent
from locust import User, constant, events, task

from loadtest.closed_loop import Request, applications, value_of
from loadtest.users.wire import POLL, ROUND, SUBMIT, Answer, Record, Requests, Target, Wire

APPLICATIONS = 3
PERIOD_SECONDS = 1.0
ENDED = frozenset({b"scored", b"failed", b"withdrawn", b"expired"})
#: As they go over the wire.
STATUS = b"\r\nfairline-status:"
ETAG = b"\r\netag:"
LOCATION = b"\r\nlocation:"
ACCEPTED = (202,)
ANSWERED = (200, 304)
GONE = (404, 410)


class Swarm:
    """What the clients of a process share during one run."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.requests = Requests()
        self.submissions = itertools.cycle(
            [target.payload(each) for each in applications(500, prefix="Swarm")]
        )

    def note(self, answer: Answer, kind: int) -> None:
        self.requests.add(time.time() - answer.seconds, answer.seconds, answer.status, kind)


class Asked:
    """An application that a client polls."""

    __slots__ = ("_etag", "_path", "payload")

    def __init__(self, path: str, target: Target) -> None:
        self._path = path
        self._etag = b""
        self.payload = target.payload(Request("GET", path))

    def know(self, etag: bytes, target: Target) -> None:
        if etag != self._etag:
            self._etag = etag
            known = {"If-None-Match": etag.decode("latin-1")}
            self.payload = target.payload(Request("GET", self._path, known))


class SwarmClient(User):
    """Submits three, polls them each second, starts over."""

    wait_time = constant(0)
    #: The run of this process.
    swarm: ClassVar[Swarm | None] = None

    def on_start(self) -> None:
        """At a random moment: users that start together must not poll together for ever."""
        assert self.swarm is not None
        self._swarm = self.swarm
        self._wire = Wire(self._swarm.target, self.environment.events.request.fire)
        gevent.sleep(random.random() * PERIOD_SECONDS)

    def on_stop(self) -> None:
        self._wire.close()

    @task
    def go_round(self) -> None:
        """One round, from the submissions to the last of their ends."""
        began = time.time()
        seconds = each_second()
        waiting: list[Asked] = []
        for _ in range(APPLICATIONS):
            while (asked := self.submit()) is None:
                next(seconds)
            waiting.append(asked)
        while waiting:
            next(seconds)
            waiting = [asked for asked in waiting if not self.has_ended(asked)]
        self._swarm.requests.add(began, time.time() - began, 200, ROUND)

    def submit(self) -> Asked | None:
        """One application; none if it was not accepted."""
        answer = self._wire.ask("/applications", next(self._swarm.submissions), ACCEPTED)
        self._swarm.note(answer, SUBMIT)
        if answer.status not in ACCEPTED:
            return None
        return Asked(value_of(answer.response.head, LOCATION).decode(), self._swarm.target)

    def has_ended(self, asked: Asked) -> bool:
        answer = self._wire.ask("/applications/{id}", asked.payload, ANSWERED)
        self._swarm.note(answer, POLL)
        if answer.status not in ANSWERED:
            return answer.status in GONE
        head = answer.response.head
        asked.know(value_of(head, ETAG), self._swarm.target)
        return value_of(head, STATUS) in ENDED


def each_second() -> Iterator[None]:
    """Wait for the next second; a late caller goes on at once, and does not catch up."""
    due = time.perf_counter()
    while True:
        due += PERIOD_SECONDS
        wait = due - time.perf_counter()
        if wait > 0:
            gevent.sleep(wait)
        else:
            due -= wait
        yield


@events.test_start.add_listener  # type: ignore[untyped-decorator]  # locust's own is untyped
def begin_swarm(environment: Any, **_: object) -> None:
    """Allow very many connections, and begin a record."""
    if SwarmClient not in environment.user_classes:
        return
    _soft, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    key = getattr(environment.parsed_options, "key", "")
    SwarmClient.swarm = Swarm(Target(environment.host, key))


@events.test_stop.add_listener  # type: ignore[untyped-decorator]  # locust's own is untyped
def end_swarm(environment: Any, **_: object) -> None:
    """All clients have stopped; write the record, if it is wanted."""
    swarm, SwarmClient.swarm = SwarmClient.swarm, None
    folder = getattr(environment.parsed_options, "record", "")
    if swarm is not None and folder:
        Record(requests=swarm.requests).write(Path(folder))
