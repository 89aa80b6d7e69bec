"""What the blueprints call, and where they find it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from flask import current_app
from sqlalchemy import Engine

from app.admission.intake import Intake

if TYPE_CHECKING:
    from app.api.auth.identity import CallerTenants
    from app.api.auth.visitors import Visitors
    from app.api.http.body import BodyLimits
    from app.policy.pricing import PriceList
    from app.reads.events import Watch
    from app.reads.views import Views
    from tasks.registry import JobType


@dataclass(frozen=True, slots=True)
class Services(Intake):
    """The parts of one API process."""

    engine: Engine
    views: Views
    tenants: CallerTenants
    #: Who looks at pages.
    visitors: Visitors
    body_limits: BodyLimits
    #: What may be submitted.
    types: Mapping[str, JobType]
    prices: PriceList
    #: How long a read may take before the caller hears 503.
    read_seconds: float
    served_pools: tuple[str, ...]
    #: Server-sent events.
    events: Watch
    #: What browsers get at ``/tenant``, where programs get a document.
    tenant_page: Callable[[], str]


def current_services() -> Services:
    """Those of the application that answers the current request."""
    found: Services = current_app.extensions["fairline"]
    return found
