"""How values are told on pages: counts, times, states. Everything here is pure."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from markupsafe import Markup

#: How much of a large document a page shows.
SHOWN_CHARACTERS = 20_000


def count(value: float | None) -> str:
    """A number with its thousands set apart; fractions only where they matter."""
    if value is None:
        return "–"
    if value == int(value) or abs(value) >= 1_000:
        return f"{round(value):,}".replace(",", "\u202f")
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def percent(value: float | None) -> str:
    """A part of one."""
    return "–" if value is None else f"{value * 100:.0f}\u202f%"


def duration(seconds: float | Decimal | None) -> str:
    """A stretch of time, in the unit that people would use."""
    if seconds is None:
        return "–"
    value = float(seconds)
    if value < 0.0995:
        return f"{value * 1000:.0f}\u202fms"
    if value < 9.95:
        return f"{value:.1f}\u202fs"
    if value < 119.5:
        return f"{value:.0f}\u202fs"
    if value < 7_170:
        return f"{value / 60:.0f}\u202fmin"
    if value < 172_000:
        return f"{value / 3600:.1f}\u202fh"
    return f"{value / 86_400:.1f}\u202fd"


def money(amount: Decimal | float, currency: str) -> str:
    """An amount; small ones keep their digits."""
    value = Decimal(amount)
    digits = 2 if value == 0 or abs(value) >= 1 else 4
    return f"{value:,.{digits}f}\u202f{currency}"


def exact(amount: Decimal) -> str:
    """An amount as it is billed, to the millionth; zeros beyond the second digit are left out."""
    whole, _, rest = f"{amount:.6f}".partition(".")
    return f"{whole}.{rest[:2]}{rest[2:].rstrip('0')}"


def signed(seconds: float) -> str:
    """A stretch of time that is owed, or was had too much."""
    if abs(seconds) < 0.05:
        return "0\u202fs"
    return ("+" if seconds > 0 else "−") + duration(abs(seconds))


def moment(value: datetime | None, otherwise: str = "–") -> Markup:
    """A time that the browser shows as an age, with the exact time on request."""
    if value is None:
        return Markup.escape(otherwise)
    exact = value.astimezone(UTC)
    return Markup('<time datetime="{}" title="{}">{}</time>').format(
        exact.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        exact.strftime("%Y-%m-%d %H:%M:%S UTC"),
        exact.strftime("%Y-%m-%d %H:%M:%S"),
    )


def badge(status: str) -> Markup:
    """A state as a coloured word."""
    return Markup('<span class="badge {0}">{1}</span>').format(
        status.replace("_", "-"), status.replace("_", " ")
    )


def pretty(document: Any) -> str:
    """JSON for people."""
    return json.dumps(document, indent=2, ensure_ascii=False)


def short_id(job_id: str) -> str:
    """An id as lists show it: its beginning is a time, its end tells it apart."""
    return f"{job_id[:8]}…{job_id[-6:]}"


WORDS: dict[str, Callable[..., Any]] = {
    "count": count,
    "percent": percent,
    "duration": duration,
    "money": money,
    "exact": exact,
    "signed": signed,
    "moment": moment,
    "badge": badge,
    "pretty": pretty,
    "short_id": short_id,
}
