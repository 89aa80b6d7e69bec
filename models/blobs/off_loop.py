"""File work beside gevent's loop.

gevent makes sockets green, not files: an ``fsync`` that takes a second on a busy disk stops every
greenlet of the process for that second, heartbeats included. So under gevent the call is made in
one of the hub's native threads and the greenlet waits for it. Elsewhere it is a plain call.

A greenlet that is killed while it waits does not stop the call.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import ParamSpec, TypeVar, cast

P = ParamSpec("P")
T = TypeVar("T")


def off_loop(act: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """``act(...)`` without holding up other greenlets. ``act`` must use no green primitive."""
    monkey = sys.modules.get("gevent.monkey")
    if monkey is None or not monkey.is_module_patched("threading"):
        return act(*args, **kwargs)
    from gevent import get_hub

    def settled() -> tuple[T | None, Exception | None]:
        # Raised in the thread, an error is printed by the hub before the caller sees it.
        try:
            return act(*args, **kwargs), None
        except Exception as error:  # noqa: BLE001 - carried to the caller whole
            return None, error

    value, error = get_hub().threadpool.apply(settled)
    if error is not None:
        raise error
    return cast(T, value)
