"""PURE: how long a refused caller was asked to wait, read from the headers of the refusal.

Reads what was said and does not bound it: how long a job really waits is the retry policy's
decision. Says ``None`` when nothing usable was said.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

_RATE_LIMITS = tuple(
    f"anthropic-ratelimit-{prefix}{what}"
    for prefix in ("", "priority-")
    for what in ("requests", "tokens", "input-tokens", "output-tokens")
)


def retry_after_seconds(
    headers: Mapping[str, str], *, rate_limited: bool, now: datetime
) -> float | None:
    """Seconds to wait: from ``retry-after``, or on a 429 from the rate limits' reset times.

    Keys are lower case. Dates are read against the server's own ``date`` header where there is
    one, so a wrong clock on either side does not stretch the wait.
    """
    now = http_date(headers.get("date", "")) or now
    said = headers.get("retry-after", "").strip()
    if said:
        seconds = _seconds(said)
        if seconds is None and (moment := http_date(said)) is not None:
            seconds = (moment - now).total_seconds()
        if seconds is not None:
            return max(0.0, seconds)
    return _until_reset(headers, now) if rate_limited else None


def _until_reset(headers: Mapping[str, str], now: datetime) -> float | None:
    """Seconds until every exhausted limit is fresh again; until all are, if none says it is."""
    resets = {
        limit: moment
        for limit in _RATE_LIMITS
        if (moment := timestamp(headers.get(f"{limit}-reset", ""))) is not None
    }
    exhausted = [
        moment for limit, moment in resets.items() if headers.get(f"{limit}-remaining") == "0"
    ]
    awaited = exhausted or list(resets.values())
    return max(0.0, (max(awaited) - now).total_seconds()) if awaited else None


def _seconds(text: str) -> float | None:
    try:
        seconds = float(text)
    except ValueError:
        return None
    return seconds if math.isfinite(seconds) else None


def http_date(text: str) -> datetime | None:
    """A moment as HTTP headers write it."""
    try:
        moment = parsedate_to_datetime(text)
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def timestamp(text: str) -> datetime | None:
    """A moment as RFC 3339 writes it."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
