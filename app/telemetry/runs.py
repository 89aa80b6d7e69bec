"""Spans and counts of runs.

A run is in the submission's trace: its parent is the message that delivered it, and a link to the
span ``admit`` shows the wait between them. Many short jobs may share a message, which is in the
trace of its first one: in other traces the parent is ``admit``, and a link leads to the message.
Counted are runs whose outcome was written, with the status that the run asked for: the row has
another if cancellation was requested meanwhile.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.metrics import MeterProvider
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    Span,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TracerProvider,
)
from opentelemetry.util.types import AttributeValue

from app.telemetry import attributes as names
from app.telemetry.scope import meter_of, tracer_of
from app.telemetry.tracing import context_of
from models.jobs.claim import Claim
from models.jobs.settle import Ending, Settlement
from models.jobs.states import JobStatus
from models.jobs.trace_context import trace_headers
from models.pools import RUN_BOUNDS, WAIT_BOUNDS
from tasks.worker.outcome import Failed, Outcome
from tasks.worker.tracing import ModelCall, RunSpan


class RunTelemetry:
    """What a worker reports about its runs."""

    def __init__(self, traces: TracerProvider, meters: MeterProvider) -> None:
        self._tracer = tracer_of(traces)
        meter = meter_of(meters)
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
            "Time from when a job was due to its first start.",
            explicit_bucket_boundaries_advisory=WAIT_BOUNDS,
        )

        self._processed = meter.create_histogram(
            "messaging.process.duration",
            "s",
            "Duration of runs, by the conventions for messaging.",
            explicit_bucket_boundaries_advisory=RUN_BOUNDS,
        )
        self._called = meter.create_histogram(
            "gen_ai.client.operation.duration",
            "s",
            "Duration of calls of models.",
            explicit_bucket_boundaries_advisory=names.MODEL_BOUNDS,
        )
        self._tokens = meter.create_histogram(
            "gen_ai.client.token.usage",
            "{token}",
            "Tokens that a call of a model used.",
            explicit_bucket_boundaries_advisory=names.TOKEN_BOUNDS,
        )

    def message(self) -> SpanContext:
        """The current message, as Celery's instrumentation has it; else an invalid context.

        Taken where the message is: the runs of a shared one are in threads without its context.
        """
        return trace.get_current_span().get_span_context()

    @contextmanager
    def span(self, claim: Claim, worker: str, message: object) -> Iterator[RunSpan]:
        parent = context_of(trace_headers(claim.traceparent))
        submitted = trace.get_current_span(parent).get_span_context()
        links = [submitted]
        if isinstance(message, SpanContext) and message.is_valid:
            if message.trace_id == submitted.trace_id:
                parent = trace.set_span_in_context(NonRecordingSpan(message), Context())
            else:  # it was sent together with a job of another trace
                links.append(message)
        with self._tracer.start_as_current_span(
            f"run {claim.type}",
            parent,
            kind=SpanKind.CONSUMER,
            links=[Link(context) for context in links if context.is_valid],
            attributes=attributes_of(claim, worker),
        ) as span:
            yield partial(note_outcome, span)

    def count(self, claim: Claim, settlement: Settlement, waited: float | None) -> None:
        """Count a run whose outcome was written."""
        about = {
            names.POOL: claim.pool,
            names.JOB_TYPE: claim.type,
            names.OUTCOME: outcome_word(settlement.ending),
        }
        self._settled.add(1, about)
        if settlement.ending.status is not JobStatus.QUEUED:  # a claim handed back is no run
            self._took.record(settlement.run_seconds, about)
            self._processed.record(settlement.run_seconds, process_attributes(claim, settlement))
            if waited is not None:
                self._waited.record(waited, {names.POOL: claim.pool})

    @contextmanager
    def model_call(self, provider: str, model: str) -> Iterator[ModelCall]:
        about: dict[str, AttributeValue] = {
            names.MODEL_OPERATION: "chat",
            names.MODEL_PROVIDER: provider,
            names.MODEL_ASKED: model,
        }
        call, began = ModelCall(), time.perf_counter()
        try:
            yield call
        except Exception as error:
            about[names.ERROR_TYPE] = type(error).__qualname__
            raise
        finally:
            if call.model:
                about[names.MODEL_ANSWERED] = call.model
            self._called.record(time.perf_counter() - began, about)
            for kind, tokens in (("input", call.tokens_in), ("output", call.tokens_out)):
                if tokens is not None:
                    self._tokens.record(tokens, {**about, names.TOKEN_TYPE: kind})


def process_attributes(claim: Claim, settlement: Settlement) -> dict[str, AttributeValue]:
    """The attributes of the conventions; the type of an error is its failure class."""
    found: dict[str, AttributeValue] = {
        names.MESSAGING_SYSTEM: names.SYSTEM,
        names.OPERATION_NAME: "run",
        names.OPERATION_TYPE: "process",
        names.DESTINATION: claim.pool,
    }
    if settlement.ending.error_class is not None:
        found[names.ERROR_TYPE] = settlement.ending.error_class.value
    return found


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
