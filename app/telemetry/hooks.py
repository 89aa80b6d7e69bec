"""Where processes start telemetry and report to it; each hook costs one comparison while it is off.

Set up only if ``OTEL_EXPORTER_OTLP_ENDPOINT`` is set, always after fork and after gevent's
patching; otherwise nothing of it is imported. Not guaranteed: spans and counts of the last seconds
of a process that is killed.
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

    from app.telemetry.jobs import JobTelemetry
    from app.telemetry.requests import Requests
    from app.telemetry.sdk import Sdk
    from models.jobs.dispatch import Dispatch
    from models.jobs.submission import Admitted, Submission

_sdk: Sdk | None = None
_jobs: JobTelemetry | None = None
_NOTHING: AbstractContextManager[None] = nullcontext()


def start_telemetry(kind: str, engine: Engine, process: str = "") -> None:
    """Set up the SDK in this process, once, and observe its connection pool."""
    disabled = os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true"
    if _sdk is not None or disabled or not os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT"):
        return
    from app.telemetry.sdk import observe_connections, start_sdk

    sdk = start_sdk(kind, process)
    observe_connections(sdk.meters, engine, kind)
    emit_by(sdk)


def emit_by(sdk: Sdk | None) -> None:
    """From here on emit through this SDK; None: emit nothing."""
    global _sdk, _jobs
    from app.telemetry.jobs import JobTelemetry
    from app.telemetry.runs import RunTelemetry
    from tasks.worker import tracing

    _sdk = sdk
    _jobs = JobTelemetry(sdk) if sdk else None
    tracing.telemetry = RunTelemetry(sdk.traces, sdk.meters) if sdk else None


def end_telemetry() -> None:
    """Send what is left, where a process ends without its exit handlers."""
    if _sdk is not None:
        _sdk.close()


def requests_of(app: Flask) -> Requests | None:
    """What makes a span of every request; None without telemetry."""
    if _sdk is None:
        return None
    from app.telemetry.requests import Requests

    return Requests(_sdk, app)


def admit_traced(
    submissions: Sequence[Submission], enter: Callable[[Sequence[Submission]], Admitted]
) -> Admitted:
    """``enter`` the submissions of one request within a span whose context their rows keep."""
    return enter(submissions) if _jobs is None else _jobs.admit(submissions, enter)


def carrying_traces(submissions: Sequence[Submission]) -> Sequence[Submission]:
    """Submissions without a request: each begins a trace."""
    return submissions if _jobs is None else [_jobs.admit_alone(item) for item in submissions]


def dispatching(dispatches: Sequence[Dispatch]) -> AbstractContextManager[None]:
    """A span for one publish, and the count of what was published."""
    return _NOTHING if _jobs is None else _jobs.dispatch(dispatches)


def note_reaped(pools_and_ends: Sequence[tuple[str, str]]) -> None:
    """Count what the reaper took from lost workers, by pool and by what became of it."""
    if _jobs is not None:
        _jobs.count_reaped(pools_and_ends)


def system_meters() -> MeterProvider | None:
    """Where the leader's gauges of the whole system go; None without telemetry."""
    return None if _sdk is None else _sdk.meters
