"""A request that is a part of one to several cells, as routes notice it: see :mod:`app.cells`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from flask import request

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIEnvironment

#: Where it is in the environ. No header can set it: those begin with ``HTTP_``.
SUB_REQUEST = "fairline.sub_request"


@dataclass(frozen=True, slots=True)
class SubRequest:
    """One part of a request."""

    #: Whether this is the part that counts for the tenant's rate of requests.
    counted: bool = True
    #: The id of the replay that it begins, which is the same in all cells.
    replay_id: str | None = None
    #: Whether entries come with their places, by which they are merged.
    with_places: bool = False
    #: Whether names are sorted by their bytes, as they are merged: databases may sort differently.
    by_bytes: bool = False
    #: Whether only to check that the name which a schedule is given is free here.
    only_name: bool = False


#: A request to one cell.
WHOLE = SubRequest()


def sub_request_of(environ: WSGIEnvironment) -> SubRequest:
    """Which part of a request this is."""
    found: SubRequest = environ.get(SUB_REQUEST, WHOLE)
    return found


def current_part() -> SubRequest:
    """Which part of a request the current one is."""
    return sub_request_of(request.environ)
