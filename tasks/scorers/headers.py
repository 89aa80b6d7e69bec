"""Rate limits and requested waits, from the headers of Claude's responses. Pure.

Values are returned as they were sent, unbounded. Headers that cannot be parsed count as missing.
Times are compared with the server's own ``date`` header if there is one: a clock may be wrong.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from tasks.quota import Allowance, QuotaReading

_LIMITS = ("requests", "tokens", "input-tokens", "output-tokens")


def quota_reading(headers: Mapping[str, str], now: datetime) -> QuotaReading | None:
    """The limits that a response states; None if it states none.

    Without those of the priority tier: they are another quota than the one that rejects calls.
    """
    now = http_date(headers.get("date", "")) or now
    requests, tokens, tokens_in, tokens_out = (_allowance(headers, name, now) for name in _LIMITS)
    reading = QuotaReading(requests, tokens_in, tokens_out, tokens)
    return reading if reading.allowances() else None


def _allowance(headers: Mapping[str, str], name: str, now: datetime) -> Allowance | None:
    prefix = f"anthropic-ratelimit-{name}"
    reset = timestamp(headers.get(f"{prefix}-reset", ""))
    try:
        return Allowance(
            float(headers[f"{prefix}-limit"]),
            max(0.0, float(headers[f"{prefix}-remaining"])),
            max(0.0, (reset - now).total_seconds()) if reset else 60.0,
        )
    except (KeyError, ValueError, OverflowError):
        return None


def retry_after_seconds(
    headers: Mapping[str, str], *, rate_limited: bool, now: datetime
) -> float | None:
    """Seconds to wait: from ``retry-after``, or on a 429 from the rate limits' reset times."""
    now = http_date(headers.get("date", "")) or now
    text = headers.get("retry-after", "").strip()
    try:
        seconds = float(text)
    except ValueError:
        moment = http_date(text)
        seconds = math.nan if moment is None else (moment - now).total_seconds()
    if math.isfinite(seconds):
        return max(0.0, seconds)
    return _until_reset(headers, now) if rate_limited else None


def _until_reset(headers: Mapping[str, str], now: datetime) -> float | None:
    """Seconds until every exhausted limit is reset; until all are, if none is exhausted."""
    names = [f"anthropic-ratelimit-{tier}{name}" for tier in ("", "priority-") for name in _LIMITS]
    resets = {name: timestamp(headers.get(f"{name}-reset", "")) for name in names}
    known = {name: moment for name, moment in resets.items() if moment is not None}
    exhausted = [known[name] for name in known if headers.get(f"{name}-remaining") == "0"]
    awaited = exhausted or list(known.values())
    return max(0.0, (max(awaited) - now).total_seconds()) if awaited else None


def http_date(text: str) -> datetime | None:
    """A time in the format of HTTP headers."""
    return _parsed(text, parsedate_to_datetime)


def timestamp(text: str) -> datetime | None:
    """A time in the format of RFC 3339."""
    return _parsed(text, datetime.fromisoformat)


def _parsed(text: str, parse: Callable[[str], datetime]) -> datetime | None:
    try:
        moment = parse(text)
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
