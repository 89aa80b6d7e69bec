"""Who waits for a database connection: ``fairline_db_pool`` of every process."""

from __future__ import annotations

import re
import time
import urllib.request
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
