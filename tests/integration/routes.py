"""Every route of the application, and how to call it with an id of somebody's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from app.api.access import Access

APPLICATION = {"candidate": "Foreigner", "payload": {}}
SCHEDULE = {"name": "nightly", "cron": "0 3 * * *", "type": "echo"}
PUBLIC, TENANT, OPERATOR = Access.PUBLIC, Access.TENANT, Access.OPERATOR


#: What a path may name.
THINGS = ("job", "application", "dead", "schedule")


@dataclass(frozen=True, slots=True)
class Call:
    """How to call a route."""

    access: Access
    #: With ``{job}``, ``{application}``, ``{dead}`` or ``{schedule}`` for an id of somebody's.
    path: str
    body: Any = None
    #: What a stranger to these ids hears; 404 is what a route with an id in its path has to say.
    stranger: int = 200


#: Method and rule as Flask has them: the ways to call it.
CALLS: Mapping[str, Sequence[Call]] = {
    "POST /applications": [Call(TENANT, "/applications", APPLICATION, 202)],
    "GET /applications/<application_id>": [
        Call(TENANT, "/applications/{application}", stranger=404)
    ],
    "DELETE /applications/<application_id>": [
        Call(TENANT, "/applications/{application}", stranger=404)
    ],
    "GET /leaderboard": [Call(TENANT, "/leaderboard")],
    "POST /jobs": [Call(TENANT, "/jobs", {"type": "echo"}, 202)],
    "POST /jobs/batch": [Call(TENANT, "/jobs/batch", {"jobs": [{"type": "echo"}]}, 202)],
    "GET /jobs": [Call(TENANT, "/jobs"), Call(TENANT, "/jobs?status=dead")],
    "GET /jobs/<job_id>": [
        Call(TENANT, "/jobs/{job}", stranger=404),
        Call(TENANT, "/jobs/{application}", stranger=404),
    ],
    "DELETE /jobs/<job_id>": [Call(TENANT, "/jobs/{job}", stranger=404)],
    "GET /jobs/<job_id>/events": [Call(TENANT, "/jobs/{job}/events", stranger=404)],
    "GET /jobs/<job_id>/wait": [Call(TENANT, "/jobs/{job}/wait", stranger=404)],
    "GET /events": [Call(TENANT, "/events")],
    "GET /dead-letters": [Call(TENANT, "/dead-letters")],
    "POST /dead-letters/replay": [
        Call(TENANT, "/dead-letters/replay", {"ids": ["{dead}"]}),
        Call(TENANT, "/dead-letters/replay", {"filter": {}}),
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
    "GET /tenant": [Call(TENANT, "/tenant")],
    "GET /tenant/usage": [Call(TENANT, "/tenant/usage")],
    "GET /healthz": [Call(PUBLIC, "/healthz")],
    "GET /readyz": [Call(PUBLIC, "/readyz", stranger=503)],
    "GET /metrics": [Call(PUBLIC, "/metrics")],
    "GET /operator/tenants": [Call(OPERATOR, "/operator/tenants")],
    "POST /operator/tenants": [Call(OPERATOR, "/operator/tenants", {"name": "made"}, 201)],
    "GET /operator/tenants/<name>": [Call(OPERATOR, "/operator/tenants/outlander")],
    "PATCH /operator/tenants/<name>": [Call(OPERATOR, "/operator/tenants/outlander", {})],
    "GET /operator/tenants/<name>/keys": [Call(OPERATOR, "/operator/tenants/outlander/keys")],
    "POST /operator/tenants/<name>/keys": [
        Call(OPERATOR, "/operator/tenants/outlander/keys", {}, 201)
    ],
    "DELETE /operator/keys/<key_id>": [Call(OPERATOR, "/operator/keys/abcd1234", stranger=404)],
    "GET /operator/scaling": [Call(OPERATOR, "/operator/scaling")],
    "GET /operator/quotas": [Call(OPERATOR, "/operator/quotas")],
    "PUT /operator/quotas/<dependency>": [
        Call(OPERATOR, "/operator/quotas/claude", {"requests_per_minute": 60})
    ],
    "DELETE /operator/quotas/<dependency>": [
        Call(OPERATOR, "/operator/quotas/claude", stranger=204)
    ],
}
