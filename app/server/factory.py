"""Puts the front door together: settings in, a Flask application out."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Collection
from functools import partial

from flask import Flask

from app.admission import Admission
from app.admission.gate import Gate
from app.admission.placement import PoolsOfTypes
from app.api.auth.access import guard
from app.api.auth.identity import CallerTenants
from app.api.auth.visitors import Visitors
from app.api.http.body import BodyLimits
from app.api.http.problems import register_problems
from app.api.openapi.routes import openapi, publish
from app.api.routes.applications import applications
from app.api.routes.batch import batch
from app.api.routes.dead_letters import dead_letters
from app.api.routes.events import events
from app.api.routes.health import health
from app.api.routes.job_list import job_list
from app.api.routes.jobs import jobs
from app.api.routes.leaderboard import leaderboard
from app.api.routes.metrics import metrics
from app.api.routes.operator import operator
from app.api.routes.quotas import quotas
from app.api.routes.scaling import scaling
from app.api.routes.schedules import schedules
from app.api.routes.tenant import tenant_terms
from app.api.routes.usage import usage
from app.api.routes.waits import waits
from app.api.services import Services
from app.broker.publish import Publisher
from app.celery import celery, job_types
from app.cli.commands import register_commands
from app.config import Settings, settings
from app.console.page import show_beside
from app.console.shell import register_console, register_console_errors
from app.policy.pricing import PriceList
from app.reads.events import Watch
from app.reads.views import Views
from app.scheduler.relief import Relief, keep_relief
from app.server.front_door import FrontDoor
from app.telemetry import requests_of, start_telemetry
from app.tenants.directory import Directory
from models.blobs import open_blobs
from models.presence import PRESENCE_SECONDS, Presence, announce, leave, process_name
from models.store.errors import StateStoreError
from models.store.session import open_engine

logger = logging.getLogger(__name__)

BLUEPRINTS = (
    applications,
    leaderboard,
    jobs,
    waits,
    batch,
    job_list,
    dead_letters,
    schedules,
    usage,
    events,
    health,
    metrics,
    tenant_terms,
    operator,
    quotas,
    scaling,
    openapi,
)


def build_app(settings: Settings) -> FrontDoor:
    """The Flask application of one process."""
    app = FrontDoor("app", static_folder=None)
    # Admission and polling write in groups over one connection each; the rest serves the
    # cold pages, so that these never wait behind a leaderboard.
    engine = open_engine(
        settings.model_copy(update={"db_pool_size": settings.db_pool_size + 2}),
        process=process_name("api"),
    )
    directory = Directory(engine, settings.admission_seconds)
    app.extensions["fairline"] = Services(
        engine=engine,
        gate=Gate(
            engine,
            settings.admission_seconds,
            per_second=settings.submit_per_second,
            burst=settings.submit_burst,
            queue_depth=settings.queue_depth,
        ),
        admission=Admission(
            engine, Publisher(celery, settings.publish_seconds), settings.admission_seconds
        ),
        views=Views(engine, settings.admission_seconds),
        tenants=CallerTenants(directory, settings.anonymous_tenant),
        visitors=Visitors(directory, settings.anonymous_tenant, settings.console_open),
        body_limits=BodyLimits(settings.max_body_bytes, settings.body_seconds),
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
        events=Watch(engine, settings.admission_seconds),
        tenant_page=show_beside,
    )
    parts: Services = app.extensions["fairline"]
    for blueprint in BLUEPRINTS:
        app.register_blueprint(blueprint)
    register_console(app, settings)
    guard(app)
    publish(app, anonymous=bool(settings.anonymous_tenant))
    register_problems(app)
    register_console_errors(app)
    parts.tenants.directory.on_revoked = partial(end_of_keys, app)
    register_commands(app)
    return app


def end_of_keys(app: FrontDoor, keys: Collection[str]) -> None:
    """Whoever listens or looks by a key that was revoked does so no longer."""
    app.extensions["fairline"].events.end_of_keys(keys)
    app.extensions["fairline_live_pages"].check_rights()


def begin_serving(app: FrontDoor, stop: threading.Event) -> None:
    """What an API process starts once it may have threads: telemetry, presence, relief."""
    start_telemetry("api", app.extensions["fairline"].engine)
    app.traced = requests_of(app)
    threading.Thread(target=announce_api, args=(app, stop), name="presence", daemon=True).start()
    relief = Relief(
        app.extensions["fairline"].engine,
        Publisher(celery, settings().publish_seconds),
        process_name("api"),
        job_types,
    )
    threading.Thread(target=keep_relief, args=(relief, stop), name="relief", daemon=True).start()


def end_serving(app: Flask, stop: threading.Event) -> None:
    """Leave the list of living processes."""
    stop.set()
    app.extensions["fairline"].tenants.directory.close()
    app.extensions["fairline"].admission.close(1.0)
    app.extensions["fairline"].gate.close(1.0)
    with contextlib.suppress(StateStoreError):
        leave(app.extensions["fairline"].engine, process_name("api"))


def announce_api(app: Flask, stop: threading.Event) -> None:
    """Say that this API process lives, until ``stop`` is set."""
    services: Services = app.extensions["fairline"]
    name = process_name("api")
    while True:
        try:
            announce(services.engine, Presence(name, "api"))
        except StateStoreError as error:
            logger.debug("presence: %s", error)
        if stop.wait(PRESENCE_SECONDS):
            return
