"""Answers callers whose key or job is not in the cell asked: the tenant may have been moved.

This process may know that a second later than others, which have sent it there already.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from http import HTTPStatus
from typing import TYPE_CHECKING

from app.cells.fan_out import BegunResponse
from app.cells.forwarding import refuse
from app.cells.merged_routes import OF_JOB
from app.cells.registry_cache import LOOK_SECONDS
from app.errors import TenantMoved
from app.log_ids import CALLER
from models.jobs.ids import cell_number, parse_id
from models.store.errors import StateStoreError

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIEnvironment

    from app.cells.fan_out import ServedApps
    from app.cells.registry_cache import RegistryCache
    from app.policy.placement import Placement

#: How long a submission is sent again because its tenant is being moved, and the pauses between.
MOVE_SECONDS = 1.5
PAUSE_SECONDS = 0.05
#: Answers a request by a placement.
Answer = Callable[["Placement", "WSGIEnvironment", "StartResponse"], Iterable[bytes]]


def look_again(cache: RegistryCache, tenant: str, known: Placement) -> Placement:
    """Where a tenant lives by now; after a pause, if nothing is new."""
    try:
        found = cache.look_again(tenant, MOVE_SECONDS)
    except StateStoreError:
        found = None
    if found is None or found.version == known.version:
        time.sleep(PAUSE_SECONDS)
    return found or known


def unless_moved(
    cache: RegistryCache,
    tenant: str,
    known: Placement,
    environ: WSGIEnvironment,
    refused: BegunResponse,
) -> BegunResponse:
    """The 401 of a cell that does not have the key, or 503 if the tenant lives elsewhere by now.

    It may if the registry does not answer. If its placement is the same, it was deleted. Nothing is
    sent again here: the body of a request that was refused has not been read.
    """
    try:
        found = cache.look_again(tenant, LOOK_SECONDS)
        if found is None or found.version == known.version:
            return refused
    except StateStoreError:
        pass
    refused.close()
    response = BegunResponse()
    response.pieces = refuse(TenantMoved(), environ, response.start)
    return response


def answer_again_if_moved(
    apps: ServedApps,
    cache: RegistryCache,
    tenant: str,
    known: Placement,
    answer: Answer,
    environ: WSGIEnvironment,
    start_response: StartResponse,
) -> Iterable[bytes]:
    """The answer by the known placement; if that is 404 for a job of another cell, by a newer one.

    The other cell may have admitted it a moment ago, by a placement that is not known here. A body
    may have been read: who sent one gets 503.
    """
    if not is_of_other_cell(apps, known, environ["PATH_INFO"]):
        return answer(known, environ, start_response)
    response = BegunResponse()
    response.pieces = answer(known, environ, response.start)
    newer = cache.newer(tenant, known) if response.status == HTTPStatus.NOT_FOUND else None
    if newer is None:
        return response(environ, start_response)
    response.close()
    if environ.get("CONTENT_LENGTH", "0") not in ("", "0") or "HTTP_TRANSFER_ENCODING" in environ:
        return refuse(TenantMoved(), environ, start_response)
    # Each application finds out by itself who calls.
    environ.pop(CALLER, None)
    return answer(newer, environ, start_response)


def is_of_other_cell(apps: ServedApps, placement: Placement, path: str) -> bool:
    """Whether a path is of a job that was admitted where its tenant is not known to live."""
    job = OF_JOB.fullmatch(path)
    job_id = None if job is None else parse_id(job[1])
    cell = None if job_id is None else apps.cell_numbered(cell_number(job_id))
    return cell is not None and cell not in placement.weights
