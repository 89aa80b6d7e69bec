"""What a key gets that its cell does not have any more: its tenant may have been moved."""

from __future__ import annotations

from typing import TYPE_CHECKING

from app.cells.fan_out import BegunResponse
from app.cells.forwarding import refuse
from app.errors import TenantMoved
from models.store.errors import StateStoreError

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIEnvironment

    from app.cells.registry_cache import RegistryCache
    from app.policy.placement import Placement

#: How long the registry may take.
LOOK_SECONDS = 1.0


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
