"""Time and memory limits of a run, by raising a :class:`~tasks.errors.Stop` in the job function.

A run in a greenlet is stopped at its next switch, a prefork run at its next bytecode. Code that
yields to neither is stopped by the watchdog, which kills the whole process if it must. A prefork
run also has a limit on its memory: an allocation beyond it is a ``MemoryError``.
"""

from __future__ import annotations

import resource
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from gevent import get_hub, getcurrent

from tasks.errors import Cancelled, Stop, TimeLimit
from tasks.process import data_bytes, is_green, memory_bytes
from tasks.worker.held import Held

MEGABYTE = 1_048_576
#: Room beyond the limit, so that a slow leak is found by the watchdog, which reports it, before
#: some other thread of the process gets a MemoryError.
MEMORY_SLACK = 1.25
MEMORY_SLACK_MB = 64


def stoppable(held: Held, memory_mb: int | None = None) -> AbstractContextManager[None]:
    """Run a function under its limits; ``held.interrupt`` ends it earlier."""
    if is_green():
        return Green(held)
    if threading.current_thread() is threading.main_thread():
        return in_own_process(held, memory_mb)
    return nullcontext()  # a plain thread cannot be interrupted; the watchdog can kill its process


def time_limit(held: Held) -> TimeLimit:
    return TimeLimit(f"The run took longer than {held.timeout_seconds:g} s.")


def note_delivery(held: Held, stop: Stop) -> None:
    """A run that was interrupted because it is cancelled ends so, whatever it makes of that."""
    if isinstance(stop, Cancelled):
        held.cancel_seen = True


class Green:
    """A run in a greenlet: the hub throws into it while it is armed.

    Whether it is armed is checked in the hub, where no greenlet runs: a throw that comes too
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
        self._held.interrupt, self._held.disarm = self.interrupt, self.disarm
        self._timer.start(self._ring)

    def __exit__(self, *_: object) -> None:
        self.disarm()

    def disarm(self) -> None:
        self._armed = False
        self._timer.close()
        self._held.interrupt = self._held.strike = self._held.disarm = None

    def interrupt(self, stop: Stop) -> None:
        """Callable from any thread."""
        self._loop.run_callback_threadsafe(self._throw, stop)

    def _ring(self) -> None:
        self._throw(time_limit(self._held))

    def _throw(self, stop: Stop) -> None:
        if self._armed:
            note_delivery(self._held, stop)
            self._run.throw(stop)


class Alarm:
    """A run on the main thread: the system's timer raises in it while it is armed.

    A signal says nothing about whom it is for. One that was sent to the run before and comes
    late finds neither a Stop here nor the time limit passed.
    """

    def __init__(self, held: Held) -> None:
        self._armed = True
        self._held = held
        self._stop: Stop | None = None
        self._ends_at = time.monotonic() + held.timeout_seconds

    def __enter__(self) -> None:
        self._before = signal.signal(signal.SIGALRM, self._ring)
        self._held.interrupt, self._held.disarm = self.interrupt, self.disarm
        signal.setitimer(signal.ITIMER_REAL, self._held.timeout_seconds)

    def __exit__(self, *_: object) -> None:
        self.disarm()

    def disarm(self) -> None:
        self._armed = False
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, self._before)
        self._held.interrupt = self._held.disarm = None

    def interrupt(self, stop: Stop) -> None:
        """Callable from any thread."""
        self._stop = stop
        main = threading.main_thread().ident
        if main is not None:
            signal.pthread_kill(main, signal.SIGALRM)

    def _ring(self, *_: Any) -> None:
        stop, self._stop = self._stop, None
        if stop is None and time.monotonic() >= self._ends_at:
            stop = time_limit(self._held)
        if self._armed and stop is not None:
            note_delivery(self._held, stop)
            raise stop


@contextmanager
def in_own_process(held: Held, memory_mb: int | None) -> Iterator[None]:
    # In this order: nothing may be raised while the memory limit is restored.
    with bounded(held, memory_mb), Alarm(held):
        yield


def ignore_late_alarms() -> None:
    """Ignore an alarm that comes between runs; by default it would kill the process."""
    signal.signal(signal.SIGALRM, lambda *_: None)


@contextmanager
def bounded(held: Held, memory_mb: int | None) -> Iterator[None]:
    """Record what the process used before the run, and cap what the run may add."""
    held.cpu_before, held.memory_before = time.process_time(), memory_bytes()
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


def raise_memory_limit() -> None:
    """Give the process a little more, to report a run that used up its memory."""
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    if soft != hard:
        more = soft + MEMORY_SLACK_MB * MEGABYTE
        cap = more if hard == resource.RLIM_INFINITY else min(more, hard)
        resource.setrlimit(resource.RLIMIT_DATA, (cap, hard))
