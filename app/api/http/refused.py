"""Refused requests (401, 403, 429): all are counted, and some are in the audit log.

Counted in ``refusals``, by code; those over a limit of a tenant are counted by the gate. The
audit log has the first of each code, then one after 1 s, 2 s, 4 s and so on up to 15 minutes while
it goes on, each with the number since the one before: at most about a hundred rows a day, code and
process, however many requests are refused. Requests that are accepted do not come here.

Written by a thread of its own, never by a request. Not guaranteed: what a process has not written
when it is killed; connections beyond the limits of the server, which send no request.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from sqlalchemy import Engine

from app.api.http.problems import STATUS
from app.errors import FairlineError, Refused, TenantStreamsExceeded, TenantSuspended
from app.log_ids import CALLER, address_of, request_id_of
from app.policy.sampling import FIRST_SECONDS, SampledCount
from app.repeated import BackgroundLoop
from app.tenants.keys import parse_authorization
from models.audit import Act, Actor, acting, record_first

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIEnvironment

REFUSED = tuple(error for error, status in STATUS.items() if status in (401, 403, 429))
#: The gate counts these itself, by tenant: all limits but that of streams.
COUNTED = tuple(
    error
    for error in REFUSED
    if issubclass(error, (Refused, TenantSuspended)) and error is not TenantStreamsExceeded
)
MOST_PATH = 200


class RefusedRequests:
    """The refused requests of one process."""

    def __init__(
        self,
        engine: Engine,
        count: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``count`` is called with the code of each that nobody else counts."""
        self._engine = engine
        self._count = count
        self._clock = clock
        self._guard = threading.Lock()
        #: By code, of which there are few: how many, and the first that is not recorded yet.
        self._counts: dict[str, SampledCount] = {}
        self._first: dict[str, tuple[Actor, str, str | None]] = {}
        self._writer = BackgroundLoop(
            self.flush, FIRST_SECONDS, "refused requests", away="refused requests are counted"
        )
        self.close = self._writer.close

    def note(self, error: Exception, environ: WSGIEnvironment) -> None:
        """Count the error of a request, if it is a refusal."""
        if not isinstance(error, REFUSED):
            return
        if not isinstance(error, COUNTED):
            self._count(error.code)
        with self._guard:
            if self._counts.setdefault(error.code, SampledCount()).add():
                self._first[error.code] = described(error, environ)
        self._writer.start()

    def flush(self) -> None:
        """Write a row of each code that is due."""
        now = self._clock()
        with self._guard:
            due = {
                code: (known.count, self._first[code])
                for code, known in self._counts.items()
                if known.is_due(now)
            }
        for code, (count, (actor, target, tenant)) in due.items():
            after = {"code": code, "count": count}
            with acting(actor):
                record_first(self._engine, Act.REQUEST_REFUSE, target, tenant=tenant, after=after)
            # After the commit: what cannot be written stays counted.
            with self._guard:
                self._counts[code].record(now, count)


def described(error: FairlineError, environ: WSGIEnvironment) -> tuple[Actor, str, str | None]:
    """Who was refused, as far as that is known, what, and of which tenant."""
    caller = environ.get(CALLER)
    sent = None if caller else parse_authorization(environ.get("HTTP_AUTHORIZATION", ""))
    path = environ.get("PATH_INFO", "")[:MOST_PATH].replace("\0", "")
    role = "unknown"
    if caller is not None and caller.scopes:
        role = "operator" if caller.tenant is None else "tenant"
    actor = Actor(
        via="console" if path.startswith("/console") else "api",
        # Of an unknown key the first part, which is no secret.
        who=caller.key or "anonymous" if caller else sent.id if sent else "unknown",
        role=role,
        acts=(Act.REQUEST_REFUSE,),
        address=address_of(environ).replace("\0", ""),
        request_id=request_id_of(environ),
        name=caller.name if caller is not None else None,
    )
    tenant = caller.tenant.name if caller is not None and caller.tenant is not None else None
    return actor, f"{environ.get('REQUEST_METHOD', '')} {path}", tenant
