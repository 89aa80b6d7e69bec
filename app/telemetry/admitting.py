"""The span ``admit``: a request's jobs on their way into the line.

Its context goes into the rows (``jobs.traceparent``), so that every run of them, after a crash, a
retry or a replay too, belongs to the same trace and is linked to this span.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, TracerProvider
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.util.types import AttributeValue

from app.errors import FairlineError
from app.telemetry import attributes as names
from models.jobs.submission import Admitted, Submission

#: Ids of a batch that are told; all of its runs are linked to the span anyway.
MOST_IDS = 20

_propagator = TraceContextTextMapPropagator()


class Admitting:
    """Makes the spans."""

    def __init__(self, traces: TracerProvider) -> None:
        self._tracer = traces.get_tracer("fairline")

    def within(
        self, submissions: Sequence[Submission], enter: Callable[[Sequence[Submission]], Admitted]
    ) -> Admitted:
        """``enter`` the submissions of one request, which carry the context of its span."""
        with self._tracer.start_as_current_span(
            "admit",
            kind=SpanKind.PRODUCER,
            attributes=attributes_of(submissions),
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            kept = traceparent_of(span)
            try:
                admitted = enter([item._replace(traceparent=kept) for item in submissions])
            except Exception as error:
                span.set_attribute(names.ERROR_TYPE, error_type(error))
                span.set_status(Status(StatusCode.ERROR))
                raise
            if admitted.repeated:
                span.set_attribute(names.REPEATED, True)
                tell_ids(span, admitted.ids)
            elif admitted.express:
                span.set_attribute(names.EXPRESS, len(admitted.express))
            return admitted

    def alone(self, item: Submission) -> Submission:
        """A job that no request asked for, at the beginning of a trace."""
        span = self._tracer.start_span(
            "admit", Context(), kind=SpanKind.PRODUCER, attributes=attributes_of([item])
        )
        span.end()
        return item._replace(traceparent=traceparent_of(span))


def traceparent_of(span: Span) -> str | None:
    """The context to be kept in the row; also that of a span which is not recorded."""
    carrier: dict[str, str] = {}
    _propagator.inject(carrier, trace.set_span_in_context(span, Context()))
    return carrier.get("traceparent")


def attributes_of(submissions: Sequence[Submission]) -> Mapping[str, AttributeValue]:
    """What the span says of them; what differs within a batch is left out."""
    found: dict[str, AttributeValue] = {
        names.MESSAGING_SYSTEM: names.SYSTEM,
        names.OPERATION_NAME: "admit",
        names.OPERATION_TYPE: "send",
        names.TENANT_ID: submissions[0].tenant_id,
    }
    pools = {item.pool for item in submissions}
    types = {item.type for item in submissions}
    if len(pools) == 1:
        found[names.DESTINATION] = found[names.POOL] = pools.pop()
    if len(types) == 1:
        found[names.JOB_TYPE] = types.pop()
    if len(submissions) == 1:
        found[names.MESSAGE_ID] = found[names.JOB_ID] = submissions[0].id
    else:
        found[names.BATCH_COUNT] = len(submissions)
        found[names.JOB_IDS] = tuple(item.id for item in submissions[:MOST_IDS])
    return found


def tell_ids(span: Span, ids: Sequence[str]) -> None:
    """The jobs are those of the first request under the same key."""
    if len(ids) == 1:
        span.set_attributes({names.MESSAGE_ID: ids[0], names.JOB_ID: ids[0]})
    else:
        span.set_attribute(names.JOB_IDS, tuple(ids[:MOST_IDS]))


def error_type(error: Exception) -> str:
    """The code that the caller is told, else the kind of error."""
    return error.code if isinstance(error, FairlineError) else type(error).__qualname__
