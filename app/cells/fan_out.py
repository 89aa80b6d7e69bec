"""Asks several cells at once: the same request to the application of each, bounded in time.

A cell that is known to be away is not asked; one that fails, or has not answered in time, is
missing. What a late one answers is dropped: it ends by its own limits.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Protocol, TypeVar
from urllib.parse import parse_qsl, urlencode

import orjson

from app.api.http.complete_body import CompleteBody
from app.api.http.problems import AWAY_CODE
from app.api.http.reply import STATUS_LINES
from app.errors import CellUnavailable, TenantMoved
from app.log_ids import CALLER, request_id_of
from models.store.errors import StateStoreError

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIEnvironment
    from flask import Flask

    from app.policy.placement import Placement

logger = logging.getLogger(__name__)

Found = TypeVar("Found")

#: For all cells together.
FAN_OUT_SECONDS = 2.0
#: Of a 503 of a cell that is away; another 503 is an answer like others.
AWAY_CODES = (AWAY_CODE, CellUnavailable.code, TenantMoved.code)
#: Integers of fewer characters fit into 64 bits.
LONG_DIGITS = 19
#: The request that one to a cell is a part of, in its environ.
PART_OF = "fairline.part_of"
#: What a framework keeps of a request, which is of one application.
OF_FRAMEWORK = ("werkzeug.", "flask.")


class ServedApps(Protocol):
    """The cells that a process serves: the router."""

    def app_of(self, cell: str) -> Flask | None:
        """The application of a cell; None if there is no such cell, or it cannot be served."""

    def is_away(self, cell: str) -> bool:
        """Whether a cell did not answer lately."""

    def suspect(self, cell: str) -> None:
        """A cell seems not to answer: find out."""

    def cell_numbered(self, number: int) -> str | None:
        """The name of the cell of this number."""

    def cell_names(self) -> Sequence[str]:
        """All cells, by number."""

    def placement_of(self, tenant: str) -> Placement | None:
        """Where the tenant of this name lives."""


@dataclass(frozen=True, slots=True)
class CellAnswer:
    """What one cell answered."""

    cell: str
    status: int
    headers: Sequence[tuple[str, str]]
    body: bytes

    @property
    def document(self) -> Any:
        """The body, which is JSON; numbers in it stay as they are written."""
        return json.loads(self.body, parse_float=exact_float, parse_int=exact_int)

    @property
    def away(self) -> bool:
        """Whether it says that the cell cannot be reached."""
        if self.status != HTTPStatus.SERVICE_UNAVAILABLE:
            return False
        try:
            return self.document.get("code") in AWAY_CODES
        except ValueError:  # a page, or nothing
            return True

    def header(self, name: str) -> str | None:
        """The value of a header."""
        wanted = name.lower()
        return next((value for key, value in self.headers if key.lower() == wanted), None)

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        """The same as a response."""
        start_response(STATUS_LINES[self.status], [*self.headers])
        return () if environ["REQUEST_METHOD"] == "HEAD" else (self.body,)


def exact_float(text: str) -> Any:
    """A number; as it is written, if Python would write it in another way."""
    number = float(text)
    return number if repr(number) == text else orjson.Fragment(text)


def exact_int(text: str) -> Any:
    """The same without decimals: orjson writes integers of up to 64 bits."""
    return int(text) if len(text) < LONG_DIGITS else orjson.Fragment(text)


@dataclass(slots=True)
class BegunResponse:
    """A response that has begun: its head, and the pieces of its body to be read."""

    status: int = 0
    headers: list[tuple[str, str]] = field(default_factory=list)
    pieces: Iterable[bytes] = ()

    def start(self, line: str, headers: list[tuple[str, str]], *_: Any) -> Callable[[bytes], None]:
        """WSGI's ``start_response``."""
        self.status, self.headers = int(line[:3]), headers
        return refuse_write

    def read(self) -> bytes:
        """All of its body."""
        try:
            return b"".join(self.pieces)
        finally:
            self.close()

    def __call__(self, _: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        """Pass it on as it is."""
        start_response(STATUS_LINES[self.status], self.headers)
        return self.pieces

    def close(self) -> None:
        """Nothing more of it is needed."""
        close = getattr(self.pieces, "close", None)
        if close is not None:
            close()


def refuse_write(_: bytes) -> None:
    """WSGI's old way to write a body, which no application here uses."""
    raise NotImplementedError


def begin(app: Flask, environ: WSGIEnvironment) -> BegunResponse:
    """Call an application."""
    response = BegunResponse()
    response.pieces = app(environ, response.start)
    whole_request = environ.get(PART_OF)
    if whole_request is not None and CALLER in environ:
        whole_request[CALLER] = environ[CALLER]  # for the access log
    return response


def whole(cell: str, app: Flask, environ: WSGIEnvironment) -> CellAnswer:
    """Call the application of a cell and read its response."""
    response = begin(app, environ)
    body = response.read()
    return CellAnswer(cell, response.status, response.headers, body)


def each(
    apps: ServedApps,
    cells: Collection[str],
    work: Callable[[str, Flask], Found],
    seconds: float = FAN_OUT_SECONDS,
) -> dict[str, Found]:
    """What ``work`` returns for each cell, at the same time; without those that are missing."""
    deadline = time.monotonic() + seconds
    found: dict[str, Found] = {}

    def do(cell: str, app: Flask) -> None:
        try:
            result = work(cell, app)
        except StateStoreError as error:
            logger.warning("cell %s does not answer: %s", cell, error)
            return
        except Exception:  # the other cells must not suffer from it
            logger.exception("cell %s cannot be asked", cell)
            return
        if time.monotonic() <= deadline:
            found[cell] = result

    threads = []
    for cell in cells:
        app = None if apps.is_away(cell) else apps.app_of(cell)
        if app is not None:
            thread = threading.Thread(target=do, args=(cell, app), name=f"ask {cell}", daemon=True)
            thread.start()
            threads.append(thread)
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    results = dict(found)
    for cell in cells:
        if cell not in results:
            apps.suspect(cell)
    return results


def ask(
    apps: ServedApps,
    cells: Collection[str],
    environ: WSGIEnvironment,
    changes: Callable[[str], Mapping[str, Any]] = lambda cell: {},
    *,
    body: bytes = b"",
    seconds: float = FAN_OUT_SECONDS,
) -> dict[str, CellAnswer]:
    """The answers of the cells to a request, of which ``changes`` differ from cell to cell."""
    request_id_of(environ)  # the same for all
    # Now, as each of them will note in it who calls.
    copies = {cell: copied(environ, changes(cell), body) for cell in cells}
    return each(apps, cells, lambda cell, app: whole(cell, app, copies[cell]), seconds)


def copied(
    environ: WSGIEnvironment, changes: Mapping[str, Any] | None = None, body: bytes = b""
) -> WSGIEnvironment:
    """The same request once more, for another application.

    Every cell finds out by itself who calls: a tenant's terms are those of its cell. Only an
    operator, whose key may be of one cell, is known already. A change to None is one to nothing.
    """
    fresh = {
        name: value for name, value in environ.items() if not str(name).startswith(OF_FRAMEWORK)
    }
    if getattr(fresh.get(CALLER), "tenant", None) is not None:
        del fresh[CALLER]
    fresh[PART_OF] = environ
    fresh["wsgi.input"] = CompleteBody(body)
    if body:
        fresh["CONTENT_LENGTH"] = str(len(body))
        fresh.pop("HTTP_TRANSFER_ENCODING", None)
    fresh.update(changes or {})
    return {name: value for name, value in fresh.items() if value is not None}


def query_of(environ: WSGIEnvironment) -> dict[str, str]:
    """The parameters of a request; the first of each, as everywhere."""
    query: dict[str, str] = {}
    for name, value in parse_qsl(environ.get("QUERY_STRING", ""), keep_blank_values=True):
        query.setdefault(name, value)
    return query


def with_query(environ: WSGIEnvironment, **parameters: str | None) -> dict[str, str]:
    """The change of a request by which some parameters have other values, or none."""
    query = {**query_of(environ), **parameters}
    kept = {name: value for name, value in query.items() if value is not None}
    return {"QUERY_STRING": urlencode(kept)}
