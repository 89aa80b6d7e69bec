"""Schedules as rows: created, read, changed and removed by their tenant.

Times are the database's. A change locks the row first, so that it comes before a tick or after
it: no tick is made by a schedule that is half the old one. Ticks that are due when it is retimed
or paused are not made: they are counted in ``skipped`` and reported as ``schedule_missed``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from datetime import datetime
from typing import Any

from pydantic_core import from_json
from sqlalchemy import Connection, Engine, Row
from sqlalchemy.exc import IntegrityError

from app.errors import Conflict, ValidationFailed
from app.tenants.cron import BadCron, Rule, UnknownZone, next_tick, read_rule
from app.tenants.ticks import DroppedTicks, drop_due
from models.audit import Act, differences, record, recording
from models.encryption.key_ring import ContentKind, DecryptionError, Place
from models.encryption.values import decrypt_json, encrypt_json, encrypt_text
from models.store.session import execute, fetch, transaction
from models.wakeups import SEND

#: Schedules of one tenant.
MOST_SCHEDULES = 1_000


@dataclass(frozen=True, slots=True)
class RecurringSchedule:
    """A row; the fields have the names of the columns."""

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


FIELDS = tuple(each.name for each in fields(RecurringSchedule))
#: What a schedule is created with; all but the first two may change.
GIVEN = FIELDS[: FIELDS.index("last_at")]
#: Of these, what is not in the audit log.
UNRECORDED = ("payload", "next_at")
COLUMNS = ", ".join(
    f"schedule.{name}" + ("::text" if name in ("id", "payload", "last_job_id") else "")
    for name in FIELDS
)
#: Payloads may be large, and a list does not show them.
LISTED = COLUMNS.replace("schedule.payload::text", "'' AS payload")

#: As the API writes times.
RFC3339 = """to_char({}, 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"')"""

#: Events about a schedule; and events of its tenant that are read to find them.
HISTORY = ("schedule_run", "schedule_skipped", "schedule_missed", "schedule_paused")
MOST_EVENTS = 5_000

#: Two at once may both be the last one allowed: the bound may be exceeded by a few.
CREATE = f"""
    INSERT INTO schedules AS schedule ({", ".join(GIVEN)})
    SELECT {", ".join(f"%({name})s" for name in GIVEN)}
    WHERE (SELECT count(*) FROM schedules WHERE tenant_id = %(tenant_id)s) < {MOST_SCHEDULES}
    ON CONFLICT (tenant_id, name) DO NOTHING
    RETURNING {COLUMNS}
"""
NAME_TAKEN = """
    SELECT 1 FROM schedules
    WHERE tenant_id = %(tenant_id)s AND name = %(name)s AND id <> %(id)s
"""
READ = f"""
    SELECT {COLUMNS} FROM schedules AS schedule
    WHERE schedule.id = %(id)s AND schedule.tenant_id = %(tenant_id)s
"""
#: By their bytes, as the lists of several cells are merged; 1,000 are sorted at most.
LIST = f"""
    SELECT {LISTED} FROM schedules AS schedule
    WHERE schedule.tenant_id = %(tenant_id)s AND schedule.name COLLATE "C" > %(after)s
    ORDER BY schedule.name COLLATE "C" LIMIT %(limit)s
"""
CHANGE = f"""
    WITH changed AS (
        UPDATE schedules SET {", ".join(f"{name} = %({name})s" for name in GIVEN[2:])},
               skipped = %(skipped)s
        WHERE id = %(id)s
        RETURNING id, name, tenant_id, paused
    )
    INSERT INTO events (tenant_id, kind, detail)
    SELECT tenant_id, 'schedule_missed', json_build_object(
        'schedule', id, 'name', name, 'first', {RFC3339.format("first")},
        'last', {RFC3339.format("last")},
        'reason', CASE WHEN paused THEN 'paused' ELSE 'retimed' END)
    FROM changed, (VALUES (%(first)s::timestamptz, %(last)s::timestamptz)) AS dropped (first, last)
    WHERE first IS NOT NULL
"""
#: A tick is noted by the scheduler, with the job that it became.
NOTE_RUN = f"""
    INSERT INTO events (tenant_id, kind, detail)
    VALUES (%(tenant_id)s, 'schedule_run', json_build_object(
        'schedule', %(id)s::text, 'name', %(name)s::text, 'at', {RFC3339.format("now()")},
        'job_id', %(job_id)s::text, 'manual', true))
"""
#: Of the tenant's newest events, those about the schedule, newest first.
READ_HISTORY = f"""
    SELECT kind, detail FROM (
        SELECT kind, detail, xid, id FROM events WHERE tenant_id = %(tenant_id)s
        ORDER BY xid DESC, id DESC LIMIT {MOST_EVENTS}) AS newest
    WHERE kind IN ({", ".join(f"'{kind}'" for kind in HISTORY)})
      AND detail ->> 'schedule' = %(id)s
    ORDER BY xid DESC, id DESC LIMIT %(limit)s
"""
REMOVE = f"""
    DELETE FROM schedules AS schedule WHERE id = %(id)s AND tenant_id = %(tenant_id)s
    RETURNING {COLUMNS}
"""

#: The schedule as it shall be, from what it is and the time.
Change = Callable[[RecurringSchedule, datetime], RecurringSchedule]


def schedule_of(row: Row[Any]) -> RecurringSchedule:
    """A row with its payload; DecryptionError if that cannot be read."""
    schedule = RecurringSchedule(**row._mapping)
    return replace(schedule, payload=decrypt_json(schedule.payload, place_of(schedule)))


def stored(schedule: RecurringSchedule) -> dict[str, Any]:
    """Its columns: the payload is encrypted, if keys are configured."""
    payload = encrypt_json(schedule.payload, place_of(schedule))
    return asdict(schedule) | {"payload": payload}


def payload_of(schedule: RecurringSchedule) -> Any:
    """The payload of a schedule as it is stored; ValidationFailed if it cannot be decrypted."""
    try:
        return from_json(decrypt_json(schedule.payload, place_of(schedule)))
    except DecryptionError as error:
        raise ValidationFailed(str(error)) from None


def stored_reason(schedule: RecurringSchedule, reason: str) -> str | None:
    """Why a tick was skipped, for an event: it may name parts of the payload."""
    return encrypt_text(reason, place_of(schedule)._replace(kind=ContentKind.REASON))


def place_of(schedule: RecurringSchedule) -> Place:
    return Place(schedule.tenant_id, schedule.id, ContentKind.SCHEDULE)


def read_clock(connection: Connection) -> datetime:
    """The database's time, not that of the transaction: it may have waited for a lock."""
    moment: datetime = connection.exec_driver_sql("SELECT clock_timestamp()").scalar_one()
    return moment


def first_tick(rule: Rule, schedule: RecurringSchedule, now: datetime) -> datetime | None:
    """The next tick from now on, and never an earlier one again: clocks may be set back."""
    return next_tick(rule, now if schedule.last_at is None else max(now, schedule.last_at))


def create(engine: Engine, schedule: RecurringSchedule) -> RecurringSchedule:
    """Insert it; Conflict if the tenant has one of this name, or too many."""
    with recording(engine) as connection:
        row = connection.exec_driver_sql(CREATE, stored(schedule)).first()
        if row is not None:
            connection.exec_driver_sql(SEND)
            _record(connection, Act.SCHEDULE_CREATE, schedule, after=shown(schedule))
            return schedule_of(row)
        if connection.exec_driver_sql(NAME_TAKEN, asdict(schedule)).first():
            raise name_taken(schedule.name)
    raise Conflict(f"You have {MOST_SCHEDULES:,} schedules; a tenant can have no more.")


def require_free_name(engine: Engine, tenant_id: int, name: str, schedule_id: str) -> None:
    """Conflict if another schedule of the tenant has the name."""
    if fetch(engine, NAME_TAKEN, {"tenant_id": tenant_id, "name": name, "id": schedule_id}):
        raise name_taken(name)


def read(engine: Engine, tenant_id: int, schedule_id: str) -> RecurringSchedule | None:
    """The tenant's schedule, if there is one."""
    rows = fetch(engine, READ, {"id": schedule_id, "tenant_id": tenant_id})
    return schedule_of(rows[0]) if rows else None


def read_page(
    connection: Connection, tenant_id: int, after: str, limit: int
) -> Sequence[RecurringSchedule]:
    """The tenant's schedules in the order of their names, those after ``after``."""
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
            before, now = schedule_of(row), read_clock(connection)
            changed = into(before, now)
            dropped = dropped_by(before, changed, now)
            if dropped is not None:
                changed = replace(changed, skipped=changed.skipped + dropped.count)
            range_ = {"first": dropped and dropped.first, "last": dropped and dropped.last}
            connection.exec_driver_sql(CHANGE, stored(changed) | range_)
            connection.exec_driver_sql(SEND)
            was, became = differences(shown(before), shown(changed))
            if changed.payload != before.payload:
                became["payload"] = "(changed)"
            if became:
                _record(connection, Act.SCHEDULE_CHANGE, changed, was, became)
    except IntegrityError:
        raise name_taken(changed.name) from None
    return changed


def dropped_by(
    before: RecurringSchedule, changed: RecurringSchedule, now: datetime
) -> DroppedTicks | None:
    """The due ticks that a change drops. What comes during a pause is no tick."""
    due = before.next_at is not None and before.next_at <= now and not before.paused
    if not due or not (changed.paused or changed.next_at != before.next_at):
        return None
    assert before.next_at is not None
    try:
        rule = read_rule(before.cron, before.timezone)
    except (BadCron, UnknownZone):  # written by another version, or with newer time zones
        rule = None
    return drop_due(rule, before.next_at, now)


def note_run(engine: Engine, schedule: RecurringSchedule, job_id: str) -> None:
    """Record that its job was submitted without a tick."""
    execute(engine, NOTE_RUN, asdict(schedule) | {"job_id": job_id})


def read_history(
    connection: Connection, tenant_id: int, schedule_id: str, limit: int
) -> Sequence[Row[Any]]:
    """What became of its ticks, newest first, as far as the tenant's newest events go back."""
    asked = {"tenant_id": tenant_id, "id": schedule_id, "limit": limit}
    return connection.exec_driver_sql(READ_HISTORY, asked).all()


def remove(engine: Engine, tenant_id: int, schedule_id: str) -> bool:
    """Remove the tenant's schedule; whether there was one. Its jobs stay."""
    with recording(engine) as connection:
        asked = {"id": schedule_id, "tenant_id": tenant_id}
        row = connection.exec_driver_sql(REMOVE, asked).first()
        if row is None:
            return False
        removed = RecurringSchedule(**row._mapping)
        _record(connection, Act.SCHEDULE_REMOVE, removed, shown(removed))
    return True


def shown(schedule: RecurringSchedule) -> dict[str, Any]:
    """What the audit log has of it: not the payload, which may be about a person."""
    return {name: getattr(schedule, name) for name in GIVEN[2:] if name not in UNRECORDED}


def _record(
    connection: Connection,
    act: Act,
    schedule: RecurringSchedule,
    before: Mapping[str, Any] | None = None,
    after: Mapping[str, Any] | None = None,
) -> None:
    tenant = schedule.tenant_id
    record(connection, act, schedule.id, tenant=tenant, before=before, after=after)


def name_taken(name: str) -> Conflict:
    """The error of a name that is in use."""
    return Conflict(f"There is a schedule of the name {name!r} already.")
