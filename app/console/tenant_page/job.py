"""``/tenant/jobs/<id>``: one job as its own tenant sees it, read as operators' page reads it.

A job of somebody else's is answered as one that there is not.
"""

from __future__ import annotations

from typing import Any

from app.api.auth.access import Access
from app.api.http.state import read_state
from app.console.jobs.job import read_job
from app.console.page import LivePage, PageRequest
from app.tenants.ownership import own
from models.jobs.ids import parse_id

READ_OWNER = "SELECT tenant_id FROM jobs WHERE id = %(id)s::uuid"


def own_id(text: str, tenant_id: int) -> str:
    """The id of a job, if it is the tenant's; else there is no such thing."""
    job_id = parse_id(text)
    row = None
    if job_id is not None:
        with read_state() as connection:
            row = connection.exec_driver_sql(READ_OWNER, {"id": job_id}).first()
    own(row, tenant_id)
    assert job_id is not None
    return job_id


def read(asked: PageRequest) -> dict[str, Any]:
    """What the page shows."""
    own_id(asked.values["job_id"], asked.own.id)
    return {"tenant": asked.own, **read_job(asked)}


TENANT_JOB = LivePage(
    "/tenant/jobs/<job_id>", "console/tenant-job.html", read, access=Access.TENANT_PAGE
)
