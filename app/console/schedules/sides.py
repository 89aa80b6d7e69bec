"""Who sees schedules: operators those of all tenants, a tenant its own, at different addresses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import Row

from app.api.auth.access import Access
from app.api.http.query import known_id
from app.api.http.state import write_state
from app.api.services import current_tenant
from app.console.page import PageRequest, find_row
from app.tenants import schedules
from app.tenants.ownership import own
from app.tenants.schedules import RecurringSchedule

FIND_SCHEDULE = """
    SELECT schedule.id::text, schedule.tenant_id, tenant.name AS tenant FROM schedules AS schedule
    JOIN tenants AS tenant ON tenant.id = schedule.tenant_id WHERE schedule.id = %(id)s
"""


@dataclass(frozen=True, slots=True)
class ScheduleSide:
    """The pages of schedules as one kind of visitor sees them."""

    path: str
    #: Of a job's page.
    jobs: str
    access: Access
    layout: str

    @property
    def of_operators(self) -> bool:
        return self.access is Access.CONSOLE

    def find(self, schedule_id: str, tenant_id: int | None = None) -> Row[Any]:
        """Id and tenant of a schedule that the visitor may see."""
        found = find_row(FIND_SCHEDULE, id=known_id(schedule_id))
        if not self.of_operators:
            own(found, current_tenant().id if tenant_id is None else tenant_id)
        return found

    def find_of(self, asked: PageRequest) -> Row[Any]:
        """The same for a live page, which is rendered outside of a request."""
        tenant_id = asked.tenant.id if asked.tenant else None
        return self.find(asked.values["schedule_id"], tenant_id)


OPERATORS = ScheduleSide("/console/schedules", "/console/jobs", Access.CONSOLE, "console/base.html")
TENANTS = ScheduleSide(
    "/tenant/schedules", "/tenant/jobs", Access.TENANT_PAGE, "console/tenant-base.html"
)
SIDES = (OPERATORS, TENANTS)


def read_whole(found: Row[Any]) -> RecurringSchedule:
    """The schedule with its payload."""
    with write_state() as engine:
        return own(schedules.read(engine, found.tenant_id, found.id), found.tenant_id)
