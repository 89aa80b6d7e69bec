"""What PostgreSQL's backends wait for, looked at many times per second."""

from __future__ import annotations

import re
import threading
from collections import Counter
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self

from sqlalchemy import create_engine, text

#: Statements that are being executed, except this one.
ACTIVE = text("""
    SELECT coalesce(wait_event_type, 'CPU') AS kind, coalesce(wait_event, '') AS event, query
    FROM pg_stat_activity
    WHERE state = 'active' AND backend_type = 'client backend' AND pid <> pg_backend_pid()
""")
#: Often enough for a few hundred looks, seldom enough to cost next to nothing.
LOOK_SECONDS = 0.03
#: Kinds of waits in the order of the reports: a processor, the disk, a structure in memory, a row
#: or table. All others are `OTHER`.
CPU, DISK, MEMORY, LOCK, OTHER = "CPU", "IO", "LWLock", "Lock", "other"
WAIT_KINDS = (CPU, DISK, MEMORY, LOCK, OTHER)

PREPARED = re.compile(r"\s*(EXECUTE|PREPARE)\s+(\w+?)(_[0-9a-f]{12})?\s*\(", re.I)
TABLE = re.compile(
    r"\b(INSERT INTO|UPDATE|DELETE FROM|FROM|JOIN)\s+(?!SKIP\b|SET\b|unnest\b)(\w+)", re.I
)
WRITES = ("INSERT INTO", "UPDATE", "DELETE FROM")


class Wait(NamedTuple):
    #: Such as ``Lock``, ``tuple`` and ``claim``.
    kind: str
    event: str
    statement: str


def statement_name(query: str) -> str:
    """A prepared statement's name; else its verb, and the table that it writes or else reads."""
    if prepared := PREPARED.match(query):
        return prepared[2] if prepared[1].upper() == "EXECUTE" else f"prepare {prepared[2]}"
    found = [(verb.upper(), table) for verb, table in TABLE.findall(query)]
    chosen = next((pair for pair in found if pair[0] in WRITES), found[0] if found else None)
    if chosen is None:
        return " ".join(query.split())[:40]
    return f"{chosen[0] if chosen[0] in WRITES else 'SELECT'} {chosen[1]}".lower()


@dataclass(slots=True)
class Waited:
    """Counts of many looks."""

    looks: int = 0
    counts: Counter[Wait] = field(default_factory=Counter)

    def add(self, found: Iterable[Any]) -> None:
        self.looks += 1
        self.counts.update(Wait(kind, event, statement_name(q)) for kind, event, q in found)

    def by_kind(self) -> Mapping[str, float]:
        """Backends on average, by kind of wait."""
        sums = dict.fromkeys(WAIT_KINDS, 0.0)
        for wait, count in self.counts.items():
            sums[wait.kind if wait.kind in sums else OTHER] += count / self.looks
        return sums

    def longest(self, count: int) -> list[tuple[Wait, float]]:
        """What most backends wait for on average, except a processor."""
        waits = Counter({wait: n for wait, n in self.counts.items() if wait.kind != CPU})
        return [(wait, n / self.looks) for wait, n in waits.most_common(count)]


class WaitSampler:
    """Looks while its ``with`` block lasts."""

    def __init__(self, url: str) -> None:
        self._engine = create_engine(url, isolation_level="AUTOCOMMIT", pool_size=1)
        self._stopped = threading.Event()
        self._thread = ThreadPoolExecutor(1)
        self.waited = Waited()

    def __enter__(self) -> Self:
        self._looking = self._thread.submit(self._look)
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self._stopped.set()
        self._thread.shutdown()
        self._engine.dispose()
        if kind is None:
            self._looking.result()  # raises what a look raised: no waits would look like none seen

    def _look(self) -> None:
        with self._engine.connect() as connection:
            while not self._stopped.wait(LOOK_SECONDS):
                self.waited.add(connection.execute(ACTIVE).all())
