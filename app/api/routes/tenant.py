"""``GET /tenant``: a tenant's own terms, as this process holds them, and how it does by them.

Programs get the document. A browser that asks for a page is shown the tenant's, which is
:mod:`app.console.tenant_page.page`: one address for both, by ``Accept``.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import orjson
from flask import Blueprint, Response, request
from sqlalchemy import Connection

from app.admission.depth import read_waiting
from app.admission.refusals import read_refusals
from app.api.auth.access import Access, open_to
from app.api.auth.visitors import asks_for_page
from app.api.http.reply import Reply
from app.api.http.state import read_state
from app.api.openapi.declared import DeclaredResponse, described
from app.api.schemas import operator_answers
from app.api.services import current_services
from app.log_ids import CALLER
from app.policy.fairshare import Tier, entitlement_of
from app.tenants.tenant import TenantProfile
from models.pools import POOLS

tenant_terms = Blueprint("tenant_terms", __name__)

#: Days that refusals are told of, today included.
REFUSALS_DAYS = 7
#: Whoever keeps an answer must not give a browser the document, nor a program the page.
BY_ACCEPT = {"Vary": "Accept"}


@tenant_terms.get("/tenant")
@open_to(Access.TENANT_PAGE)
@described(
    "Your terms, and how you do by them",
    DeclaredResponse(
        200,
        "Name, tier and limits; what waits and what was refused. Browsers get a page.",
        operator_answers.Tenant,
    ),
)
def get_tenant() -> Response:
    if asks_for_page(request.environ):
        return Response(
            current_services().tenant_page(),
            headers=BY_ACCEPT,
            content_type="text/html; charset=utf-8",
        )
    request.environ.pop(CALLER, None)  # a cookie opens the page, not the document
    tenant = current_services().tenants.current(request.environ)
    with read_state() as connection:
        document = terms_document(tenant) | standing_document(connection, tenant)
    return Reply(orjson.dumps(document), 200, {"Cache-Control": "no-cache", **BY_ACCEPT})


def standing_document(connection: Connection, tenant: TenantProfile) -> dict[str, Any]:
    """What the terms come to, defaults applied, and how the tenant does by them."""
    weight = entitlement_of(Tier(tenant.tier), tenant.weight).weight
    return {
        "effective": {"weight": weight, **current_services().gate.terms(tenant, POOLS)},
        "waiting": read_waiting(connection, tenant.id),
        "refusals": read_refusals(connection, tenant.id, REFUSALS_DAYS),
    }


def terms_document(tenant: TenantProfile) -> dict[str, Any]:
    """Name, tier and limits; null is where the deployment's default stands."""
    return {
        "name": tenant.name,
        "tier": tenant.tier,
        "weight": tenant.weight,
        "submit_per_second": tenant.submit_per_second,
        "submit_burst": tenant.submit_burst,
        "limits": {pool: asdict(limits) for pool, limits in tenant.limits.items()},
    }
