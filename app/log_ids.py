"""Ids on log lines: those of the job or the request during which a line is written."""

from __future__ import annotations

import logging
import re
import sys
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from models.jobs.ids import new_id
from tasks.worker.held import current_claim

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIEnvironment

#: The current request, until its response is written.
current_request: ContextVar[WSGIEnvironment | None] = ContextVar("fairline_request", default=None)

#: The caller in the environ. No header can set it: those begin with ``HTTP_``.
CALLER = "fairline.caller"
#: With cells: the version of the placement that a submission was sent here by; and whether it was
#: refused because its tenant is placed elsewhere.
PLACEMENT = "fairline.placement"
MOVED = "fairline.moved"
#: Whether a cell that the tenant has left counted the request before.
SENT_AGAIN = "fairline.sent_again"
#: The context of the request's span, with telemetry.
TRACE = "fairline.trace"
#: The id of the request, once something needs it.
REQUEST_ID = "fairline.request_id"
#: What a client or proxy may send as ``X-Request-Id``.
SENT_ID = re.compile(r"[A-Za-z0-9._:/+=-]{1,100}")
#: Characters of ``X-Forwarded-For`` that are kept.
MOST_FORWARDED = 200
#: What ``ctx.log`` puts on its records.
OF_RECORDS = ("job_id", "tenant_id", "attempt")


def ids_of(record: logging.LogRecord) -> dict[str, Any]:
    """The known ids of a line."""
    found: dict[str, Any] = {}
    claim = current_claim.get()
    if claim is not None:
        found = {
            "job_id": claim.ref.id,
            "job_type": claim.type,
            "tenant_id": claim.tenant_id,
            "lease": claim.ref.lease,
            "attempt": claim.attempt + 1,
        }
        if claim.traceparent:
            found["trace_id"] = claim.traceparent[3:35]
    else:
        environ = current_request.get()
        if environ is not None:
            found = {"method": environ["REQUEST_METHOD"], "path": environ["PATH_INFO"]}
            tenant = getattr(environ.get(CALLER), "tenant", None)
            if tenant is not None:
                found["tenant_id"] = tenant.id
            if (request_id := environ.get(REQUEST_ID)) is not None:
                found["request_id"] = request_id
            found |= ids_of_context(environ.get(TRACE))
    for name in OF_RECORDS:
        if (value := getattr(record, name, None)) is not None:
            found[name] = value
    return found | span_ids()


def span_ids() -> dict[str, str]:
    """The open span. Nothing is imported for it: without telemetry there is none."""
    trace: Any = sys.modules.get("opentelemetry.trace")
    if trace is None:
        return {}
    return ids_of_context(trace.get_current_span().get_span_context())


def ids_of_context(context: Any) -> dict[str, str]:
    if context is None or not context.is_valid:
        return {}
    return {"trace_id": f"{context.trace_id:032x}", "span_id": f"{context.span_id:016x}"}


def request_id_of(environ: WSGIEnvironment) -> str:
    """The id of a request: as it was sent in ``X-Request-Id``, else a new one."""
    known: str | None = environ.get(REQUEST_ID)
    if known is None:
        sent = environ.get("HTTP_X_REQUEST_ID", "")
        known = environ[REQUEST_ID] = sent if SENT_ID.fullmatch(sent) else new_id()
    return known


def address_of(environ: WSGIEnvironment) -> str:
    """Where a request came from, and what a proxy there, or whoever it was, said of its origin."""
    address: str = environ.get("REMOTE_ADDR", "")
    forwarded = environ.get("HTTP_X_FORWARDED_FOR", "")[:MOST_FORWARDED]
    return f"{address} for {forwarded}" if forwarded else address
