"""OpenTelemetry: one trace from the request to the model call, metrics of every process.

Set up only if ``OTEL_EXPORTER_OTLP_ENDPOINT`` is set; otherwise nothing of it is imported, and
each of the functions below costs one comparison. Always after fork and after gevent's patching.
What is emitted, and why a run is in the trace of its submission: ``docs/telemetry.md``.

Not guaranteed: spans and counts of the last seconds of a process that is killed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from flask import Flask
    from opentelemetry.metrics import MeterProvider
    from sqlalchemy import Engine

    from app.telemetry.admitting import Admitting
    from app.telemetry.dispatching import Dispatching
    from app.telemetry.requests import Requests
    from app.telemetry.sdk import Sdk
    from models.jobs.dispatch import Dispatch
    from models.jobs.submission import Admitted, Submission

_sdk: Sdk | None = None
_admitting: Admitting | None = None
_dispatching: Dispatching | None = None
_NOTHING: AbstractContextManager[None] = nullcontext()


def telemetry_wanted() -> bool:
    """Whether somebody listens."""
    return bool(os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT")) and (
        os.environ.get("OTEL_SDK_DISABLED", "").lower() != "true"
    )


def start_telemetry(kind: str, engine: Engine) -> None:
    """Set up the SDK in this process, once, and watch its connection pool."""
    if _sdk is not None or not telemetry_wanted():
        return
    from app.telemetry.connections import observe_connections
    from app.telemetry.sdk import start_sdk

    sdk = start_sdk(kind)
    observe_connections(sdk.meters, engine, kind)
    emit_by(sdk)


def emit_by(sdk: Sdk | None) -> None:
    """From here on tell what happens; None: from here on be silent."""
    global _sdk, _admitting, _dispatching
    from app.telemetry.admitting import Admitting
    from app.telemetry.dispatching import Dispatching
    from app.telemetry.runs import RunTelemetry
    from tasks.worker import tracing

    _sdk = sdk
    _admitting = Admitting(sdk.traces) if sdk else None
    _dispatching = Dispatching(sdk.traces, sdk.meters) if sdk else None
    tracing.telemetry = RunTelemetry(sdk.traces, sdk.meters) if sdk else None


def end_telemetry() -> None:
    """Send what is left, where a process ends without its exit handlers."""
    if _sdk is not None:
        _sdk.close()


def requests_of(app: Flask) -> Requests | None:
    """Who makes a span of every request; None without telemetry."""
    if _sdk is None:
        return None
    from app.telemetry.requests import Requests

    return Requests(_sdk.traces, _sdk.meters, app)


def admit_traced(
    submissions: Sequence[Submission], enter: Callable[[Sequence[Submission]], Admitted]
) -> Admitted:
    """``enter`` the submissions of one request within a span whose context their rows keep."""
    return enter(submissions) if _admitting is None else _admitting.within(submissions, enter)


def carrying_traces(submissions: Sequence[Submission]) -> Sequence[Submission]:
    """Submissions that nobody asked for in a request: each begins a trace of its own."""
    if _admitting is None:
        return submissions
    return [_admitting.alone(item) for item in submissions]


def dispatching(dispatches: Sequence[Dispatch]) -> AbstractContextManager[None]:
    """A span for one publish, and the count of what was published."""
    return _NOTHING if _dispatching is None else _dispatching.span(dispatches)


def note_reaped(pools_and_ends: Sequence[tuple[str, str]]) -> None:
    """Count what the reaper took from lost workers, by pool and by what became of it."""
    if _dispatching is not None:
        _dispatching.count_reaped(pools_and_ends)


def system_meters() -> MeterProvider | None:
    """Where the leader's gauges of the whole system go; None without telemetry."""
    return None if _sdk is None else _sdk.meters
