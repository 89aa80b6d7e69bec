"""The parts of an API process, and the tenant of the current request, as routes find them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from flask import current_app, request
from sqlalchemy import Engine

from app.admission.intake import Intake

if TYPE_CHECKING:
    from app.admission.tenant_limits import TenantLimits
    from app.api.auth.identity import CallerTenants
    from app.api.auth.oidc import OidcClient
    from app.api.auth.visitors import Visitors
    from app.api.http.body import BodyLimits
    from app.api.http.refused import RefusedRequests
    from app.policy.pricing import PriceList
    from app.reads.events import Watch
    from app.reads.standby import StandbyReads
    from app.reads.views import Views
    from app.tenants.operator_rules import OperatorRules
    from app.tenants.sessions import Sessions
    from app.tenants.tenant import TenantProfile
    from tasks.registry import JobType


@dataclass(frozen=True, slots=True)
class Services(Intake):
    """The parts of one API process."""

    engine: Engine
    #: Where lists and leaderboards are read, if not from the primary.
    standby: StandbyReads | None
    #: For replays.
    tenant_limits: TenantLimits
    views: Views
    tenants: CallerTenants
    #: Callers of pages.
    visitors: Visitors
    sessions: Sessions
    #: The provider that operators may sign in with, and which of its users; None: by key only.
    oidc: OidcClient | None
    operator_rules: OperatorRules | None
    body_limits: BodyLimits
    #: 401, 403 and 429, for the audit log.
    refused: RefusedRequests
    #: The job types that may be submitted.
    types: Mapping[str, JobType]
    prices: PriceList
    #: How long a read may take before the answer is 503.
    read_seconds: float
    served_pools: tuple[str, ...]
    #: Server-sent events.
    events: Watch
    #: The page that browsers get at ``/tenant``, where programs get JSON.
    tenant_page: Callable[[], str]


def current_services() -> Services:
    """The services of the application that handles the current request."""
    found: Services = current_app.extensions["fairline"]
    return found


def current_tenant() -> TenantProfile:
    """The tenant that sent the current request."""
    return current_services().tenants.current(request.environ)
