"""Schedules of a tenant that lives in several cells, or moves from one to another.

They are in its first cell. While a move brings them there, some are in other ones: each is read
and changed where it is, and runs by hand where jobs are admitted. A name is free if it is free in
all of them. After a crash of the move a schedule may be in two cells: that of the first one is
shown and changed, and both are removed.
"""

from __future__ import annotations

from dataclasses import replace
from http import HTTPStatus
from typing import TYPE_CHECKING, NamedTuple

import orjson

from app.api.http.sub_request import SUB_REQUEST, SubRequest
from app.cells.tenant_request import OtherAnswer, TenantRequest, missing_cells
from app.errors import CellUnavailable

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIApplication

    from app.cells.fan_out import CellAnswer


class Holders(NamedTuple):
    """The cells that may have schedules of a tenant."""

    first: str
    leaving: tuple[str, ...]
    #: Others that admit jobs: they have some only until a move has brought them to the first one,
    #: so that an answer may be without them.
    optional: tuple[str, ...]


def holders(asked: TenantRequest) -> Holders:
    """The cells that may have schedules of the caller."""
    first, *others = asked.placement.admitting
    return Holders(first, asked.placement.leaving, tuple(others))


def one_schedule(asked: TenantRequest) -> WSGIApplication:
    """Read one schedule, or run it, and what the forms of its page do."""
    # It may have gone to the first cell after we asked.
    return asked.one(None, again=asked.placement.admitting[:1])


def change_schedule(asked: TenantRequest) -> WSGIApplication:
    """Change a schedule where it is, if the name that it is given is free in all cells."""
    if gives_name(asked.body):
        ask_in_turn(asked, SubRequest(counted=False, only_name=True))
    return one_schedule(asked)


def create_schedule(asked: TenantRequest) -> WSGIApplication:
    """Create a schedule in the first cell, if its name is free in all cells."""
    ask_in_turn(asked, SubRequest(counted=False, only_name=True))
    return asked.first()


def remove_schedule(asked: TenantRequest) -> WSGIApplication:
    """Remove a schedule from all cells that have it."""
    return ask_in_turn(asked, SubRequest(), HTTPStatus.NOT_FOUND)


def gives_name(body: bytes) -> bool:
    """Whether a change contains a name; who reads one that is not valid refuses it."""
    try:
        return "name" in orjson.loads(body)
    except (ValueError, TypeError):
        return False


def ask_in_turn(asked: TenantRequest, part: SubRequest, *besides: int) -> CellAnswer:
    """Ask the cells one by one, the first one last: what has left another by then is there.

    An error of one of them is the answer, unless it is ``besides``; else what one of them did.
    """
    first, leaving, optional = holders(asked)
    answers: list[CellAnswer] = []
    missing: list[str] = []
    for cell in (*leaving, *optional, first):
        try:
            answer = asked.required(cell, **{SUB_REQUEST: part})
        except CellUnavailable:
            asked.apps.suspect(cell)
            if cell not in optional:
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
