"""Spans and counts of runs.

A run is in the submission's trace: its parent is the span ``admit``, and a link to it shows the
wait between them. Another link leads to the message that delivered it, which many short jobs may
share. Counted are runs whose outcome was written, with the status that the run asked for: the row
has another if cancellation was requested meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from opentelemetry import trace
from opentelemetry.metrics import MeterProvider
from opentelemetry.trace import (
    Link,
    Span,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TracerProvider,
)
from opentelemetry.util.types import AttributeValue

from app.telemetry import attributes as names
from app.telemetry.jobs import context_of
from models.jobs.claim import Claim
from models.jobs.settle import Ending, Settlement
from models.jobs.states import JobStatus
from tasks.worker.outcome import Failed, Outcome
from tasks.worker.tracing import RunSpan

#: From a no-op to the longest runs, and from the express lane to a night in the queue.
RUN_BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800, 7200)
WAIT_BOUNDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800, 7200, 28800)


class RunTelemetry:
    """What a worker reports about its runs."""

    def __init__(self, traces: TracerProvider, meters: MeterProvider) -> None:
        self._tracer = traces.get_tracer("fairline")
        meter = meters.get_meter("fairline")
        self._settled = meter.create_counter(
            "fairline.runs.settled", "{run}", "Runs whose end was written, by outcome."
        )
        self._took = meter.create_histogram(
            "fairline.run.duration",
            "s",
            "How long runs took.",
            explicit_bucket_boundaries_advisory=RUN_BOUNDS,
        )
        self._waited = meter.create_histogram(
            "fairline.wait.duration",
            "s",
            "How long due jobs waited for their run.",
            explicit_bucket_boundaries_advisory=WAIT_BOUNDS,
        )

    def message(self) -> SpanContext:
        """The current message, as Celery's instrumentation has it; else an invalid context.

        Taken where the message is: the runs of a shared one are in threads without its context.
        """
        return trace.get_current_span().get_span_context()

    @contextmanager
    def span(self, claim: Claim, worker: str, message: object) -> Iterator[RunSpan]:
        parent = context_of(claim.traceparent)
        submitted = trace.get_current_span(parent).get_span_context()
        links = [submitted, message] if isinstance(message, SpanContext) else [submitted]
        with self._tracer.start_as_current_span(
            f"run {claim.type}",
            parent,
            kind=SpanKind.CONSUMER,
            links=[Link(context) for context in links if context.is_valid],
            attributes=attributes_of(claim, worker),
        ) as span:
            yield partial(note_outcome, span)

    def count(self, claim: Claim, settlement: Settlement) -> None:
        """Count a run whose outcome was written."""
        about = {
            names.POOL: claim.pool,
            names.JOB_TYPE: claim.type,
            names.OUTCOME: outcome_word(settlement.ending),
        }
        self._settled.add(1, about)
        if settlement.ending.status is not JobStatus.QUEUED:  # a claim handed back is no run
            self._took.record(settlement.run_seconds, about)
            if claim.wait_seconds is not None:
                self._waited.record(claim.wait_seconds, {names.POOL: claim.pool})


def note_outcome(span: Span, outcome: Outcome) -> None:
    """Record how the run ended; only a failure is an error. Its text may be personal data."""
    if isinstance(outcome, Failed):
        span.set_attribute(names.ERROR_TYPE, outcome.failure_class.value)
        span.set_status(Status(StatusCode.ERROR))
    span.set_attribute(names.OUTCOME, type(outcome).__name__.lower())


def attributes_of(claim: Claim, worker: str) -> dict[str, AttributeValue]:
    found: dict[str, AttributeValue] = {
        names.MESSAGING_SYSTEM: names.SYSTEM,
        names.OPERATION_NAME: "run",
        names.OPERATION_TYPE: "process",
        names.DESTINATION: claim.pool,
        names.MESSAGE_ID: claim.ref.id,
        names.CLIENT_ID: worker,
        names.JOB_ID: claim.ref.id,
        names.JOB_TYPE: claim.type,
        names.LEASE: claim.ref.lease,
        names.ATTEMPT: claim.attempt + 1,
        names.CRASHES: claim.crashes,
        names.REPLAYS: claim.replays,
        names.TENANT_ID: claim.tenant_id,
        names.POOL: claim.pool,
    }
    if claim.wait_seconds is not None:
        found[names.WAIT_SECONDS] = claim.wait_seconds
    return found


def outcome_word(ending: Ending) -> str:
    """The row's new status, or why the job runs again."""
    if ending.status is JobStatus.SCHEDULED:
        return "snoozed" if ending.error_class is None else "retried"
    return "returned" if ending.status is JobStatus.QUEUED else ending.status.value
