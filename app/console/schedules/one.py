"""``/console/schedules/<id>`` and ``/tenant/schedules/<id>``: one schedule and its history.

The history is read from the tenant's events: which job each tick became, and which ticks were
skipped or missed, and why. It goes back as far as events are kept, and at most fifty entries.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from functools import partial
from typing import Any

from sqlalchemy import Connection, Row

from app.api.http.state import read_state
from app.api.services import current_services
from app.console.page import PageRequest, live_page
from app.console.schedules.form import form_of
from app.console.schedules.page import cron_words
from app.console.schedules.sides import SIDES, ScheduleSide, read_whole
from app.reads.contents import readable_text
from app.tenants.cron import known_zones
from app.tenants.schedules import place_of, read_history
from models.encryption.key_ring import ContentKind, Place
from models.jobs.ids import parse_id
from models.store.arrays import plain_array

SHOWN = 50

READ_RUNS = """
    SELECT id::text, status::text, created_at, execute_at, started_at, finished_at, crashes,
           replays, attempt, error_class
    FROM jobs WHERE id = ANY (%(ids)s::uuid[]) AND tenant_id = %(tenant)s
"""


def read_schedule(side: ScheduleSide, asked: PageRequest) -> dict[str, Any]:
    found = side.find_of(asked)
    schedule = read_whole(found)
    with read_state() as connection:
        events = read_history(connection, schedule.tenant_id, schedule.id, SHOWN)
        jobs = read_runs(connection, schedule.tenant_id, events)
    return {
        **form_choices(side),
        "schedule": schedule,
        "tenant": asked.tenant,
        "owner": found.tenant,
        "words": cron_words(schedule.cron),
        "state": "paused" if schedule.paused else "active" if schedule.next_at else "ended",
        "history": [entry_of(event, jobs, place_of(schedule)) for event in events],
        "form": form_of(schedule),
    }


def form_choices(side: ScheduleSide) -> dict[str, Any]:
    """What the form offers, and where it is."""
    return {
        "side": side,
        "layout": side.layout,
        "types": sorted(current_services().types),
        "zones": lambda: sorted(known_zones()),
    }


def read_runs(
    connection: Connection, tenant_id: int, events: Sequence[Row[Any]]
) -> dict[str, dict[str, Any]]:
    """The jobs of its ticks that have not been retired."""
    ids = [known for event in events if (known := parse_id(event.detail.get("job_id") or ""))]
    if not ids:
        return {}
    asked = {"ids": plain_array(ids), "tenant": tenant_id}
    rows = connection.exec_driver_sql(READ_RUNS, asked).mappings()
    return {row["id"]: dict(row) for row in rows}


def entry_of(event: Row[Any], jobs: dict[str, dict[str, Any]], place: Place) -> dict[str, Any]:
    """A line of the history of the schedule at ``place``."""
    detail = event.detail
    job_id, reason = detail.get("job_id"), place._replace(kind=ContentKind.REASON)
    return {
        "kind": event.kind.removeprefix("schedule_"),
        "at": time_of(detail.get("at") or detail.get("first")),
        "until": time_of(detail.get("last")),
        "reason": readable_text(detail.get("reason"), reason) or "",
        "manual": bool(detail.get("manual")),
        "job_id": job_id,
        "job": jobs.get(job_id or ""),
    }


def time_of(text: str | None) -> datetime | None:
    return datetime.fromisoformat(text) if text else None


ONE = {
    side: live_page(
        f"{side.path}/<schedule_id>",
        "console/schedule.html",
        partial(read_schedule, side),
        access=side.access,
        every_seconds=3.0,
    )
    for side in SIDES
}
