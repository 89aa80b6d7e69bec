"""How pages show values: counts, times, states. Everything here is pure."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

from markupsafe import Markup

from app.reads.times import rfc3339
from models.presence import parse_process

#: How much of a large document a page shows.
SHOWN_CHARACTERS = 20_000
#: Durations below the first number are shown in units of the second, with so many decimals.
UNITS = (
    (0.0995, 0.001, 0, "ms"),
    (9.95, 1.0, 1, "s"),
    (119.5, 1.0, 0, "s"),
    (7_170, 60.0, 0, "min"),
    (172_000, 3_600.0, 1, "h"),
    (float("inf"), 86_400.0, 1, "d"),
)


def count(value: float | None) -> str:
    """A number with separated thousands, and decimals only where they matter."""
    if value is None:
        return "–"
    if value == int(value) or abs(value) >= 1_000:
        return f"{round(value):,}".replace(",", "\u202f")
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def percent(value: float | None) -> str:
    return "–" if value is None else f"{value * 100:.0f}\u202f%"


def duration(seconds: float | Decimal | None) -> str:
    """A duration in a readable unit."""
    if seconds is None:
        return "–"
    value = float(seconds)
    _, unit, decimals, name = next(one for one in UNITS if value < one[0])
    return f"{value / unit:.{decimals}f}\u202f{name}"


def exact(amount: Decimal) -> str:
    """An amount as it is billed, to the millionth; zeros beyond the second digit are left out."""
    whole, _, rest = f"{amount:.6f}".partition(".")
    return f"{whole}.{rest[:2]}{rest[2:].rstrip('0')}"


def signed(seconds: float) -> str:
    if abs(seconds) < 0.05:
        return "0\u202fs"
    return ("+" if seconds > 0 else "−") + duration(abs(seconds))


def moment(value: datetime | None, otherwise: str = "–", attributes: str = "") -> Markup:
    """A time that the browser shows as the visitor chose: "12 s ago", in local time or in UTC."""
    if value is None:
        return Markup.escape(otherwise)
    shown = value.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    return Markup('<time datetime="{}" title="{}"{}>{}</time>').format(
        rfc3339(value), shown, attributes, shown
    )


def age(since: datetime) -> Markup:
    """A time that the browser shows as how long ago it was: "12 s"."""
    return moment(since, attributes=" data-age")


def waited(job: Mapping[str, Any]) -> Markup | str:
    """How long a job waited for its last run from when it was due, or has been waiting.

    Not known after a crash or a replay: when it came back is not recorded.
    """
    due = max(job["created_at"], job["execute_at"] or job["created_at"])
    if job["status"] == "scheduled":
        return Markup("due ") + moment(due)
    if job["crashes"] or job.get("replays"):
        return "–"
    if job["status"] in ("queued", "dispatched"):
        return age(due)
    started = job["started_at"]
    return duration(None if started is None or started < due else (started - due).total_seconds())


def ran(job: Mapping[str, Any]) -> Markup | str:
    """How long a job's last run took, or has been running."""
    started, ended = job["started_at"], job["finished_at"]
    if job["status"] == "running" and started is not None:
        return age(started)
    return duration(None if started is None or ended is None else (ended - started).total_seconds())


def slot_time(job: Any) -> Markup | str:
    """Slot time of all runs of a job; of a running one so far, as the browser counts it."""
    if job.status != "running" or job.started_at is None:
        return duration(job.slot_seconds)
    # As if all of it were one run that goes on; its beginning is no time to be shown.
    since = rfc3339(job.started_at - timedelta(seconds=job.slot_seconds))
    return Markup('<time datetime="{0}" data-age>since {0}</time> so far').format(since)


def badge(status: str) -> Markup:
    return Markup('<span class="badge {0}">{1}</span>').format(
        status.replace("_", "-"), status.replace("_", " ")
    )


def pretty(document: Any) -> str:
    return json.dumps(document, indent=2, ensure_ascii=False)


def short_id(job_id: str) -> str:
    """An id as lists show it: its beginning is a time, its end is random."""
    return f"{job_id[:8]}…{job_id[-6:]}"


def worker_name(process: str) -> Markup:
    """A worker by its Celery node name, with the process in the title."""
    node, pid = parse_process(process)
    if not pid:
        return Markup("<code>{}</code>").format(process)
    return Markup('<code title="process {}">{}</code>').format(pid, node)


_FORMATS = (
    *(count, percent, duration, exact, signed, moment, age, waited, ran, badge, short_id),
    *(worker_name, slot_time),
)
#: What templates can call, by name.
FORMATS: dict[str, Callable[..., Any]] = {one.__name__: one for one in _FORMATS}
