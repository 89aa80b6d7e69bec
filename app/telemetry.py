"""OpenTelemetry: traces from the request to the settled job, metrics of the database pool.

Set up only if ``OTEL_EXPORTER_OTLP_ENDPOINT`` is set; otherwise nothing is imported and
nothing is measured twice. Always after fork and after gevent's patching.

Emits: spans ``POST /applications`` …, ``run <type>`` (linked to the submission),
Celery's own consumer spans; gauges ``db.client.connection.count`` (by state),
``db.client.connection.max`` and ``db.client.connection.pending_requests``.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from flask import Flask
    from sqlalchemy import Engine

_started = False


def telemetry_wanted() -> bool:
    """Whether somebody listens."""
    return bool(os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT")) and (
        os.environ.get("OTEL_SDK_DISABLED", "").lower() != "true"
    )


def start_telemetry(kind: str, engine: Engine) -> None:
    """Set up the SDK in this process, once, and watch its connection pool."""
    global _started
    if _started or not telemetry_wanted():
        return
    _started = True
    from app.telemetry_sdk import observe_engine, start_sdk

    start_sdk(kind)
    observe_engine(engine, kind)


def trace_requests(app: Flask) -> bool:
    """A span for every request; whether telemetry is on."""
    if _started:
        from opentelemetry.instrumentation.flask import FlaskInstrumentor

        FlaskInstrumentor().instrument_app(app, excluded_urls="healthz,readyz,metrics")
    return _started


def current_traceparent() -> str | None:
    """The trace context to be kept in the row."""
    if not _started:
        return None
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    carrier: dict[str, str] = {}
    TraceContextTextMapPropagator().inject(carrier)
    return carrier.get("traceparent")
