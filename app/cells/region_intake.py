"""Region intake: takes submissions in while the tenant's cell is away, and answers for them.

A submission is validated by the tenant's profile as this process knows it, or by its copy in the
registry; it is kept durably in the *host*, a cell of this process's region that is there, and
answered with the usual 202. ``IntakeHandover`` of the host's scheduler hands it over, once, when
the tenant's cell is back or another one is promoted in its place. Until then a poll says that the
job is queued, with the reason ``cell_away``; it can be cancelled here. Tenants are divided over the
hosts of a region, so that no single one gets all the load of a lost cell.

The id of such a job carries the number of its host: that is where it is looked up, by processes of
other regions too. Who asks its cell first, gets 404 there and then asks the host finds it at one of
them, or it has been handed over in between and is in its cell.

Not guaranteed: that a key of before the outage is known to have been used; it is found out when the
request is handed over (`models.jobs.hand_over`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING

from flask import Flask

from app.api.auth.access import Access, authorize
from app.api.http.problems import problem_of
from app.api.routes.applications import submit_application
from app.api.routes.batch import post_batch
from app.api.routes.jobs import submit_job
from app.cells import intake_views
from app.cells.fan_out import BegunResponse
from app.cells.forwarding import SUBMISSIONS
from app.cells.intake_services import TenantHomes, intake_services
from app.cells.tenant_request import TenantRequest
from app.errors import CellUnavailable, Forbidden, NotFound
from app.log_ids import CALLER, current_request
from app.policy.placement import Placement
from app.tenants.scopes import Scope
from models.cells.intake_jobs import KeptRow, cancel_kept, find_kept
from models.jobs.ids import cell_number, parse_id
from models.store.errors import StateStoreError
from models.store.group_commit import GroupCommit
from models.store.roles import every_tenant, set_tenant

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIApplication, WSGIEnvironment

    from app.api.services import Services
    from app.cells.copied_callers import CopiedCallers
    from app.cells.fan_out import ServedApps
    from app.config import Settings
    from app.tenants.directory import Caller
    from app.tenants.tenant import TenantProfile

#: A job or an application by its id: all that can be said of one that has not begun.
ONE = re.compile(r"/(jobs|applications)/([0-9A-Fa-f-]{36})(?:/(wait|runs))?")
#: Rows that are read together: each may have megabytes.
MOST_FOUND = 20
TO_SUBMIT, TO_READ = frozenset({Scope.SUBMIT}), frozenset({Scope.READ})


@dataclass(frozen=True, slots=True)
class IntakeHost:
    """A cell that requests for others are kept in."""

    #: The application of the cell itself.
    app: Flask
    services: Services
    #: For routes that look for their services in the current application.
    routes: Flask
    rows: GroupCommit[str, KeptRow | None]


@dataclass(frozen=True, slots=True)
class AskedJob:
    """A job that a request is about."""

    id: str
    application: bool
    #: ``wait`` or ``runs``; empty: the job itself.
    part: str


class RegionIntake:
    """Answers for tenants whose cell is away. One per process."""

    def __init__(
        self,
        settings: Settings,
        apps: ServedApps,
        own_cells: Callable[[], Sequence[Sequence[str]]],
        copies: CopiedCallers,
    ) -> None:
        """``own_cells``: the names of the cells of this process's region, in groups: one of a later
        group keeps something if there is none of an earlier one."""
        self._settings = settings
        self._apps = apps
        self._own_cells = own_cells
        self._copies = copies
        self._homes = TenantHomes()
        self._hosts: dict[str, IntakeHost] = {}

    def answer(self, environ: WSGIEnvironment, tenant: str, cell: str) -> WSGIApplication | None:
        """The answer to a request of a tenant whose cell ``cell`` is away.

        None: this cannot be answered without that cell.
        """
        if environ["REQUEST_METHOD"] == "POST":
            return guarded(environ, partial(self._submit, environ, tenant, cell))
        job = asked_job(environ)
        name = None if job is None else self._apps.cell_numbered(cell_number(job.id))
        if job is None or name is None or name == cell:
            return None
        return guarded(environ, partial(self._find, environ, tenant, cell, job, name))

    def find(self, environ: WSGIEnvironment, placement: Placement) -> WSGIApplication | None:
        """The answer about a job that no cell of its tenant has: it may not be handed over yet.

        None: no cell has taken it in.
        """
        job = asked_job(environ)
        name = None if job is None else self._apps.cell_numbered(cell_number(job.id))
        if job is None or name is None:
            return None
        return guarded(environ, partial(self._find_kept, environ, placement, job, name))

    def merged(
        self, answer: WSGIApplication, environ: WSGIEnvironment, placement: Placement
    ) -> WSGIApplication:
        """The answer to a tenant of several cells, of which one may be away.

        What they do not have may have been taken in for the one that is away.
        """
        job = asked_job(environ)
        name = None if job is None else self._apps.cell_numbered(cell_number(job.id))
        if job is None or name is None:
            return answer
        response = BegunResponse()
        response.pieces = answer(environ, response.start)
        if response.status not in (HTTPStatus.NOT_FOUND, HTTPStatus.SERVICE_UNAVAILABLE):
            return response
        try:
            host = self._there(name)
            row = host.rows.submit(job.id, self._settings.admission_seconds)
        except (CellUnavailable, StateStoreError):
            return response
        if row is None:
            return response
        response.close()
        kept = guarded(environ, partial(self._reply, environ, host, row, job, placement))
        return kept or response

    def close(self, timeout: float) -> None:
        """Write what still waits, before the process ends."""
        for host in self._hosts.values():
            host.services.admission.close(timeout)
            host.services.gate.close(timeout)

    def _submit(self, environ: WSGIEnvironment, tenant: str, cell: str) -> WSGIApplication | None:
        path = environ["PATH_INFO"]
        name = self._host_name(tenant, cell) if path in SUBMISSIONS else None
        if name is None:
            return None
        host = self._there(name)
        caller = self._identify(environ, cell, tenant)
        self._homes.note(caller, cell)
        authorize(host.services, environ, Access.TENANT, TO_SUBMIT, counted=False)
        try:
            if path == "/applications":
                return submit_application(host.services, environ)
            if path == "/jobs":
                return submit_job(host.services, environ)
            with host.routes.request_context(environ):
                return post_batch()
        except Exception as error:
            host.services.refused.note(error, environ)
            if isinstance(error, StateStoreError):
                self._apps.suspect(name)
            raise

    def _host_name(self, tenant: str, cell: str) -> str | None:
        """The cell of this region that keeps what a tenant submits."""
        if not self._settings.region:
            return None
        return host_of(
            tenant, self._own_cells(), lambda name: name != cell and not self._apps.is_away(name)
        )

    def _find(
        self, environ: WSGIEnvironment, tenant: str, cell: str, job: AskedJob, name: str
    ) -> WSGIApplication:
        host, placement = self._there(name), self._apps.placement_of(tenant)
        row = host.rows.submit(job.id, self._settings.admission_seconds)
        if row is None or row.tenant != tenant or placement is None:
            # It may be in its cell. Another tenant's looks the same.
            raise CellUnavailable
        self._identify(environ, cell, tenant)
        return self._reply(environ, host, row, job, placement)

    def _find_kept(
        self, environ: WSGIEnvironment, placement: Placement, job: AskedJob, name: str
    ) -> WSGIApplication:
        host = self._there(name)
        row = host.rows.submit(job.id, self._settings.admission_seconds)
        if row is None:
            # Perhaps it was handed over after its cell was asked.
            return TenantRequest(self._apps, placement, environ).one(job.id)
        return self._reply(environ, host, row, job, placement)

    def _reply(
        self,
        environ: WSGIEnvironment,
        host: IntakeHost,
        row: KeptRow,
        job: AskedJob,
        placement: Placement,
    ) -> WSGIApplication:
        """What there is to say about a job of a row."""
        if (first := row.alias(job.id)) is not None:
            # Its cell finds out whose it is.
            path = environ["PATH_INFO"].replace(environ["PATH_INFO"].split("/")[2], first)
            return TenantRequest(self._apps, placement, environ).one(first, PATH_INFO=path)
        self._identify(environ, placement.cells[0], row.tenant)
        method = environ["REQUEST_METHOD"]
        scopes = TO_SUBMIT if method == "DELETE" else TO_READ
        authorize(host.services, environ, Access.TENANT, scopes)
        tenant = host.services.tenants.current(environ)
        item = intake_views.kept_item(row, job.id, tenant)
        if method == "DELETE":
            return self._cancel(host, row, job)
        if job.part:
            waits = job.part == "wait"
            return intake_views.wait_reply(row, item) if waits else intake_views.runs_reply()
        view = intake_views.application_reply if job.application else intake_views.job_reply
        return view(row, item, tenant, environ)

    def _cancel(self, host: IntakeHost, row: KeptRow, job: AskedJob) -> WSGIApplication:
        with every_tenant():
            done = cancel_kept(host.services.engine, row, job.id)
        if not done:
            raise CellUnavailable("It is being handed over to its cell; please try again.")
        return intake_views.cancelled_reply(job.id, application=job.application)

    def _identify(self, environ: WSGIEnvironment, cell: str, tenant: str) -> TenantProfile:
        """Who calls, by what this process knows of the cell, or by the copy in the registry."""
        caller = environ.get(CALLER) or self._caller(environ, cell)
        environ[CALLER] = caller
        profile: TenantProfile | None = caller.tenant
        if profile is None:
            raise Forbidden
        if profile.name != tenant:
            raise NotFound
        return profile

    def _caller(self, environ: WSGIEnvironment, cell: str) -> Caller:
        app, authorization = self._apps.app_of(cell), environ.get("HTTP_AUTHORIZATION")
        tenants = None if app is None else app.extensions["fairline"].tenants
        if authorization is None:
            if tenants is None:
                raise CellUnavailable
            keyless: Caller = tenants.caller(environ)
            return keyless
        known: Caller | None = None
        if tenants is not None:
            known = tenants.directory.cached(authorization)
        if known is not None and known.tenant is not None and known.tenant.suspended:
            return known
        # The cell may be away from here alone: then the copy is newer than what is known here.
        try:
            caller = self._copies.caller(authorization) or known
        except StateStoreError:
            caller = known
        if caller is None:
            # A key that was made just before the outage is not known either.
            raise CellUnavailable
        return caller

    def _there(self, name: str) -> IntakeHost:
        """The host of this name; CellUnavailable if it is away too."""
        app = None if self._apps.is_away(name) else self._apps.app_of(name)
        if app is None:
            raise CellUnavailable
        known = self._hosts.get(name)
        if known is None or known.app is not app:
            services = intake_services(app.extensions["fairline"], self._settings, self._homes)
            routes = Flask("intake", static_folder=None)
            routes.extensions["fairline"] = services
            engine = services.engine

            def find(ids: Sequence[str]) -> list[KeptRow | None]:
                rows = find_kept(engine, set(ids))
                return [rows.get(job_id) for job_id in ids]

            rows = GroupCommit(find, name="intake rows", max_group=MOST_FOUND)
            known = IntakeHost(app, services, routes, rows)
            self._hosts[name] = known
        return known


def host_of(
    tenant: str, groups: Iterable[Iterable[str]], is_there: Callable[[str], bool]
) -> str | None:
    """One of the cells that are there, of the first group with any: always the same for a tenant,
    as long as that one is.

    So a repetition with an idempotency key finds the first request. If that is in another host by
    now, both are kept, and they become one job when they are handed over.
    """
    for names in groups:
        there = {name: 1.0 for name in names if is_there(name)}
        if there:
            return Placement(0, there).choose(tenant.encode())
    return None


def guarded(
    environ: WSGIEnvironment, reply: Callable[[], WSGIApplication | None]
) -> WSGIApplication | None:
    """The reply; an error is one, too."""
    current_request.set(environ)
    try:
        return reply()
    except Exception as error:  # noqa: BLE001 - as in Flask: every error is an answer
        answer: WSGIApplication = problem_of(error)
        return answer
    finally:
        set_tenant(None)  # as ``authorize`` set it


def asked_job(environ: WSGIEnvironment) -> AskedJob | None:
    """The job that a request is about, if it is one that can be answered here."""
    found = ONE.fullmatch(environ["PATH_INFO"])
    method = environ["REQUEST_METHOD"]
    if found is None or method not in ("GET", "HEAD", "DELETE"):
        return None
    kind, text, part = found.groups()
    job_id = parse_id(text)
    if job_id is None or (part and (kind != "jobs" or method == "DELETE")):
        return None
    return AskedJob(job_id, kind == "applications", part or "")
