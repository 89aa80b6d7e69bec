"""A request of a tenant that lives in several cells: asks one of them, or all.

While the tenant moves, a row is inserted into its new cell before it is deleted from the old one.
So the cells that are being emptied are read before the others: what is gone from there is found
here. A row that is in both is that of the cell that admits.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from app.api.auth.visitors import SAFE_METHODS
from app.api.http.body import read_body
from app.api.http.problems import problem_of
from app.api.http.state import LAG_HEADER
from app.api.http.sub_request import SUB_REQUEST, SubRequest
from app.api.services import Services
from app.cells.fan_out import (
    FAN_OUT_SECONDS,
    BegunResponse,
    CellAnswer,
    ServedApps,
    ask,
    begin,
    copied,
    query_of,
    whole,
)
from app.errors import CellUnavailable
from models.jobs.ids import cell_number

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment
    from flask import Flask

    from app.policy.placement import Placement

#: Says which cells an answer is without.
MISSING_HEADER = "Fairline-Missing-Cells"
#: Of the time for all cells, what is left to those that admit jobs while others are being emptied.
ADMITTING_SECONDS = 1.0
#: Headers that are about the body, or made anew.
OF_BODY = ("content-length", "content-type", "etag", "link", LAG_HEADER.lower())
#: Statuses after which another cell may know more.
NO_ANSWER = (HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.NOT_FOUND, HTTPStatus.UNAUTHORIZED)
#: A row that was just inserted may not be in the standby yet.
NEWEST = {"HTTP_CACHE_CONTROL": "no-cache"}

#: What a request to one cell has in place of what was sent.
Changes = Mapping[str, Any]


def unchanged(_: str) -> Changes:
    """Every cell is sent the same."""
    return {}


class OtherAnswer(Exception):
    """A cell answered with an error, which is the answer."""

    def __init__(self, answer: CellAnswer) -> None:
        self.answer = answer
        super().__init__(f"{answer.status} of {answer.cell}")


@dataclass(frozen=True, slots=True)
class Gathered:
    """The answers of the cells that answered, those that admit jobs first."""

    answers: Sequence[CellAnswer]
    missing: Sequence[str] = ()

    @property
    def documents(self) -> list[Any]:
        return [answer.document for answer in self.answers]

    def headers(self) -> dict[str, str]:
        """The headers of the merged answer."""
        first = self.answers[0]
        headers = {name: value for name, value in first.headers if name.lower() not in OF_BODY}
        lags = [lag for answer in self.answers if (lag := answer.header(LAG_HEADER)) is not None]
        if lags:
            headers[LAG_HEADER] = max(lags, key=float)
        if self.missing:
            headers[MISSING_HEADER] = ", ".join(self.missing)
        return headers


@dataclass(frozen=True, slots=True)
class TenantRequest:
    """A request, and where its tenant lives."""

    apps: ServedApps
    placement: Placement
    environ: WSGIEnvironment
    #: Read once, sent to several.
    body: bytes = b""

    @property
    def method(self) -> str:
        """A response without a body cannot be merged: HEAD is answered like GET, then cut."""
        method: str = self.environ["REQUEST_METHOD"]
        return "GET" if method == "HEAD" else method

    @property
    def cells(self) -> tuple[str, ...]:
        """Those that admit jobs first."""
        return (*self.placement.admitting, *self.placement.leaving)

    @property
    def partial(self) -> bool:
        """Whether the caller wants what there is, if a cell is missing."""
        return query_of(self.environ).get("partial") == "true"

    def copy(self, **changes: Any) -> WSGIEnvironment:
        """The request, for one cell."""
        return copied(self.environ, changes, self.body)

    def gather(
        self,
        *besides: int,
        changes: Callable[[str], Changes] = unchanged,
        optional: Sequence[str] = (),
    ) -> Gathered:
        """What all cells answer; an error of one of them, unless it is ``besides``, is the answer.

        ``changes``: what differs from cell to cell; ``optional``: cells that may be missing, and
        are asked before those that are not.
        """
        deadline = time.monotonic() + FAN_OUT_SECONDS
        counted = self.counted_cell()
        before = (*self.placement.leaving, *optional)
        after = [cell for cell in self.placement.admitting if cell not in optional]
        newest = NEWEST if before else {}
        answers: dict[str, CellAnswer] = {}

        def changed(cell: str) -> Changes:
            part = {SUB_REQUEST: SubRequest(counted=cell == counted)}
            return {"REQUEST_METHOD": self.method, **newest, **part, **changes(cell)}

        for cells, until in (
            (before, deadline - ADMITTING_SECONDS),
            (after, deadline),
        ):
            left = max(0.0, until - time.monotonic())
            answers |= ask(self.apps, cells, self.environ, changed, body=self.body, seconds=left)
        return self._complete(answers, besides, optional)

    def _complete(
        self, answers: Mapping[str, CellAnswer], besides: Sequence[int], optional: Sequence[str]
    ) -> Gathered:
        """The answers, if they are all there or those that are there are wanted."""
        there = [
            answers[cell]
            for cell in self.cells
            if cell in answers and not answers[cell].away and not self.has_left(answers[cell])
        ]
        for answer in there:
            if answer.status >= HTTPStatus.BAD_REQUEST and answer.status not in besides:
                raise OtherAnswer(answer)
        left = {cell for cell, one in answers.items() if self.has_left(one)}
        missing = [cell for cell in self.cells if cell not in left | {one.cell for one in there}]
        for cell in missing:
            self.apps.suspect(cell)
        if set(missing).difference(optional) and (not self.partial or not there):
            raise missing_cells(missing)
        return Gathered(there, missing)

    def one(
        self, job_id: str | None, again: Sequence[str] = (), **changes: Any
    ) -> BegunResponse | CellAnswer:
        """The answer of the cell that has this job; None: any cell may know.

        ``again``: cells to ask once more, if no cell is left by the tenant (then all others are).
        It may wait for the end of the job, and may be a stream: it is passed on as it comes.
        """
        missing: list[str] = []
        absent: CellAnswer | None = None
        began = time.monotonic()
        for cell in self._in_turn(job_id, again):
            if cell in missing:
                continue
            # One that is away takes all the time there is.
            late = missing and time.monotonic() - began > FAN_OUT_SECONDS
            app = None if late else self.app(cell)
            if app is None:
                missing.append(cell)
                continue
            response = begin(app, self.copy(**changes))
            if response.status not in NO_ANSWER:
                return response
            answer = CellAnswer(cell, response.status, response.headers, response.read())
            if answer.away:
                self.apps.suspect(cell)
                missing.append(cell)
            elif answer.status == HTTPStatus.NOT_FOUND:
                absent = answer
            elif not self.has_left(answer):
                return answer
        if absent is None or missing:
            raise missing_cells(missing)
        return absent

    def _in_turn(self, job_id: str | None, again: Sequence[str]) -> Iterator[str]:
        """The cells in the order in which they are asked for a job."""
        born = self.apps.cell_numbered(cell_number(job_id)) if job_id else None
        for cells in (self.placement.admitting, self.placement.leaving):
            yield from sorted(cells, key=lambda cell: cell != born)
        # It may have gone there after we asked.
        yield from self.placement.admitting if self.placement.leaving else again

    def first(self, **changes: Any) -> BegunResponse:
        """The answer of the first cell that admits jobs."""
        cell = self.placement.admitting[0]
        app = self.app(cell)
        if app is None:
            raise missing_cells([cell])
        return begin(app, self.copy(**changes))

    def required(self, cell: str, **changes: Any) -> CellAnswer | None:
        """What a cell answers that has to be there; None: the tenant has left it."""
        app = self.app(cell)
        answer = None if app is None else whole(cell, app, self.copy(**changes))
        if answer is None or answer.away:
            raise missing_cells([cell])
        return None if self.has_left(answer) else answer

    def has_left(self, answer: CellAnswer) -> bool:
        """Whether a cell no longer knows the tenant, which has left it a moment ago."""
        return answer.status == HTTPStatus.UNAUTHORIZED and answer.cell in self.placement.leaving

    def counted_cell(self) -> str:
        """The cell that counts a request to all: each has a part of the tenant's rate, so it is
        another one each time, but none that is away."""
        there = [cell for cell in self.cells if self.app(cell) is not None]
        return random.choice(there or self.cells)

    def app(self, cell: str) -> Flask | None:
        """The application of a cell, unless that is away."""
        return None if self.apps.is_away(cell) else self.apps.app_of(cell)


def answer_by(
    handler: Callable[[TenantRequest], WSGIApplication],
    apps: ServedApps,
    placement: Placement,
    environ: WSGIEnvironment,
    start_response: StartResponse,
) -> Iterable[bytes]:
    """Answer a request about the cells of a placement; its body is read once."""
    reply: Any
    try:
        body = b""
        if environ["REQUEST_METHOD"] not in SAFE_METHODS:
            body = read_body(environ, services_of(apps, placement.cells).body_limits)
        reply = handler(TenantRequest(apps, placement, environ, body))
    except OtherAnswer as other:
        reply = other.answer
    except Exception as error:  # noqa: BLE001 - as in Flask: every error is an answer
        reply = problem_of(error)
    pieces: Iterable[bytes] = reply(environ, start_response)
    return pieces


def services_of(apps: ServedApps, cells: Sequence[str]) -> Services:
    """The services of the first of these cells that is served."""
    for cell in cells:
        if (app := apps.app_of(cell)) is not None:
            services: Services = app.extensions["fairline"]
            return services
    raise missing_cells(cells)


def missing_cells(cells: Sequence[str]) -> CellUnavailable:
    """The error of an answer that needs these cells."""
    return CellUnavailable(
        f"Not responding: {', '.join(cells)}. Some of your jobs are there. Please try again; lists"
        " accept partial=true, for what the other cells have."
    )
