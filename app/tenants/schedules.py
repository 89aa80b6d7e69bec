"""Schedules as rows: created, read, changed and removed by their tenant.

Times are the database's. A change takes the row's lock first, so that it comes before a tick or
after it: no tick is made by a schedule that is half the old one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import IntegrityError

from app.errors import Conflict
from app.tenants.cron import Rule, next_tick
from models.store.session import connect, transaction

#: Schedules of one tenant: the one limit of what ticks may ask for.
MOST_SCHEDULES = 1_000


@dataclass(frozen=True, slots=True)
class RecurringSchedule:
    """A row; the fields have the names of COLUMNS, and their order."""

    id: str
    tenant_id: int
    name: str
    cron: str
    timezone: str
    overlap: str
    catch_up: str
    type: str
    #: JSON text.
    payload: str
    priority: int
    paused: bool
    next_at: datetime | None = None
    last_at: datetime | None = None
    last_job_id: str | None = None
    made: int = 0
    skipped: int = 0
    created_at: datetime | None = None


COLUMNS = """
    schedule.id::text, schedule.tenant_id, schedule.name, schedule.cron, schedule.timezone,
    schedule.overlap, schedule.catch_up, schedule.type, schedule.payload::text, schedule.priority,
    schedule.paused, schedule.next_at, schedule.last_at, schedule.last_job_id::text,
    schedule.made, schedule.skipped, schedule.created_at"""
#: Payloads may be large, and a list does not show them.
LISTED = COLUMNS.replace("schedule.payload::text", "'' AS payload")

#: Two at once may both be the last one allowed: the bound is no promise.
CREATE = f"""
    INSERT INTO schedules AS schedule (id, tenant_id, name, cron, timezone, overlap, catch_up,
                                       type, payload, priority, paused, next_at)
    SELECT %(id)s, %(tenant_id)s, %(name)s, %(cron)s, %(timezone)s, %(overlap)s, %(catch_up)s,
           %(type)s, %(payload)s, %(priority)s, %(paused)s, %(next_at)s
    WHERE (SELECT count(*) FROM schedules WHERE tenant_id = %(tenant_id)s) < {MOST_SCHEDULES}
    ON CONFLICT (tenant_id, name) DO NOTHING
    RETURNING {COLUMNS}
"""
NAME_TAKEN = "SELECT 1 FROM schedules WHERE tenant_id = %(tenant_id)s AND name = %(name)s"
READ = f"""
    SELECT {COLUMNS} FROM schedules AS schedule
    WHERE schedule.id = %(id)s AND schedule.tenant_id = %(tenant_id)s
"""
LIST = f"""
    SELECT {LISTED} FROM schedules AS schedule
    WHERE schedule.tenant_id = %(tenant_id)s AND schedule.name > %(after)s
    ORDER BY schedule.name LIMIT %(limit)s
"""
CHANGE = """
    UPDATE schedules SET name = %(name)s, cron = %(cron)s, timezone = %(timezone)s,
        overlap = %(overlap)s, catch_up = %(catch_up)s, type = %(type)s, payload = %(payload)s,
        priority = %(priority)s, paused = %(paused)s, next_at = %(next_at)s
    WHERE id = %(id)s
"""
REMOVE = "DELETE FROM schedules WHERE id = %(id)s AND tenant_id = %(tenant_id)s"

#: What becomes of a schedule, at a time.
Change = Callable[[RecurringSchedule, datetime], RecurringSchedule]


def read_clock(connection: Connection) -> datetime:
    """The database's time, not that of the transaction: it may have waited for a lock."""
    moment: datetime = connection.exec_driver_sql("SELECT clock_timestamp()").scalar_one()
    return moment


def first_tick(rule: Rule, schedule: RecurringSchedule, now: datetime) -> datetime | None:
    """The next tick from now on, and never one again that came: clocks may be set back."""
    return next_tick(rule, now if schedule.last_at is None else max(now, schedule.last_at))


def create(engine: Engine, schedule: RecurringSchedule) -> RecurringSchedule:
    """Insert it; Conflict if the tenant has one of this name, or too many."""
    with connect(engine) as connection:
        row = connection.exec_driver_sql(CREATE, asdict(schedule)).first()
        if row is not None:
            return RecurringSchedule(**row._mapping)
        if connection.exec_driver_sql(NAME_TAKEN, asdict(schedule)).first():
            raise name_taken(schedule.name)
    raise Conflict(f"You have {MOST_SCHEDULES:,} schedules; more are not kept for a tenant.")


def read(engine: Engine, tenant_id: int, schedule_id: str) -> RecurringSchedule | None:
    """The tenant's schedule, if there is one."""
    with connect(engine) as connection:
        row = connection.exec_driver_sql(READ, {"id": schedule_id, "tenant_id": tenant_id}).first()
    return None if row is None else RecurringSchedule(**row._mapping)


def read_page(
    connection: Connection, tenant_id: int, after: str, limit: int
) -> Sequence[RecurringSchedule]:
    """The tenant's schedules by name, those after a name."""
    asked: dict[str, Any] = {"tenant_id": tenant_id, "after": after, "limit": limit}
    return [RecurringSchedule(**row._mapping) for row in connection.exec_driver_sql(LIST, asked)]


def change(
    engine: Engine, tenant_id: int, schedule_id: str, into: Change
) -> RecurringSchedule | None:
    """Replace the tenant's schedule by what ``into`` makes of it; None if there is none."""
    try:
        with transaction(engine) as connection:
            row = connection.exec_driver_sql(
                f"{READ} FOR UPDATE", {"id": schedule_id, "tenant_id": tenant_id}
            ).first()
            if row is None:
                return None
            changed = into(RecurringSchedule(**row._mapping), read_clock(connection))
            connection.exec_driver_sql(CHANGE, asdict(changed))
    except IntegrityError:
        raise name_taken(changed.name) from None
    return changed


def remove(engine: Engine, tenant_id: int, schedule_id: str) -> bool:
    """Remove the tenant's schedule; whether there was one. Its jobs stay."""
    with connect(engine) as connection:
        asked = {"id": schedule_id, "tenant_id": tenant_id}
        return connection.exec_driver_sql(REMOVE, asked).rowcount > 0


def name_taken(name: str) -> Conflict:
    """The error of a name that is another's."""
    return Conflict(f"There is a schedule of the name {name!r} already.")
