"""``/console/schedules`` and ``/tenant/schedules``: schedules and their next ticks, and a new one.

Pages follow the index by tenant id and name. A schedule without a next tick has ended: its
expression matches no future time.
"""

from __future__ import annotations

from functools import partial
from typing import Any
from urllib.parse import urlencode

from app.api.http.query import bad_cursor, pack_cursor, unpack_cursor
from app.api.http.state import read_standby
from app.api.services import current_services
from app.console.page import PageRequest, live_page
from app.console.schedules.form import NEW, ScheduleForm
from app.console.schedules.sides import SIDES, ScheduleSide
from app.tenants.cron import known_zones

PAGE = 100
DAYS = ("Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
DAY_NAMES = ("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT")

#: Without payloads, which may be large.
READ_SCHEDULES = f"""
    SELECT schedule.id::text, schedule.tenant_id, tenant.name AS tenant, schedule.name,
           schedule.cron, schedule.timezone, schedule.overlap, schedule.catch_up, schedule.type,
           schedule.priority, schedule.next_at, schedule.last_at,
           schedule.last_job_id::text, schedule.made, schedule.skipped,
           CASE WHEN schedule.paused THEN 'paused'
                WHEN schedule.next_at IS NULL THEN 'ended' ELSE 'active' END AS state
    FROM schedules AS schedule JOIN tenants AS tenant ON tenant.id = schedule.tenant_id
    WHERE (schedule.tenant_id, schedule.name) > (%(tenant_id)s, %(name)s)
    ORDER BY schedule.tenant_id, schedule.name LIMIT {PAGE + 1}
"""
READ_OF_TENANT = READ_SCHEDULES.replace("WHERE", "WHERE tenant.name = %(tenant)s AND")


def read_schedules(side: ScheduleSide, asked: PageRequest) -> dict[str, Any]:
    """A page of schedules, of one tenant if the query names it or the visitor is one."""
    tenant = asked.args.get("tenant", "").strip().replace("\0", "")
    if asked.tenant:
        tenant = asked.tenant.name
    tenant_id, name = place_of(asked.args.get("after", ""))
    values = {"tenant": tenant, "tenant_id": tenant_id, "name": name}
    with read_standby() as connection:
        statement = READ_OF_TENANT if tenant else READ_SCHEDULES
        rows = list(connection.exec_driver_sql(statement, values).mappings())
    shown = rows[:PAGE]
    more = len(rows) > PAGE
    link = partial(page_link, side, "" if asked.tenant else tenant)
    return {
        "side": side,
        "layout": side.layout,
        "types": sorted(current_services().types),
        "zones": lambda: sorted(known_zones()),
        "form": ScheduleForm(NEW | {"tenant": tenant}),
        "schedules": [dict(row, words=cron_words(row["cron"])) for row in shown],
        "tenant": asked.tenant or tenant,
        "back_to": asked.url,
        "first": link() if tenant_id else "",
        "next": link(shown[-1]["tenant_id"], shown[-1]["name"]) if more else "",
    }


def page_link(side: ScheduleSide, tenant: str, last_tenant: int = 0, last_name: str = "") -> str:
    """The page that begins after a schedule, or the first."""
    query = {"tenant": tenant} if tenant else {}
    if last_tenant:
        query["after"] = pack_cursor(f"{last_tenant} {last_name}")
    return side.path + (f"?{urlencode(query)}" if query else "")


def place_of(cursor: str) -> tuple[int, str]:
    """The last schedule of the page before."""
    tenant_id, _, name = unpack_cursor(cursor).partition(" ")
    if not cursor:
        return 0, ""
    if not (tenant_id.isascii() and tenant_id.isdecimal() and len(tenant_id) < 19) or "\0" in name:
        raise bad_cursor()
    return int(tenant_id), name


def cron_words(cron: str) -> str:
    """A cron expression (``app.tenants.cron``) in words; empty if it is not simple."""
    fields = cron.upper().split()
    if len(fields) != 5 or fields[3] != "*":
        return ""
    minute, hour, day, _, weekday = fields
    if hour == day == weekday == "*":
        return within_hour(minute)
    if not (minute.isdecimal() and hour.isdecimal()):
        return every_hours(minute, hour) if day == weekday == "*" else ""
    days = day_words(day, weekday)
    return f"{days} at {int(hour):02}:{int(minute):02}" if days else ""


def within_hour(minute: str) -> str:
    """Several times an hour, or once."""
    if minute == "*":
        return "every minute"
    if minute.isdecimal():
        return f"every hour at {int(minute)} past" if int(minute) else "every hour"
    step = step_of(minute, 60)
    return {0: "", 1: "every minute"}.get(step, f"every {step} minutes")


def every_hours(minute: str, hour: str) -> str:
    """Every few hours, at a minute."""
    step = step_of(hour, 24)
    if not minute.isdecimal() or step < 2:
        return ""
    past = f" at {int(minute)} past" if int(minute) else ""
    return f"every {step} hours{past}"


def step_of(field: str, whole: int) -> int:
    """The step of ``*/step`` if it divides the whole, else 0."""
    step = field.removeprefix("*/")
    divides = step != field and step.isdecimal() and int(step) and whole % int(step) == 0
    return int(step) if divides else 0


def day_words(day: str, weekday: str) -> str:
    """Which days; empty if both fields narrow them."""
    if weekday == "*":
        if day == "*":
            return "every day"
        if day == "L":
            return "on the last day of every month"
        return f"on day {int(day)} of every month" if day.isdecimal() else ""
    if day != "*":
        return ""
    if weekday in ("1-5", "MON-FRI"):
        return "Monday to Friday"
    if weekday in DAY_NAMES:
        return f"every {DAYS[DAY_NAMES.index(weekday)]}"
    return f"every {DAYS[int(weekday)]}" if weekday.isdecimal() and int(weekday) <= 7 else ""


SCHEDULES = {
    side: live_page(
        side.path,
        "console/schedules.html",
        partial(read_schedules, side),
        access=side.access,
        every_seconds=3.0,
    )
    for side in SIDES
}
