"""Builds the API process: the Flask application and its background threads."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Collection, Iterator
from functools import partial
from typing import TYPE_CHECKING

from celery import Celery
from flask import Blueprint, Flask
from sqlalchemy import Engine
from werkzeug.utils import find_modules, import_string

from app.admission import Admission
from app.admission.gate import Gate
from app.admission.pool_of_type import PoolsOfTypes
from app.admission.tenant_limits import TenantLimits
from app.api.auth.access import guard
from app.api.auth.identity import CallerTenants
from app.api.auth.visitors import Visitors
from app.api.http.body import BodyLimits
from app.api.http.problems import problem_of
from app.api.http.refused import RefusedRequests
from app.api.http.state import tell_lag
from app.api.openapi.routes import openapi, publish
from app.api.services import Services
from app.broker.publish import Publisher
from app.celery import celery, job_types
from app.config import Settings, names_in, settings
from app.console.page import show_beside
from app.console.shell import register_console, register_console_errors
from app.policy.pricing import PriceList
from app.reads.events import Watch
from app.reads.standby import StandbyReads
from app.reads.views import Views
from app.scheduler.relief import Relief, keep_relief
from app.server.access_log import AccessLog
from app.server.wsgi import FairlineApp
from app.telemetry.hooks import requests_of, start_telemetry
from app.tenants.directory import Callers, Directory
from app.tenants.operator_rules import OperatorRules
from app.tenants.sessions import Sessions
from models.blobs import open_blobs
from models.presence import (
    PRESENCE_SECONDS,
    Presence,
    announce,
    instance_name,
    leave,
    process_name,
)
from models.store.errors import StateStoreError
from models.store.roles import DatabaseRole
from models.store.session import open_engine, open_standby
from models.tallies import Tallies

if TYPE_CHECKING:
    from app.api.auth.oidc import OidcClient
    from app.cells.router import CellRouter

logger = logging.getLogger(__name__)


def build_app(
    settings: Settings,
    *,
    celery: Celery = celery,
    cell: int = 0,
    callers: Callers | None = None,
    sessions: Sessions | None = None,
) -> FairlineApp:
    """The Flask application of one process, or of one cell in it.

    ``cell``: its number. ``callers``: of all cells, and ``sessions`` those of the home cell, for
    pages.
    """
    app = FairlineApp("app", static_folder=None)
    # Admission and polling use one connection each, with group commit; the others serve the cold
    # routes, so that submissions never wait behind a leaderboard.
    engine = open_engine(
        settings.model_copy(update={"db_pool_size": settings.db_pool_size + 2}),
        process=process_name("api"),
        role=DatabaseRole.API,
    )
    directory = Directory(engine, settings.admission_seconds)
    tallies = Tallies()
    gate = Gate(
        engine,
        settings.admission_seconds,
        tallies=tallies,
        keep_keys_hours=settings.keep_keys_hours,
        **settings.submission_limits,
    )
    anywhere = settings.anonymous_from == "anywhere"
    rules = rules_of(settings)
    sessions = sessions or Sessions(
        engine,
        callers or directory,
        settings.admission_seconds,
        idle_seconds=settings.session_idle_minutes * 60.0,
        longest_seconds=settings.session_hours * 3600.0,
        rules=rules,
    )
    services = Services(
        engine=engine,
        standby=open_reads(settings, engine),
        gate=gate,
        tenant_limits=TenantLimits(engine, gate),
        admission=Admission(
            engine,
            Publisher(celery, settings.publish_seconds),
            settings.admission_seconds,
            tallies,
        ),
        views=Views(engine, settings.admission_seconds),
        tenants=CallerTenants(directory, settings.anonymous_tenant, anywhere=anywhere),
        visitors=Visitors(
            callers or directory,
            sessions,
            settings.anonymous_tenant,
            settings.console_open,
            anywhere=anywhere,
            own=directory,
        ),
        sessions=sessions,
        oidc=open_oidc(settings),
        operator_rules=rules,
        body_limits=BodyLimits(settings.max_body_bytes, settings.body_seconds),
        refused=RefusedRequests(engine, gate.count_other),
        types=job_types,
        blobs=open_blobs(settings.blob_url),
        prices=PriceList(
            per_slot_second=settings.price_slot_second,
            per_job=settings.price_job,
            per_million_tokens_in=settings.price_million_tokens_in,
            per_million_tokens_out=settings.price_million_tokens_out,
            currency=settings.currency,
        ),
        read_seconds=settings.admission_seconds,
        served_pools=settings.served_pool_names,
        pools_of_types=PoolsOfTypes(engine, settings.served_pool_names),
        cell=cell,
        events=Watch(engine, settings.admission_seconds),
        tenant_page=show_beside,
    )
    app.extensions["fairline"] = services
    app.extensions["fairline_celery"] = celery
    for blueprint in (*api_blueprints(), openapi):
        app.register_blueprint(blueprint)
    app.after_request(tell_lag)
    register_console(app, settings)
    guard(app)
    publish(app, anonymous=bool(settings.anonymous_tenant))
    app.register_error_handler(Exception, problem_of)
    register_console_errors(app)
    directory.on_ended = partial(end_of_keys, app)
    return app


def open_reads(settings: Settings, primary: Engine) -> StandbyReads | None:
    """The standby that may be read from, if there is one: a connection more than pages take."""
    if not settings.read_database_url:
        return None
    size = settings.db_pool_size + 1
    changes = {"database_url": settings.read_database_url, "db_pool_size": size}
    standby = open_standby(
        settings.model_copy(update=changes), process=process_name("api"), role=DatabaseRole.API
    )
    return StandbyReads(standby, primary, settings.read_lag_seconds)


def rules_of(settings: Settings) -> OperatorRules | None:
    """Who may sign in by OpenID Connect, if anybody may."""
    if not settings.oidc_issuer:
        return None
    listed = names_in(settings.oidc_operators), names_in(settings.oidc_readers)
    return OperatorRules(settings.oidc_issuer, settings.oidc_claim, *listed)


def open_oidc(settings: Settings) -> OidcClient | None:
    """The provider of OpenID Connect, if one is configured: nobody else imports its libraries."""
    if not settings.oidc_issuer:
        return None
    from app.api.auth.oidc import OidcClient

    return OidcClient(
        settings.oidc_issuer,
        settings.oidc_client_id,
        settings.oidc_client_secret.get_secret_value(),
        settings.public_url,
        settings.oidc_claim,
    )


def api_blueprints() -> Iterator[Blueprint]:
    """The blueprints of all modules in ``app.api.routes``."""
    for name in find_modules("app.api.routes"):
        found = vars(import_string(name)).values()
        yield from (value for value in found if isinstance(value, Blueprint))


def end_of_keys(app: FairlineApp, keys: Collection[str]) -> None:
    """End event streams and live pages that were opened with keys that no longer work."""
    app.extensions["fairline"].events.end_of_keys(keys)
    app.extensions["fairline_live_pages"].check_rights()


def begin_serving(app: FairlineApp | CellRouter, stop: threading.Event) -> None:
    """Start the threads of an API process."""
    if settings().access_log:
        app.wsgi_app = AccessLog(app.wsgi_app)  # type: ignore[method-assign]  # as Flask documents
    if isinstance(app, FairlineApp):
        begin_app(app, stop)
    else:
        app.begin_serving()


def begin_app(app: Flask, stop: threading.Event) -> None:
    """Start the threads of one application: telemetry, presence, relief."""
    assert isinstance(app, FairlineApp)
    services: Services = app.extensions["fairline"]
    engine = services.engine
    start_telemetry("api", engine)
    app.traced = requests_of(app)
    presence = threading.Thread(
        target=announce_api, args=(engine, stop), name="presence", daemon=True
    )
    presence.start()
    app.extensions["fairline_presence"] = presence
    # What the relief dispatches is counted too, whether this process admits anything or not.
    services.admission.counting.start()
    broker = app.extensions["fairline_celery"]
    publisher = Publisher(broker, settings().publish_seconds, services.admission.tallies)
    pace = settings().promote_per_second
    relief = Relief(engine, publisher, process_name("api"), job_types, promote_per_second=pace)
    threading.Thread(target=keep_relief, args=(relief, stop), name="relief", daemon=True).start()


def stream_closers(app: FairlineApp | CellRouter) -> list[Callable[[], object]]:
    """What ends event streams and live pages, which never end by themselves."""
    apps = [app] if isinstance(app, FairlineApp) else app.served.apps()
    return [
        closer
        for each in apps
        for closer in (
            each.extensions["fairline"].events.close,
            each.extensions["fairline_live_pages"].close,
        )
    ]


def end_serving(app: FairlineApp | CellRouter, stop: threading.Event) -> None:
    """Stop the threads of an API process."""
    if isinstance(app, FairlineApp):
        end_app(app, stop)
    else:
        app.end_serving()


def end_app(app: Flask, stop: threading.Event) -> None:
    """Stop the threads and remove the process from the list of live ones."""
    stop.set()
    services: Services = app.extensions["fairline"]
    services.tenants.directory.close()
    services.admission.close(1.0)
    services.refused.close()
    services.gate.close(1.0)
    # An announcement that is on its way would bring the row back.
    if (presence := app.extensions.get("fairline_presence")) is not None:
        presence.join(3.0)
    with contextlib.suppress(StateStoreError):
        leave(services.engine, process_name("api"))


def announce_api(engine: Engine, stop: threading.Event) -> None:
    """Refresh this process's presence until ``stop`` is set."""
    presence = Presence(process_name("api"), "api", node=instance_name("api"))
    while True:
        try:
            announce(engine, presence)
        except StateStoreError as error:
            logger.debug("presence: %s", error)
        except Exception:  # whatever it is, this process serves on and has to be seen
            logger.exception("the presence could not be written")
        if stop.wait(PRESENCE_SECONDS):
            return
