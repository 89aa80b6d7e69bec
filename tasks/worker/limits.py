"""Time and memory limits of a run: an exception is raised inside the job function.

It is a :class:`~tasks.errors.Stop`. Green runs are stopped at their next switch, a prefork run
at its next bytecode. Code that yields to neither is stopped by the watchdog, which ends the
whole process if it must.

A prefork run also has a limit on its memory: an allocation beyond it is a ``MemoryError``
before the machine suffers.
"""

from __future__ import annotations

import resource
import signal
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from gevent import get_hub, getcurrent

from tasks.errors import Stop, TimeLimit
from tasks.process import cpu_seconds, data_bytes, is_green, memory_bytes
from tasks.worker.held import Held

MEGABYTE = 1_048_576
#: Room beyond the limit, so that a slow leak meets the watchdog, which has words for it, and
#: not some other thread of the process a MemoryError.
MEMORY_SLACK = 1.25
MEMORY_SLACK_MB = 64


def stoppable(held: Held, memory_mb: int | None = None) -> AbstractContextManager[None]:
    """Run a function under its limits; ``held.interrupt`` ends it earlier."""
    if is_green():
        return Green(held)
    if threading.current_thread() is threading.main_thread():
        return on_main_thread(held, memory_mb)
    return nullcontext()  # a plain thread cannot be interrupted; the watchdog can end its process


def time_limit(held: Held) -> TimeLimit:
    """What a run that takes too long is told."""
    return TimeLimit(f"The run took longer than {held.timeout_seconds:g} s.")


class Green:
    """A run in a greenlet: the hub throws into it, as long as it is armed.

    Whether it is armed is asked in the hub, where no greenlet runs: a throw that comes too
    late would hit whatever the greenlet does next. A bare timer, because every job has one
    and gevent's ``Timeout`` costs twice as much.
    """

    __slots__ = ("_armed", "_held", "_loop", "_run", "_timer")

    def __init__(self, held: Held) -> None:
        self._armed = True
        self._held = held
        self._run = getcurrent()
        self._loop = get_hub().loop
        self._timer = self._loop.timer(held.timeout_seconds)

    def __enter__(self) -> None:
        self._held.interrupt = self.interrupt
        self._timer.start(self._ring)

    def __exit__(self, *_: object) -> None:
        self._armed = False
        self._timer.close()
        self._held.interrupt = self._held.strike = None

    def interrupt(self, stop: Stop) -> None:
        """From any thread."""
        self._loop.run_callback_threadsafe(self._throw, stop)

    def _ring(self) -> None:
        self._throw(time_limit(self._held))

    def _throw(self, stop: Stop) -> None:
        if self._armed:
            self._run.throw(stop)


@contextmanager
def on_main_thread(held: Held, memory_mb: int | None) -> Iterator[None]:
    """A run in a process of its own."""
    # In this order: nothing may be raised while the memory limit is put back.
    with bounded(held, memory_mb), alarmed(held):
        yield


@contextmanager
def alarmed(held: Held) -> Iterator[None]:
    """The time limit of a run on the main thread, kept by the system's timer."""
    alarm = Alarm(time_limit(held))
    before = signal.signal(signal.SIGALRM, alarm.ring)
    try:
        held.interrupt = alarm.interrupt
        signal.setitimer(signal.ITIMER_REAL, held.timeout_seconds)
        yield
    finally:
        alarm.armed = False
        held.interrupt = None
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def hush_alarms() -> None:
    """Between runs an alarm that comes too late is ignored; by default it would be deadly."""
    signal.signal(signal.SIGALRM, lambda *_: None)


class Alarm:
    """Raises in the main thread, as long as it is armed."""

    def __init__(self, stop: Stop) -> None:
        self.armed = True
        self._stop = stop

    def ring(self, *_: Any) -> None:
        if self.armed:
            raise self._stop

    def interrupt(self, stop: Stop) -> None:
        """From any thread."""
        self._stop = stop
        main = threading.main_thread().ident
        if main is not None:
            signal.pthread_kill(main, signal.SIGALRM)


@contextmanager
def bounded(held: Held, memory_mb: int | None) -> Iterator[None]:
    """Note what the process has before the run, and cap what the run may add."""
    held.cpu_before, held.memory_before = cpu_seconds(), memory_bytes()
    if memory_mb is None:
        yield
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    room = int((memory_mb * MEMORY_SLACK + MEMORY_SLACK_MB) * MEGABYTE)
    limits = [limit for limit in (soft, hard) if limit != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_DATA, (min([data_bytes() + room, *limits]), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def make_room() -> None:
    """Let the process have a little more, for what is to be said about a run that took all."""
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    if soft != hard:
        more = soft + MEMORY_SLACK_MB * MEGABYTE
        cap = more if hard == resource.RLIM_INFINITY else min(more, hard)
        resource.setrlimit(resource.RLIMIT_DATA, (cap, hard))
