"""``/metrics`` for Prometheus.

An API instance is what answers on one port, however many processes that are: a scrape reaches any
of them, so none reports what it counted itself. Counters and gauges of the system come from the
tables, and one instance reports them: the oldest living one. Every instance reports itself. So
sums over all instances are right.

A page is cached for a second, and concurrent requests share one read: the route is public, and a
flood of requests costs a process one read per second.
"""

from __future__ import annotations

import platform
from functools import cache
from hashlib import blake2b

from flask import Blueprint, Response, current_app
from flask.blueprints import BlueprintSetupState
from sqlalchemy import Connection

from app.api.exposition import ConfiguredLimits, InstanceReadings, exposition
from app.api.http.query import parse_choice
from app.api.http.state import read_state
from app.api.openapi.declared import Returns, choice, for_anyone
from app.api.services import current_services
from app.config import settings
from app.policy.fairshare import Tier
from app.policy.scaling import policy_of
from app.reads.gauges import read_gauges
from app.reads.single_flight import SingleFlight
from app.stack.spec import PROJECT_ROOT
from models.blobs import disk_space
from models.pools import POOLS
from models.presence import ALIVE, instance_name
from models.store.errors import StateStoreUnavailable

metrics = Blueprint("metrics", __name__)

CONTENT_TYPE = "text/plain; version=0.0.4"
#: What a build consists of.
SOURCE = ("app", "models", "tasks", "migrations")

READ_REPORTER = f"""
    SELECT node FROM processes WHERE kind = 'api' AND node <> '' AND {ALIVE}
    ORDER BY started_at, name LIMIT 1
"""
#: For a scrape through a load balancer, whose one target is any of the instances.
SYSTEMS = ("auto", "always")
SYSTEM = choice("system", "`always`: report the system whichever instance this is.", SYSTEMS)


@metrics.record_once
def _keep_pages(state: BlueprintSetupState) -> None:
    state.app.extensions["fairline_metrics"] = {True: SingleFlight(), False: SingleFlight()}


@metrics.get("/metrics")
@for_anyone(
    "Metrics for Prometheus",
    Returns(200, {"type": "string"}, (), "Text format 0.0.4.", "text/plain"),
    query=(SYSTEM,),
    errors=(StateStoreUnavailable,),
)
def get_metrics() -> Response:
    always = parse_choice("system", SYSTEMS) == "always"
    page: SingleFlight[str] = current_app.extensions["fairline_metrics"][always]
    return Response(page.read(lambda: read_page(always)), content_type=CONTENT_TYPE)


def read_page(always: bool = False) -> str:
    """The current metrics: those of this instance, and those of the system if it reports them."""
    services = current_services()
    with read_state() as connection:
        reports = always or reports_system(connection, instance_name("api"))
        readings = read_gauges(connection) if reports else None
    disk = disk_space(services.blobs)
    own = InstanceReadings(
        revision(),
        platform.python_version(),
        {"blobs": disk} if disk else {},
        services.standby.lag_seconds if services.standby else None,
    )
    rates = {tier.value: services.gate.usual_rate(tier) for tier in Tier}
    limits = ConfiguredLimits(most_workers(), rates)
    return exposition(own, readings, services.served_pools, limits)


def reports_system(connection: Connection, instance: str) -> bool:
    """Whether this instance is the one that reports the system; any is if none is known."""
    return connection.exec_driver_sql(READ_REPORTER).scalar() in (None, instance)


def most_workers() -> dict[str, int]:
    """Workers that each pool may have at most."""
    now = settings()
    return {
        pool: policy_of(pool, now.scale_min, now.scale_max, now.scale_policy).most for pool in POOLS
    }


@cache
def revision() -> str:
    """A digest of the source code: equal in all processes of one build."""
    digest = blake2b(digest_size=6)
    for package in SOURCE:
        for path in sorted((PROJECT_ROOT / package).rglob("*.py")):
            digest.update(path.relative_to(PROJECT_ROOT).as_posix().encode() + b"\0")
            digest.update(path.read_bytes())
    return digest.hexdigest()
