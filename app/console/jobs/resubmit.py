"""``/console/jobs/<id>/resubmit``, ``/tenant/jobs/<id>/resubmit``: an ended job's payload, edited.

What is sent is a new job of the same tenant, admitted like any other: under its rate, its depth and
the checks of its type. It names the old one, which stays as it is. Errors are shown beside the
fields, which keep what was typed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from flask import Response, render_template, request
from sqlalchemy import Row
from werkzeug.wrappers import Response as AnyResponse

from app.admission.intake import take_in
from app.api.auth.access import Access
from app.api.http.problems import problem_of
from app.api.http.query import known_id
from app.api.http.state import write_state
from app.api.routes.jobs import submission_of
from app.api.schemas.requests import SubmitJob
from app.api.services import current_services, current_tenant
from app.console.formatting import pretty
from app.console.forms import Form, body_with_payload, number_of, reasons
from app.console.jobs.job import NO_JOB, read_payload
from app.console.page import done, find_row, route
from app.errors import Conflict, FairlineError, NotFound
from app.tenants.ownership import own
from models.audit import Act, record_first
from models.jobs.states import LIVE

#: Longer payloads are not edited in a browser.
MOST_CHARACTERS = 500_000
TOO_LONG = "The payload is too long to be edited here. Submit the job with POST /jobs."

FIND_JOB = """
    SELECT job.id::text AS id, job.tenant_id, tenant.name AS tenant, job.type, job.priority,
           job.status::text AS status
    FROM jobs AS job JOIN tenants AS tenant ON tenant.id = job.tenant_id
    WHERE job.id = %(id)s::uuid
"""


@dataclass(frozen=True, slots=True)
class JobSide:
    """The pages of jobs as one kind of visitor sees them."""

    path: str
    access: Access
    layout: str
    #: What resubmitting a job is recorded as: nothing if it is the tenant's own.
    acts: tuple[Act, ...] = ()

    def find(self, text: str) -> Row[Any]:
        """An ended job that the visitor may see; another tenant's is none."""
        missing = NO_JOB if self.access is Access.CONSOLE else ""
        job = find_row(FIND_JOB, missing, id=known_id(text, missing))
        if self.access is Access.TENANT_PAGE:
            own(job, current_tenant().id)
        if job.status in LIVE:
            raise Conflict("The job has not ended yet.")
        return job


SIDES = (
    JobSide("/console/jobs", Access.CONSOLE, "console/base.html", (Act.JOB_SUBMIT,)),
    JobSide("/tenant/jobs", Access.TENANT_PAGE, "console/tenant-base.html"),
)


def get_resubmit(side: JobSide, job_id: str) -> str:
    """The form, with the payload of the job."""
    job = side.find(job_id)
    text = read_payload(job.id)[0]
    if len(text) > MOST_CHARACTERS:
        return show(side, job, Form({}, TOO_LONG), editable=False)
    typed = {"payload": pretty(json.loads(text)), "priority": str(job.priority)}
    return show(side, job, Form(typed))


def post_resubmit(side: JobSide, job_id: str) -> AnyResponse:
    """A new job with the payload as it was edited."""
    # The body as a whole was limited when it was read.
    request.max_form_memory_size = None
    job, typed = side.find(job_id), request.form.to_dict()
    try:
        submitted = resubmit(job, typed)
    except NotFound:
        raise
    except FairlineError as error:
        answer = problem_of(error)
        headers = {name: value for name, value in answer.headers if name == "Retry-After"}
        shown = show(side, job, Form(typed, *reasons(error)))
        return Response(shown, answer.status_code, headers)
    return done(f"{side.path}/{submitted}", "Submitted as a new job.")


def resubmit(job: Row[Any], typed: Mapping[str, str]) -> str:
    """Admit the new job; its id."""
    services = current_services()
    tenant = services.visitors.tenant_named(job.tenant)
    if tenant is None:
        raise NotFound
    services.gate.pass_rate(tenant)
    submission = submission_of(services, tenant.id, body_of(job, typed))
    with write_state() as engine:
        after = {"type": job.type, "resubmitted_from": job.id}
        record_first(engine, Act.JOB_SUBMIT, submission.id, tenant=tenant.name, after=after)
    return take_in(services, tenant, (submission,), None).ids[0]


def body_of(job: Row[Any], typed: Mapping[str, str]) -> SubmitJob:
    """What was typed as the API takes it."""
    priority = number_of(typed.get("priority", ""))
    fixed = {"type": job.type, "priority": priority, "resubmitted_from": job.id}
    return body_with_payload(fixed, typed.get("payload", ""), SubmitJob)


def show(side: JobSide, job: Row[Any], form: Form, *, editable: bool = True) -> str:
    return render_template(
        "console/resubmit.html", side=side, job=job, form=form, editable=editable
    )


for _side in SIDES:
    _rule = f"{_side.path}/<job_id>/resubmit"
    route("GET", _rule, _side.access)(partial(get_resubmit, _side))
    route("POST", _rule, _side.access, _side.acts)(partial(post_resubmit, _side))
