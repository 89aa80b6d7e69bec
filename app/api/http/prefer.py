"""``Prefer: wait=30`` (RFC 7240): the response waits for the end of the job, up to a bound.

A preference and no demand: where it is malformed, or as many wait as may, the response comes at
once. A response that was preferred so says ``Preference-Applied: wait``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from werkzeug.http import parse_list_header, unquote_header_value

from app.api.http.reply import APPLIED, QuickReply, view_reply
from models.store.errors import StateStoreError

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIEnvironment

    from app.api.services import Services
    from app.reads.job_views import View

#: The header in the WSGI environment.
PREFER = "HTTP_PREFER"
#: A longer wait is cut to this: proxies give up on a response after a minute.
MOST_SECONDS = 50
MOST_CHARACTERS = 1_000


def parse_wait(header: str) -> int | None:
    """For how many seconds a client would wait; None if it does not say, or not properly."""
    if len(header) > MOST_CHARACTERS:
        return None
    for preference in parse_list_header(header):
        name, _, value = preference.partition(";")[0].partition("=")
        if name.strip().lower() == "wait":  # the first one counts
            digits = unquote_header_value(value.strip())
            number = int(digits) if digits.isascii() and digits.isdigit() else None
            return None if number is None else min(number, MOST_SECONDS)
    return None


def wait_for_end(
    services: Services, environ: WSGIEnvironment, job_id: str, view: View | None = None
) -> bool:
    """Wait for the job as the request prefers; False if it did not ask for it, or cannot wait.

    ``view``: as it was a moment ago.
    """
    seconds = parse_wait(environ[PREFER])
    if seconds is None:
        return False
    if view is not None and view.ended:
        return True
    tenant, caller = services.tenants.current(environ), services.tenants.caller(environ)
    return services.events.wait_for_end(
        tenant.id, job_id, seconds, caller.key, environ.get("gunicorn.socket")
    )


def ended_reply(
    services: Services,
    environ: WSGIEnvironment,
    job_id: str,
    read: Callable[[str], View | None],
    headers: dict[str, str],
) -> QuickReply | None:
    """The job that was just submitted, if it ends in time; None: answer as without a preference.

    ``headers`` of the submission are told whether it was waited for.
    """
    if not wait_for_end(services, environ, job_id):
        return None
    headers |= APPLIED
    try:
        view = read(job_id)
    except StateStoreError:
        return None  # it is accepted, which must not become an error
    if view is None or not view.ended or view.erased:
        return None
    kept = {name: value for name, value in headers.items() if name != "Retry-After"}
    return view_reply(view, kept)
