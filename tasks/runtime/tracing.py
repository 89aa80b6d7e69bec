"""Spans of a run. Costs nothing unless telemetry was set up in this process.

The wait in line may be long, so the run is not a child of the submission but linked to it
by the ``traceparent`` kept in the row.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

from opentelemetry import trace
from opentelemetry.trace import Link, SpanKind
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from tasks.runtime.claim import Claim

#: Switched on by the telemetry set-up.
enabled = False

_propagator = TraceContextTextMapPropagator()


def run_span(claim: Claim, worker: str) -> AbstractContextManager[None]:
    """The span of one run, linked to the submission."""
    return _span(claim, worker) if enabled else nullcontext()


@contextmanager
def _span(claim: Claim, worker: str) -> Iterator[None]:
    links = []
    if claim.traceparent:
        context = _propagator.extract({"traceparent": claim.traceparent})
        links.append(Link(trace.get_current_span(context).get_span_context()))
    with trace.get_tracer("fairline").start_as_current_span(
        f"run {claim.type}",
        kind=SpanKind.CONSUMER,
        links=links,
        attributes={
            "fairline.job.id": claim.ref.id,
            "fairline.job.lease": claim.ref.lease,
            "fairline.job.type": claim.type,
            "fairline.tenant.id": claim.tenant_id,
            "fairline.pool": claim.pool,
            "messaging.consumer.group.name": worker,
        },
    ):
        yield
