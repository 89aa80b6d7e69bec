"""Submissions by a clock of intended starts, whether or not the earlier ones were answered.

All submitters of a process share the clock: any that is free takes the next start, waits for it
and sends. Latency counts from the *intended* start, so a server that stalls cannot hide the
requests that should have started meanwhile: late or unsent, they are in the record.
"""

from __future__ import annotations

import itertools
import json
import math
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import gevent
from gevent.event import Event
from locust import User, task
from locust.exception import StopUser

from loadtest.closed_loop import Request, application, applications
from loadtest.shapes import ArrivalClock, forever, parse, total_seconds
from loadtest.users.wire import Answer, Arrival, Record, Target, Wire

#: How long answers may come in after the last start.
GRACE_SECONDS = 5.0
#: From the start of a run to its first arrival, for the submitters to be there.
LEAD_SECONDS = 0.2
EXPECTED = (200, 201, 202)
WORDS = ("kept", "systems", "running", "through", "quiet", "nights", "and", "loud", "mornings")


class Round:
    """What the submitters of a process share during one run."""

    def __init__(self, host: str, options: Any) -> None:
        """``options`` are those of `loadtest.users.run`."""
        stretches = parse(options.arrivals) if options.arrivals else forever(options.rate)
        self._target = Target(host, options.key)
        self._payloads = map(self._target.payload, submissions(options.path, options.letter_bytes))
        self._idle: list[Wire] = []
        self._offset = time.time() - time.perf_counter()
        self._begin = (options.begin_at or time.time() + LEAD_SECONDS) - self._offset
        self._seconds = total_seconds(stretches)
        self.clock = ArrivalClock(stretches, self._begin, options.part, options.parts)
        self.arrivals: list[Arrival] = []
        #: Starts that were taken and have no answer yet.
        self._open = 0
        #: Set when every arrival of the clock has been answered or lost.
        self.over = Event()

    def take(self) -> float | None:
        """The next intended start, by `time.perf_counter`."""
        due = self.clock.take()
        if due is not None:
            self._open += 1
        elif not self._open:
            self.over.set()
        return due

    def send(self, name: str, due: float, fire: Callable[..., Any]) -> Answer:
        """One submission, on the connection that was used last."""
        wire = self._idle.pop() if self._idle else Wire(self._target, fire)
        try:
            return wire.ask(name, next(self._payloads), EXPECTED, since=due)
        finally:
            self._idle.append(wire)

    def note(self, due: float, answer: Answer | None) -> None:
        """Record a start that was taken; one that was still in the future at the end is dropped."""
        self._open -= 1
        if answer is not None or due <= time.perf_counter():
            self.arrivals.append(self._arrival(due, answer))
        if self.clock.is_over and not self._open:
            self.over.set()

    def await_end(self) -> None:
        """Until all were answered, or the grace is over."""
        left = self._begin + self._seconds + GRACE_SECONDS - time.perf_counter()
        self.over.wait(max(0.0, left))

    def give_up(self) -> None:
        """All submitters have stopped: starts that were due and not sent got no answer."""
        for due in self.clock.missed(time.perf_counter()):
            self.arrivals.append(self._arrival(due, None))
        for wire in self._idle:
            wire.close()

    def _arrival(self, due: float, answer: Answer | None) -> Arrival:
        at = due + self._offset
        if answer is None:
            return Arrival(at, time.perf_counter() - due, 0, "")
        accepted = id_of(answer.response.body) if answer.status in EXPECTED else ""
        return Arrival(at, answer.seconds, answer.status, accepted)


class Submitter(User):
    """One of many users that send by the clock."""

    #: The run of this process.
    round: ClassVar[Round | None] = None
    name: ClassVar[str] = "/applications"

    @task
    def submit(self) -> None:
        """Take the next start, wait for it, send."""
        shared = self.round
        due = shared.take() if shared is not None else None
        if shared is None or due is None:
            raise StopUser
        answer = None
        try:
            while (wait := due - time.perf_counter()) > 0:
                gevent.sleep(wait)
            answer = shared.send(self.name, due, self.environment.events.request.fire)
        finally:
            shared.note(due, answer)


def id_of(body: bytes) -> str:
    try:
        return str(json.loads(body)["id"])
    except (ValueError, KeyError, TypeError):
        return ""


def begin_round(environment: Any) -> None:
    """Start the clock of this process; at its end the runner gets a message."""
    options = environment.parsed_options
    Submitter.name = options.path
    shared = Submitter.round = Round(environment.host, options)
    if options.arrivals:
        gevent.spawn(announce_end, environment, shared)


def announce_end(environment: Any, shared: Round) -> None:
    """The run ends when all of its processes have sent this message."""
    shared.await_end()
    if Submitter.round is shared:
        environment.runner.send_message("arrivals_over")


def end_round(environment: Any, **_: object) -> None:
    """Nothing more is sent; write the record, if it is wanted."""
    shared, Submitter.round = Submitter.round, None
    if shared is None:
        return
    shared.give_up()
    if environment.parsed_options.record:
        Record(shared.arrivals).write(Path(environment.parsed_options.record))


def submissions(path: str, letter_bytes: str) -> Iterator[Request]:
    """Applications without end, with letters of random length if a range of it is given."""
    if not letter_bytes:
        yield from itertools.cycle(applications(500, "Arrival", path))
    shortest, _, longest = letter_bytes.partition("-")
    low, high = int(shortest), int(longest or shortest)
    chance = random.Random()
    # One long text, of which each letter is a part: cheap, and no two compress alike.
    text = " ".join(
        f"{chance.choice(WORDS)} {chance.randrange(10**6)}" for _ in range(9 + high // 6)
    )
    for number in itertools.count():
        # Even in powers: many small ones, some large ones, as letters are.
        length = round(math.exp(chance.uniform(math.log(max(1, low)), math.log(max(1, high)))))
        start = chance.randrange(len(text) - length + 1)
        yield application(number, "Arrival", text[start : start + length], path)
