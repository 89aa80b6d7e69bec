"""PURE: what the headers of an answer say about Claude's rate limits.

Limits of the priority tier are left out: they are another quota than the one that refuses.
Whatever cannot be read is taken as not said.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from tasks.quota import Allowance, QuotaReading
from tasks.scorers.retry_after import http_date, timestamp


def quota_reading(headers: Mapping[str, str], now: datetime) -> QuotaReading | None:
    """The limits that were told; None if none was.

    Keys are lower case. Moments are read against the server's own ``date`` header where there
    is one, so a wrong clock on either side changes nothing.
    """
    now = http_date(headers.get("date", "")) or now
    reading = QuotaReading(
        requests=_allowance(headers, "requests", now),
        tokens_in=_allowance(headers, "input-tokens", now),
        tokens_out=_allowance(headers, "output-tokens", now),
        tokens=_allowance(headers, "tokens", now),
    )
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
