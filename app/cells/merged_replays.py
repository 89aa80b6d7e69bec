"""Replays and discards of dead letters of a tenant that lives in several cells.

Each cell handles those that it has. A replay that goes on in the background is worked off by every
cell for itself, under one id: its progress is their sum.
"""

from __future__ import annotations

from dataclasses import replace
from http import HTTPStatus
from typing import TYPE_CHECKING

import orjson

from app.api.http.reply import POLL_SECONDS, Reply
from app.api.http.sub_request import SUB_REQUEST, SubRequest
from app.api.schemas.requests import MOST_DISCARDED
from app.cells.fan_out import CellAnswer
from app.cells.merge import sum_replays, union_of
from app.cells.tenant_request import OtherAnswer, TenantRequest, missing_cells
from models.jobs.ids import new_id

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIApplication


def replay_letters(asked: TenantRequest) -> WSGIApplication:
    """Replay dead letters, each in the cell that has it; in the background under one id."""
    part = SubRequest(replay_id=new_id())
    answers = in_every_cell(asked, "replayed", part)
    later = [one for one in answers if one.status == HTTPStatus.ACCEPTED]
    if not later:
        return Reply(union_of([one.document for one in answers], "replayed"))
    headers = {"Location": later[0].header("Location") or "", "Retry-After": POLL_SECONDS}
    return Reply(sum_replays([one.document for one in later]), HTTPStatus.ACCEPTED, headers)


def discard_letters(asked: TenantRequest) -> WSGIApplication:
    """Discard dead letters, each in the cell that has it."""
    answers = in_every_cell(asked, "discarded", SubRequest(), MOST_DISCARDED)
    return Reply(union_of([one.document for one in answers], "discarded"))


def in_every_cell(
    asked: TenantRequest, count: str, part: SubRequest, usual: int | None = None
) -> list[CellAnswer]:
    """Have the cells do it, one after the other, up to the limit of the request, or the usual one.

    Those that are being emptied first: what they do arrives in the others with the job. It may be
    repeated if a cell fails: what is done is not done again.
    """
    cells = (*asked.placement.leaving, *asked.placement.admitting)
    away = [cell for cell in cells if asked.app(cell) is None]
    if away:
        raise missing_cells(away)
    answers: list[CellAnswer] = []
    left = limit_in(asked.body, usual)
    for cell in cells:
        body = asked.body if left is None else limited(asked.body, left)
        one = replace(asked, body=body).required(cell, **{SUB_REQUEST: part})
        if one is None:
            continue
        if one.status >= HTTPStatus.BAD_REQUEST:
            raise OtherAnswer(one)
        answers.append(one)
        part = replace(part, counted=False)
        if left is not None:
            done = one.document
            left -= done[count] if one.status == HTTPStatus.OK else done["total"]
            if left <= 0:
                break
    return answers


def limit_in(body: bytes, usual: int | None) -> int | None:
    """The limit of a request with a filter; None: there is none, or it names the ids.

    A body that is not valid has none either: the first cell refuses it.
    """
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError:
        return None
    if not isinstance(document, dict) or document.get("ids") is not None:
        return None
    limit = document.get("limit", usual)
    return limit if type(limit) is int and limit > 0 else None


def limited(body: bytes, limit: int) -> bytes:
    """The same with another limit."""
    return orjson.dumps(orjson.loads(body) | {"limit": limit})


def replay_progress(asked: TenantRequest) -> WSGIApplication:
    """The progress of a replay in all cells that work it off; or its cancellation."""
    gathered = asked.gather(HTTPStatus.NOT_FOUND)
    found = [one for one in gathered.answers if one.status != HTTPStatus.NOT_FOUND]
    if not found:
        return gathered.answers[0]
    document = sum_replays([one.document for one in found])
    headers = {"Retry-After": POLL_SECONDS} if document["state"] == "running" else {}
    return Reply(document, 200, headers)
