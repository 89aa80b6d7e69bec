"""Facts about this process, and operating system threads beneath gevent's greenlets.

Under gevent a thread is a greenlet, which stands still while another one does not yield. The
watchdog needs real threads.
"""

from __future__ import annotations

import gc
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import cache
from types import FrameType
from typing import Any

_PAGE_BYTES = resource.getpagesize()
#: Interval of the checks for the parent.
PARENT_SECONDS = 1.0


@cache
def is_green() -> bool:
    """Whether this process runs its jobs in greenlets."""
    monkey = sys.modules.get("gevent.monkey")  # not imported for the question alone
    return monkey is not None and bool(monkey.is_module_patched("socket"))


def make_sleep_green() -> None:
    """Make ``sleep`` in Celery and kombu pause one greenlet instead of the process.

    While gevent patches, it looks at every object there is. That makes Celery's proxies load
    kombu and the configuration before ``time.sleep`` is green, and modules that imported it by
    name keep the old one: waiting for a lost broker then stopped the whole process, heartbeats
    included, until its leases expired.
    """
    from gevent.monkey import get_original, is_module_patched

    if not is_module_patched("time"):
        return
    blocking = get_original("time", "sleep")
    for name, module in list(sys.modules.items()):
        if name.startswith(("celery.", "kombu.")) and vars(module).get("sleep") is blocking:
            vars(module)["sleep"] = time.sleep


def bounded_semaphore(value: int) -> AbstractContextManager[Any]:
    """A semaphore for the slots: gevent's own takes half a microsecond, a patched one seven."""
    if is_green():
        from gevent.lock import BoundedSemaphore

        return BoundedSemaphore(value)
    return threading.BoundedSemaphore(value)


def start_native(act: Callable[..., None], *args: Any) -> None:
    """Call ``act`` in a thread of the operating system."""
    _original("_thread", "start_new_thread")(act, args)


def native_rlock() -> Any:
    """A lock between operating system threads; nobody may switch greenlets while holding it.

    One of gevent's that such a thread waits for may never be given to it.
    """
    return _original("_thread", "RLock")()


def native_ident() -> int:
    """Python's id of the operating system thread we are in."""
    ident: int = _original("_thread", "get_ident")()
    return ident


def frame_of(thread: int) -> FrameType | None:
    """Where a thread is, by Python's id of it.

    Without garbage collection: ``sys._current_frames`` holds a lock of the interpreter and not
    always the GIL, if what is collected meanwhile gives that up, as connections of psycopg2 do.
    A thread that ends then waits for the first with the second in its hands, and the process
    stands still for good.
    """
    collecting = gc.isenabled()
    gc.disable()
    try:
        return sys._current_frames().get(thread)
    finally:
        if collecting:
            gc.enable()


def system_thread() -> int:
    """The system's id of the thread we are in."""
    number: int = _original("_thread", "get_native_id")()
    return number


def native_sleep(seconds: float) -> None:
    """Let this thread sleep, and no other."""
    _original("time", "sleep")(seconds)


@cache
def _original(module: str, name: str) -> Callable[..., Any]:
    if not is_green():
        return getattr(__import__(module), name)  # type: ignore[no-any-return]
    from gevent.monkey import get_original

    return get_original(module, name)  # type: ignore[no-any-return]


def starved_seconds(thread: int) -> float:
    """How long a thread, by the system's id, was ready to run but had no CPU; 0 if unknown."""
    try:
        with open(f"/proc/self/task/{thread}/schedstat", "rb") as file:
            return int(file.read().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0


class FairClock:
    """Time that counts against a thread: without what it spent waiting for a CPU.

    Nor do pauses of the reader count: at most ``most`` at once.
    """

    def __init__(self, most: float, now: float, starved: float) -> None:
        self._most = most
        self._looked = now
        self._starved = starved
        #: The system counts a wait when it ends; what was counted too much before is deducted.
        self._owed = 0.0

    def elapsed(self, now: float, starved: float) -> float:
        """Seconds since the last call that count."""
        passed = (now - self._looked) - (starved - self._starved) - self._owed
        self._looked, self._starved = now, starved
        self._owed = max(0.0, -passed)
        return min(max(0.0, passed), self._most)


def end_with_parent(parent: int) -> None:
    """Kill this process once the one that forked it is gone; call it in a thread.

    Celery's prefork children otherwise finish what they run, or wait for the state store, while
    nothing is left that could stop them. Not the kernel's signal on the parent's death: that is of
    the thread that forked, which may end before its process.
    """
    while os.getppid() == parent:
        native_sleep(PARENT_SECONDS)
    os.kill(os.getpid(), signal.SIGKILL)


def exit_requested() -> bool:
    """Whether the parent of a prefork child has asked it to exit at once."""
    from billiard.common import terminate_handler_fired  # type: ignore[import-untyped]  # no types

    return bool(terminate_handler_fired())


def memory_bytes() -> int:
    """Resident memory of this process."""
    return _statm(1)


def data_bytes() -> int:
    """What counts towards RLIMIT_DATA."""
    return _statm(5)


def _statm(field: int) -> int:
    with open("/proc/self/statm", "rb") as file:
        return int(file.read().split()[field]) * _PAGE_BYTES
