"""Every route of the application, and how to call it with an id of somebody's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from app.api.auth.access import Access

#: The tenant whose things a stranger asks for.
VICTIM = "outlander"
APPLICATION = {"candidate": "Foreigner", "payload": {}}
SCHEDULE = {"name": "nightly", "cron": "0 3 * * *", "type": "echo"}
SCHEDULE_FORM = {
    **SCHEDULE,
    "name": "{schedule}",
    "timezone": "UTC",
    "overlap": "allow",
    "catch_up": "one",
}
PUBLIC, TENANT, OPERATOR = Access.PUBLIC, Access.TENANT, Access.OPERATOR
CONSOLE, TENANT_PAGE = Access.CONSOLE, Access.TENANT_PAGE


#: What a path may name.
THINGS = ("job", "application", "dead", "schedule", "scored", "replay")


@dataclass(frozen=True, slots=True)
class Call:
    """How to call a route."""

    access: Access
    #: With ``{job}`` or another of the things in braces for an id of somebody's.
    path: str
    body: Any = None
    #: What a stranger to these ids hears; 404 is what a route with an id in its path has to say.
    stranger: int = 200
    #: What a page's form sends in place of a body.
    form: Mapping[str, str] | None = None

    def filled(self, ids: Mapping[str, str]) -> tuple[str, Any, dict[str, str] | None]:
        """Path, body and form with these ids."""
        body = self.body
        if isinstance(body, dict) and "ids" in body:
            body = {"ids": [text.format(**ids) for text in body["ids"]]}
        form = self.form
        if form is not None:
            form = {name: text.format(**ids) for name, text in form.items()}
        return self.path.format(**ids), body, form


#: Method and rule as Flask has them: the ways to call it.
CALLS: Mapping[str, Sequence[Call]] = {
    "POST /applications": [Call(TENANT, "/applications", APPLICATION, 202)],
    "GET /applications/<application_id>": [
        Call(TENANT, "/applications/{application}", stranger=404)
    ],
    "DELETE /applications/<application_id>": [
        Call(TENANT, "/applications/{application}", stranger=404)
    ],
    "GET /applications/<application_id>/export": [
        Call(TENANT, "/applications/{application}/export", stranger=404),
        Call(TENANT, "/applications/{scored}/export", stranger=404),
    ],
    "POST /applications/<application_id>/erase": [
        Call(TENANT, "/applications/{application}/erase", stranger=404),
        Call(TENANT, "/applications/{scored}/erase", stranger=404),
    ],
    "POST /operator/applications/<application_id>/erase": [
        Call(OPERATOR, "/operator/applications/{application}/erase", stranger=404)
    ],
    "GET /leaderboard": [Call(TENANT, "/leaderboard")],
    "POST /jobs": [Call(TENANT, "/jobs", {"type": "echo"}, 202)],
    "POST /jobs/batch": [Call(TENANT, "/jobs/batch", {"jobs": [{"type": "echo"}]}, 202)],
    "GET /jobs": [Call(TENANT, "/jobs"), Call(TENANT, "/jobs?status=dead")],
    "GET /jobs/<string(length=36):job_id>": [
        Call(TENANT, "/jobs/{job}", stranger=404),
        Call(TENANT, "/jobs/{application}", stranger=404),
    ],
    "DELETE /jobs/<string(length=36):job_id>": [Call(TENANT, "/jobs/{job}", stranger=404)],
    "GET /jobs/<job_id>/events": [Call(TENANT, "/jobs/{job}/events", stranger=404)],
    "GET /jobs/<job_id>/wait": [Call(TENANT, "/jobs/{job}/wait", stranger=404)],
    "GET /jobs/<job_id>/runs": [Call(TENANT, "/jobs/{job}/runs", stranger=404)],
    "GET /events": [Call(TENANT, "/events")],
    "GET /dead-letters": [Call(TENANT, "/dead-letters")],
    "POST /dead-letters/replay": [
        Call(TENANT, "/dead-letters/replay", {"ids": ["{dead}"]}),
        Call(TENANT, "/dead-letters/replay", {"filter": {}}),
    ],
    "POST /dead-letters/discard": [
        Call(TENANT, "/dead-letters/discard", {"ids": ["{dead}"]}),
        Call(TENANT, "/dead-letters/discard", {"filter": {}}),
    ],
    "GET /dead-letters/replays/<replay_id>": [
        Call(TENANT, "/dead-letters/replays/{replay}", stranger=404)
    ],
    "DELETE /dead-letters/replays/<replay_id>": [
        Call(TENANT, "/dead-letters/replays/{replay}", stranger=404)
    ],
    "POST /schedules": [Call(TENANT, "/schedules", SCHEDULE, 201)],
    "GET /schedules": [Call(TENANT, "/schedules")],
    "GET /schedules/<schedule_id>": [Call(TENANT, "/schedules/{schedule}", stranger=404)],
    "PATCH /schedules/<schedule_id>": [
        Call(TENANT, "/schedules/{schedule}", {"paused": True}, stranger=404)
    ],
    "DELETE /schedules/<schedule_id>": [Call(TENANT, "/schedules/{schedule}", stranger=404)],
    "POST /schedules/<schedule_id>/run": [
        Call(TENANT, "/schedules/{schedule}/run", {}, stranger=404)
    ],
    "GET /tenant": [Call(TENANT_PAGE, "/tenant")],
    "GET /tenant/usage": [Call(TENANT, "/tenant/usage")],
    "GET /healthz": [Call(PUBLIC, "/healthz")],
    "GET /readyz": [Call(PUBLIC, "/readyz", stranger=503)],
    "GET /metrics": [Call(PUBLIC, "/metrics")],
    "GET /openapi.json": [Call(PUBLIC, "/openapi.json")],
    "GET /docs": [Call(PUBLIC, "/docs")],
    "GET /operator/tenants": [Call(OPERATOR, "/operator/tenants")],
    "POST /operator/tenants": [Call(OPERATOR, "/operator/tenants", {"name": "made"}, 201)],
    "GET /operator/tenants/<name>": [Call(OPERATOR, f"/operator/tenants/{VICTIM}")],
    "PATCH /operator/tenants/<name>": [Call(OPERATOR, f"/operator/tenants/{VICTIM}", {})],
    "DELETE /operator/tenants/<name>": [Call(OPERATOR, "/operator/tenants/nobody", stranger=404)],
    **{
        f"POST /operator/tenants/<name>/{act}": [
            Call(OPERATOR, f"/operator/tenants/nobody/{act}", stranger=404)
        ]
        for act in ("suspend", "resume")
    },
    "GET /operator/tenants/<name>/keys": [Call(OPERATOR, f"/operator/tenants/{VICTIM}/keys")],
    "POST /operator/tenants/<name>/keys": [
        Call(OPERATOR, f"/operator/tenants/{VICTIM}/keys", {}, 201)
    ],
    "DELETE /operator/keys/<key_id>": [Call(OPERATOR, "/operator/keys/abcd1234", stranger=404)],
    "GET /operator/scaling": [Call(OPERATOR, "/operator/scaling")],
    "GET /operator/overview": [Call(OPERATOR, "/operator/overview")],
    "GET /operator/audit": [Call(OPERATOR, "/operator/audit")],
    "GET /operator/quotas": [Call(OPERATOR, "/operator/quotas")],
    "PUT /operator/quotas/<dependency>": [
        Call(OPERATOR, "/operator/quotas/claude", {"requests_per_minute": 60})
    ],
    "DELETE /operator/quotas/<dependency>": [
        Call(OPERATOR, "/operator/quotas/claude", stranger=204)
    ],
    "GET /console/sign-in": [Call(PUBLIC, "/console/sign-in")],
    "POST /console/sign-in": [Call(PUBLIC, "/console/sign-in", {}, stranger=403)],
    "GET /console/oidc": [Call(PUBLIC, "/console/oidc", stranger=404)],
    "GET /console/oidc/callback": [Call(PUBLIC, "/console/oidc/callback", stranger=404)],
    "POST /console/sign-out": [Call(PUBLIC, "/console/sign-out", {}, stranger=403)],
    "GET /console/assets/<digest>/<path:name>": [
        Call(PUBLIC, "/console/assets/0/console.css", stranger=404)
    ],
    "GET /": [Call(CONSOLE, "/"), Call(CONSOLE, "/?window=24h")],
    "GET /console": [Call(PUBLIC, "/console", stranger=303)],
    "GET /console/": [Call(PUBLIC, "/console/", stranger=303)],
    "GET /console/events": [Call(CONSOLE, "/console/events?page=/console/workers")],
    "GET /console/tenants": [
        Call(CONSOLE, "/console/tenants"),
        Call(CONSOLE, "/console/tenants?pool=medium&search=out&after=a"),
    ],
    "POST /console/tenants": [Call(CONSOLE, "/console/tenants", {}, stranger=422)],
    "POST /console/tenants/<name>": [
        Call(CONSOLE, "/console/tenants/nobody", {}, stranger=404),
        Call(CONSOLE, "/console/tenants/nobody", stranger=404, form={"act": "key"}),
    ],
    "POST /console/tenants/<name>/keys/<key_id>/revoke": [
        Call(CONSOLE, f"/console/tenants/{VICTIM}/keys/abcd1234/revoke", {}, stranger=404)
    ],
    "GET /console/tenants/<name>": [Call(CONSOLE, f"/console/tenants/{VICTIM}")],
    "GET /tenant/jobs/<job_id>": [Call(TENANT_PAGE, "/tenant/jobs/{job}", stranger=404)],
    "GET /tenant/jobs/<job_id>/payload": [
        Call(TENANT_PAGE, "/tenant/jobs/{job}/payload", stranger=404)
    ],
    "GET /tenant/jobs/<job_id>/result": [
        Call(TENANT_PAGE, "/tenant/jobs/{scored}/result", stranger=404)
    ],
    "POST /tenant/dead-letters/replay": [
        Call(TENANT_PAGE, "/tenant/dead-letters/replay", stranger=303, form={"id": "{dead}"}),
        Call(
            TENANT_PAGE,
            "/tenant/dead-letters/replay",
            stranger=303,
            form={"type": "echo", "error_class": "APP_ERROR"},
        ),
    ],
    "POST /tenant/dead-letters/discard": [
        Call(TENANT_PAGE, "/tenant/dead-letters/discard", stranger=303, form={"id": "{dead}"}),
    ],
    "GET /tenant/jobs/<job_id>/resubmit": [
        Call(TENANT_PAGE, "/tenant/jobs/{dead}/resubmit", stranger=404)
    ],
    "POST /tenant/jobs/<job_id>/resubmit": [
        Call(TENANT_PAGE, "/tenant/jobs/{dead}/resubmit", stranger=404, form={"payload": "{{}}"})
    ],
    "POST /tenant/replays/<replay_id>/cancel": [
        Call(TENANT_PAGE, "/tenant/replays/{replay}/cancel", stranger=404, form={})
    ],
    "GET /tenant/events": [Call(TENANT_PAGE, "/tenant/events?page=/tenant")],
    "GET /console/jobs": [
        Call(CONSOLE, "/console/jobs"),
        Call(CONSOLE, f"/console/jobs?status=dead&tenant={VICTIM}"),
    ],
    "GET /console/jobs/find": [Call(CONSOLE, "/console/jobs/find?id={job}", stranger=303)],
    "POST /console/jobs/selected": [
        Call(CONSOLE, "/console/jobs/selected", {"action": "cancel"}, stranger=422)
    ],
    "GET /console/jobs/all": [Call(CONSOLE, "/console/jobs/all?action=cancel&type=nobody")],
    "POST /console/jobs/all": [
        Call(CONSOLE, "/console/jobs/all", {"action": "replay"}, stranger=422)
    ],
    "GET /console/jobs/<job_id>": [Call(CONSOLE, "/console/jobs/{job}", stranger=404)],
    "POST /console/jobs/<job_id>/cancel": [
        Call(CONSOLE, "/console/jobs/{job}/cancel", {}, stranger=404)
    ],
    "POST /console/jobs/<job_id>/replay": [
        Call(CONSOLE, "/console/jobs/{dead}/replay", {}, stranger=404)
    ],
    "POST /console/jobs/<job_id>/discard": [
        Call(CONSOLE, "/console/jobs/{dead}/discard", {}, stranger=404)
    ],
    "GET /console/jobs/<job_id>/resubmit": [
        Call(CONSOLE, "/console/jobs/{dead}/resubmit", stranger=404)
    ],
    "POST /console/jobs/<job_id>/resubmit": [
        Call(CONSOLE, "/console/jobs/{dead}/resubmit", {}, stranger=404)
    ],
    "GET /console/jobs/<job_id>/payload": [
        Call(CONSOLE, "/console/jobs/{job}/payload", stranger=404)
    ],
    "GET /console/jobs/<job_id>/result": [
        Call(CONSOLE, "/console/jobs/{job}/result", stranger=404)
    ],
    "POST /console/replays/<replay_id>/cancel": [
        Call(CONSOLE, "/console/replays/{replay}/cancel", {}, stranger=404)
    ],
    "GET /console/dead-letters": [Call(CONSOLE, "/console/dead-letters")],
    "GET /console/leaderboard": [Call(CONSOLE, f"/console/leaderboard?tenant={VICTIM}")],
    "POST /console/leaderboard": [Call(CONSOLE, "/console/leaderboard", {}, stranger=422)],
    "GET /console/leaderboard/<application_id>": [
        Call(CONSOLE, "/console/leaderboard/{application}", stranger=404)
    ],
    "GET /console/<path:rest>": [Call(CONSOLE, "/console/nothing", stranger=404)],
    "GET /console/workers": [Call(CONSOLE, "/console/workers")],
    "GET /console/cells": [Call(CONSOLE, "/console/cells")],
    "POST /console/workers/drain": [Call(CONSOLE, "/console/workers/drain", {}, stranger=303)],
    "GET /console/schedules": [Call(CONSOLE, "/console/schedules")],
    "POST /console/schedules": [Call(CONSOLE, "/console/schedules", {}, stranger=422)],
    "GET /console/schedules/<schedule_id>": [
        Call(CONSOLE, "/console/schedules/{schedule}", stranger=404)
    ],
    **{
        f"POST /{side}/schedules/<schedule_id>{act}": [
            Call(
                access,
                f"/{side}/schedules/{{schedule}}{act}",
                stranger=404,
                form={} if act else SCHEDULE_FORM,
            )
        ]
        for side, access in (("console", CONSOLE), ("tenant", TENANT_PAGE))
        for act in ("", "/remove", "/pause", "/resume", "/run")
    },
    "GET /tenant/schedules": [Call(TENANT_PAGE, "/tenant/schedules")],
    "POST /tenant/schedules": [Call(TENANT_PAGE, "/tenant/schedules", stranger=422, form={})],
    "GET /tenant/schedules/<schedule_id>": [
        Call(TENANT_PAGE, "/tenant/schedules/{schedule}", stranger=404)
    ],
    "GET /console/limits": [Call(CONSOLE, "/console/limits")],
    "GET /console/audit": [Call(CONSOLE, "/console/audit")],
    "GET /console/lab": [Call(CONSOLE, "/console/lab")],
    "GET /console/lab/<name>": [Call(CONSOLE, "/console/lab/nothing", stranger=404)],
    "GET /console/lab/<name>/<file>": [
        Call(CONSOLE, "/console/lab/nothing/report.json", stranger=404)
    ],
}
