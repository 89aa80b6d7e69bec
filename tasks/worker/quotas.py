"""Quotas of dependencies as jobs report them: applied in this worker at once, then written.

A rejection is written before the ending of the run that met it, readings once a second at most.
The table replaces what this process believed, so that an operator's change applies within two
seconds. Only dependencies that job types declare are written. Counts of the last second are lost
with a killed process.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import orjson
from sqlalchemy import Engine

from models.jobs.claim import Claim
from models.store.errors import StateStoreUnavailable
from models.store.session import connect
from tasks.quota import Allowance
from tasks.worker.held import Held
from tasks.worker.outcome import Failed, Outcome

logger = logging.getLogger(__name__)

#: Readings are written this often at most.
WRITE_SECONDS = 1.0
#: How long a dependency is closed if it does not say, and the bounds of what it says.
CLOSED_SECONDS = 10.0
CLOSED_LEAST_SECONDS = 1.0
CLOSED_MOST_SECONDS = 600.0

#: Counts alone make no quota: a dependency without limits has no row. In one order, so that two
#: workers never deadlock.
WRITE = """
    INSERT INTO quotas AS quota (dependency, reading, read_at, closed_until, refused, calls,
                                 tokens_in, tokens_out)
    SELECT dependency, reading::json, now() - make_interval(secs => age),
           now() + make_interval(secs => closed), refused, calls, tokens_in, tokens_out
    FROM json_to_recordset(%(news)s::json)
        AS news (dependency text, reading text, age float8, closed float8, refused bigint,
                 calls bigint, tokens_in bigint, tokens_out bigint)
    WHERE news.reading IS NOT NULL OR news.closed IS NOT NULL
       OR EXISTS (SELECT FROM quotas AS known WHERE known.dependency = news.dependency)
    ORDER BY dependency
    ON CONFLICT (dependency) DO UPDATE
    SET reading = CASE WHEN excluded.read_at > coalesce(quota.read_at, '-infinity')
                       THEN excluded.reading ELSE quota.reading END,
        read_at = greatest(quota.read_at, excluded.read_at),
        closed_until = greatest(quota.closed_until, excluded.closed_until),
        refused = quota.refused + excluded.refused,
        calls = quota.calls + excluded.calls,
        tokens_in = quota.tokens_in + excluded.tokens_in,
        tokens_out = quota.tokens_out + excluded.tokens_out
"""


@dataclass(slots=True)
class News:
    """What the table does not have yet about one dependency."""

    #: The last reading as JSON, and when it was taken.
    reading: str | None = None
    read_at: float = 0.0
    closed_until: float | None = None
    refused: int = 0
    calls: int = 0
    tokens_in: int = 0
    tokens_out: int = 0

    def close(self, until: float) -> None:
        self.closed_until = max(until, self.closed_until or until)

    def add(self, older: News) -> None:
        """Add what could not be written."""
        if self.reading is None:
            self.reading, self.read_at = older.reading, older.read_at
        if older.closed_until is not None:
            self.close(older.closed_until)
        self.refused += older.refused
        self.calls += older.calls
        self.tokens_in += older.tokens_in
        self.tokens_out += older.tokens_out


class QuotaTracker:
    """The quotas as this process knows them, and what it has to write."""

    def __init__(self, dependencies: Collection[str]) -> None:
        self._dependencies = frozenset(dependencies)
        self._noting = threading.Lock()
        self._news: dict[str, News] = {}
        #: Those that have a quota, and until when some are closed.
        self._limited: frozenset[str] = frozenset()
        self._closed: dict[str, float] = {}
        self._written = 0.0

    def note(self, dependency: str, allowances: Mapping[str, Allowance], now: float) -> None:
        """Record what a response said about the limits."""
        reading = {k: (a.limit, a.remaining, a.reset_seconds) for k, a in allowances.items()}
        with self._noting:
            if (news := self._of(dependency)) is not None:
                news.reading, news.read_at = orjson.dumps(reading).decode(), now

    def count_run(self, claim: Claim, outcome: Outcome, held: Held | None, now: float) -> None:
        """A run has ended, with a rejected call or after it used some tokens."""
        if isinstance(outcome, Failed) and outcome.refused:
            self.refuse(outcome.dependency or claim.dependency, outcome.retry_after, now)
        elif held is not None:
            self._count(claim.dependency, *(held.quota_tokens or (held.tokens_in, held.tokens_out)))

    def _count(self, dependency: str, tokens_in: int, tokens_out: int) -> None:
        if not (tokens_in or tokens_out):
            return
        with self._noting:
            if dependency in self._limited or dependency in self._news:
                news = self._news.setdefault(dependency, News())
                news.calls += 1
                news.tokens_in += tokens_in
                news.tokens_out += tokens_out

    def refuse(self, dependency: str, seconds: float | None, now: float) -> None:
        """A call was rejected: make no more for so long."""
        wait = CLOSED_SECONDS if seconds is None else seconds
        until = now + max(CLOSED_LEAST_SECONDS, min(wait, CLOSED_MOST_SECONDS))
        with self._noting:
            if (news := self._of(dependency)) is None:
                return
            news.refused += 1
            news.close(until)
            self._closed[dependency] = max(until, self._closed.get(dependency, until))

    def is_closed(self, dependency: str, now: float) -> bool:
        """Whether a job that was dispatched before has to be released."""
        return now < self._closed.get(dependency, now)

    def due(self, now: float) -> bool:
        """Whether there is something to write now, as a rejection always is."""
        with self._noting:
            if any(news.closed_until is not None for news in self._news.values()):
                return True
            return bool(self._news) and not 0.0 <= now - self._written < WRITE_SECONDS

    def write(self, engine: Engine, now: float) -> None:
        """Move the news to the table; they stay here if it is down."""
        with self._noting:
            news, self._news = self._news, {}
            self._written = now
        if not news:
            return
        try:
            write_news(engine, news, now)
        except (StateStoreUnavailable, MemoryError):
            with self._noting:
                for dependency, older in news.items():
                    self._news.setdefault(dependency, News()).add(older)
            raise

    def refresh(self, closed_seconds: Mapping[str, float], now: float) -> None:
        """Take over the quotas and how long each is closed, as the table has them."""
        with self._noting:
            self._limited = frozenset(closed_seconds)
            closed = {name: now + left for name, left in closed_seconds.items() if left > 0}
            for name, news in self._news.items():
                if news.closed_until is not None:
                    closed[name] = max(news.closed_until, closed.get(name, 0.0))
            self._closed = closed

    def _of(self, dependency: str) -> News | None:
        if dependency not in self._dependencies:
            return None
        return self._news.setdefault(dependency, News())


def write_news(engine: Engine, news: dict[str, News], now: float) -> None:
    """Move the news to the table; those that could not be moved yet are left.

    News of a dependency that it refuses are dropped: an error would hold up the endings after them.
    """
    try:
        with connect(engine) as connection:
            connection.exec_driver_sql(WRITE, parameters(news, now))
    except (StateStoreUnavailable, MemoryError):
        raise
    except Exception:
        if len(news) > 1:
            for dependency in list(news):
                write_news(engine, {dependency: news[dependency]}, now)
                del news[dependency]
        else:
            logger.exception("the quota of %s could not be written", *news)


def parameters(news: Mapping[str, News], now: float) -> dict[str, Any]:
    rows = [
        {
            "dependency": dependency,
            "age": max(0.0, now - one.read_at) if one.reading else None,
            "closed": None if one.closed_until is None else max(0.0, one.closed_until - now),
            **asdict(one),
        }
        for dependency, one in news.items()
    ]
    return {"news": orjson.dumps(rows).decode()}
