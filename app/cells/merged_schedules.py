"""Schedules of a tenant that lives in several cells, or moves from one to another.

They are in its first cell. While a move brings them there, some are in other ones: each is read,
changed and run where it is, and a name is free if it is in all of them. After a crash of the move a
schedule may be in two cells: the first one's is it, and the other is removed with it.
"""

from __future__ import annotations

from dataclasses import replace
from http import HTTPStatus
from typing import TYPE_CHECKING, NamedTuple

from app.api.http.sub_request import SUB_REQUEST, SubRequest
from app.cells.tenant_request import OtherAnswer, TenantRequest, missing_cells
from app.errors import CellUnavailable

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIApplication

    from app.cells.fan_out import CellAnswer


class Holders(NamedTuple):
    """The cells that may have schedules."""

    #: The first cell and those that are being emptied: it does not go without these.
    needed: tuple[str, ...]
    #: Others that admit jobs: they have some only until a move has brought them to the first one.
    unneeded: tuple[str, ...]


def holders(asked: TenantRequest) -> Holders:
    """The cells that may have schedules of the tenant."""
    first, *others = asked.placement.admitting
    return Holders((*asked.placement.leaving, first), tuple(others))


def one_schedule(asked: TenantRequest) -> WSGIApplication:
    """Read or run one schedule."""
    return asked.one(None)


def change_schedule(asked: TenantRequest) -> WSGIApplication:
    """Change a schedule where it is, if a new name is free in all cells."""
    in_turn(asked, SubRequest(counted=False, only_name=True))
    return asked.one(None)


def create_schedule(asked: TenantRequest) -> WSGIApplication:
    """Create a schedule in the first cell, if its name is free in all cells."""
    in_turn(asked, SubRequest(counted=False, only_name=True))
    return asked.first()


def remove_schedule(asked: TenantRequest) -> WSGIApplication:
    """Remove a schedule from all cells that have it."""
    return in_turn(asked, SubRequest(), HTTPStatus.NOT_FOUND)


def in_turn(asked: TenantRequest, part: SubRequest, *besides: int) -> CellAnswer:
    """Ask the cells one by one, the first one last: what has left another by then is there.

    An error of one of them is the answer, unless it is ``besides``; else what one of them did.
    """
    needed, unneeded = holders(asked)
    answers: list[CellAnswer] = []
    missing: list[str] = []
    for cell in (*needed[:-1], *unneeded, needed[-1]):
        try:
            answer = asked.required(cell, **{SUB_REQUEST: part})
        except CellUnavailable:
            asked.apps.suspect(cell)
            if cell in needed:
                raise
            missing.append(cell)
            continue
        if answer is None:
            continue
        if answer.status >= HTTPStatus.BAD_REQUEST and answer.status not in besides:
            raise OtherAnswer(answer)
        answers.append(answer)
        part = replace(part, counted=False)
    done = [one for one in answers if one.status not in besides]
    if missing and not done:
        raise missing_cells(missing)
    return (done or answers)[-1]
