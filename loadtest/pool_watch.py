"""Who waits for a database connection: ``fairline_db_pool`` of every process, once a second."""

from __future__ import annotations

import re
import time
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

SAMPLE = re.compile(r'^fairline_db_pool\{process="([^"]+)",state="(\w+)"\} ([0-9.]+)', re.M)


@dataclass(frozen=True, slots=True)
class PoolReading:
    """All processes' pools at one moment."""

    at: float
    #: Waiters by process.
    waiting: dict[str, int]
    #: Most connections a process's pool may open, by process.
    size: dict[str, int]


def read_pools(url: str) -> PoolReading:
    """One reading of ``/metrics``."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=5) as answer:
        text = answer.read().decode()
    values: dict[str, dict[str, int]] = {"waiting": {}, "size": {}, "in_use": {}}
    for process, state, value in SAMPLE.findall(text):
        values[state][process] = int(float(value))
    return PoolReading(time.time(), values["waiting"], values["size"])


def watch_pools(url: str, over: Callable[[], bool]) -> list[PoolReading]:
    """A reading a second until `over`."""
    readings = []
    while not over():
        with suppress(OSError):
            readings.append(read_pools(url))
        time.sleep(1.0)
    return readings


def most_waiters(readings: list[PoolReading]) -> int:
    """The most that any process saw at any time."""
    return max((max(r.waiting.values(), default=0) for r in readings), default=0)
