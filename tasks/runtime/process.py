"""What kind of process this is, and its own clockwork beneath gevent's.

Under gevent a thread is a greenlet: it stands still while another one does not yield. What
watches over greenlets needs the real ones.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Callable
from functools import cache
from typing import Any

_PAGE_BYTES = resource.getpagesize()


@cache
def is_green() -> bool:
    """Whether this process runs its jobs in greenlets."""
    try:
        from gevent.monkey import is_module_patched
    except ImportError:
        return False
    return bool(is_module_patched("socket"))


def start_native(act: Callable[..., None], *args: Any) -> None:
    """Call ``act`` in a thread of the operating system."""
    _original("_thread", "start_new_thread")(act, args)


def native_ident() -> int:
    """The operating system's thread we are in, by Python's number for it."""
    ident: int = _original("_thread", "get_ident")()
    return ident


def native_sleep(seconds: float) -> None:
    """Let this thread sleep, and no other."""
    _original("time", "sleep")(seconds)


@cache
def _original(module: str, name: str) -> Callable[..., Any]:
    if not is_green():
        return getattr(__import__(module), name)  # type: ignore[no-any-return]
    from gevent.monkey import get_original

    return get_original(module, name)  # type: ignore[no-any-return]


def told_to_exit() -> bool:
    """Whether the parent of a prefork child has asked it to end at once."""
    from billiard.common import terminate_handler_fired  # type: ignore[import-untyped]  # no types

    return bool(terminate_handler_fired())


def memory_bytes() -> int:
    """What of this process is in memory."""
    return _statm(1)


def data_bytes() -> int:
    """What counts towards RLIMIT_DATA."""
    return _statm(5)


def cpu_seconds() -> float:
    """Processor time of the process."""
    return time.process_time()


def _statm(field: int) -> int:
    with open("/proc/self/statm", "rb") as file:
        return int(file.read().split()[field]) * _PAGE_BYTES
