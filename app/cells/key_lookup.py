"""Finds the tenant of an API key: asks the directories of all cells, and remembers where it was.

What is remembered only says where to send a request: the application of that cell checks the key.
A key that no cell has is remembered for a moment, so that a flood of them is a few statements per
second; a cell that does not answer leaves it open, for as long a moment, and is not waited for once
the key was found.

Ids are random, and each cell makes its own: two tenants of different cells may have keys with the
same id. So a key is looked for by its id and its digest. A session has only the id: all cells are
asked, and one that stands for two keys is refused.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, Protocol

from app.errors import CellUnavailable, Unauthenticated
from app.tenants.directory import Caller, Directory
from app.tenants.keys import parse_authorization, same_digest
from models.store.errors import StateStoreError
from models.store.group_commit import GroupCommit

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIEnvironment
    from flask import Flask

    from app.policy.placement import Placement

logger = logging.getLogger(__name__)

#: How long a key that does not exist is not looked for again, and how many such are remembered.
UNKNOWN_SECONDS = 1.0
MOST_UNKNOWN = 10_000


class CellsToAsk(Protocol):
    """The cells that keys are looked for in."""

    def app_of(self, cell: str) -> Flask | None: ...
    def is_away(self, cell: str) -> bool: ...
    def cell_names(self) -> Sequence[str]: ...
    def suspect(self, cell: str) -> None: ...
    def placement_of(self, tenant: str) -> Placement | None: ...
    @property
    def home(self) -> Flask: ...


class FoundKey(NamedTuple):
    """Where a key was found, and whose it is."""

    #: Empty: the database of the process itself, which is of no cell.
    cell: str
    #: None: an operator's.
    tenant: str | None
    digest: bytes


class AskedKey(NamedTuple):
    """A key to look for."""

    id: str
    #: None: whichever has the id.
    digest: bytes | None


class Answers(NamedTuple):
    """What cells answered to a question."""

    found: tuple[FoundKey, ...]
    #: Those that did not answer, or could not.
    missing: frozenset[str]


class KeyQuestion:
    """A key that several cells are asked for, and what they have answered."""

    def __init__(self, key: AskedKey, cells: Iterable[str]) -> None:
        self.key = key
        self.asked = frozenset(cells)
        #: Nobody waits for an answer any more.
        self.over = False
        self._waiting, self._missing = set(self.asked), set(self.asked)
        self._found: list[FoundKey] = []
        self._changed = threading.Condition()

    def answer(self, cell: str, caller: Caller | None, *, known: bool = True) -> None:
        """A cell knows this caller by the id, or nobody; ``known``: whether it could say."""
        with self._changed:
            self._waiting.discard(cell)
            if known:
                self._missing.discard(cell)
            if caller is not None and fits(self.key, caller):
                tenant = None if caller.tenant is None else caller.tenant.name
                self._found.append(FoundKey(cell, tenant, caller.digest))
            self._changed.notify_all()

    def wait(self, seconds: float) -> Answers:
        """Where the key is. By its id alone it may be in several cells: all are waited for."""
        with self._changed:
            self._changed.wait_for(
                lambda: not self._waiting or (self.key.digest is not None and self._found), seconds
            )
            self.over = True
            return Answers(tuple(self._found), frozenset(self._missing))


class AskedCell:
    """The directory of a cell, which is asked for one group of keys after the other.

    So a cell that does not answer takes one connection of its application, however many ask.
    """

    def __init__(self, name: str, directory: Directory) -> None:
        self.name = name
        self.directory = directory
        self._group: GroupCommit[KeyQuestion, None] = GroupCommit(
            self._look_up, name=f"keys of {name or 'the home database'}"
        )
        self.ask = self._group.post
        self.close = partial(self._group.close, 0.0)

    def _look_up(self, questions: Sequence[KeyQuestion]) -> list[None]:
        asked = [question for question in questions if not question.over]
        try:
            callers = self.directory.look_up([one.key.id for one in asked]) if asked else []
            for one, caller in zip(asked, callers, strict=True):
                one.answer(self.name, caller)
        except StateStoreError as error:
            logger.debug("cell %s: %s", self.name, error)
            for one in asked:
                one.answer(self.name, None, known=False)
        return [None] * len(questions)


class KeyLookup:
    """The keys that one process has found. Callers of all cells, for whoever signs in to pages."""

    def __init__(
        self,
        cells: CellsToAsk,
        seconds: float,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``seconds``: how long a question may take."""
        self._cells = cells
        self._seconds = seconds
        self._clock = clock
        self._known: dict[AskedKey, FoundKey] = {}
        #: Keys that do not exist, and until when that is assumed; oldest first.
        self._unknown: dict[AskedKey, float] = {}
        #: Keys that only a cell that does not answer may know.
        self._unresolved: dict[AskedKey, float] = {}
        #: By name.
        self._asked: dict[str, AskedCell] = {}
        self._changing = threading.Lock()

    def find(self, authorization: str) -> FoundKey | None:
        """Whose key is in this header; None: no cell knows it.

        CellUnavailable if a cell that might know it does not answer.
        """
        sent = parse_authorization(authorization)
        if sent is None:
            return None
        return self._find(AskedKey(sent.id, sent.digest))

    def has_left(self, app: Flask, environ: WSGIEnvironment) -> bool:
        """Whether the key of a request, which was found before, is not in this cell."""
        sent = parse_authorization(environ.get("HTTP_AUTHORIZATION", ""))
        if sent is None or AskedKey(*sent) not in self._known:
            return False
        directory: Directory = app.extensions["fairline"].tenants.directory
        [caller] = directory.look_up([sent.id])
        return caller is None or not fits(AskedKey(*sent), caller)

    # What follows is for pages: see :class:`app.tenants.directory.Callers`.

    def caller(self, authorization: str) -> Caller:
        """The caller whose key is in this header."""
        known = self.find(authorization)
        return self._directory_of(known).caller(authorization)

    def of_id(self, key: str) -> Caller:
        """The caller with the key of this id, for whom a session vouches."""
        return self._directory_of(self._find(AskedKey(key, None))).of_id(key)

    def keyless(self, name: str) -> Caller | None:
        """A caller without a key that acts as the tenant of that name."""
        return self._directory_of(FoundKey("", name, b"")).keyless(name)

    def _find(self, asked: AskedKey) -> FoundKey | None:
        known = self._known.get(asked)
        if known is not None or self._clock() < self._unknown.get(asked, -math.inf):
            return known
        if self._clock() < self._unresolved.get(asked, -math.inf):
            raise CellUnavailable
        cells = self._cells_to_ask()
        question = KeyQuestion(asked, (cell.name for cell in cells))
        for cell in cells:
            cell.ask(question)
        found, missing = question.wait(self._seconds)
        if found and asked.digest is not None:
            self._known[asked] = found[0]
            return found[0]
        for name in missing - {""}:
            self._cells.suspect(name)
        complete = not missing and question.asked >= set(self._cells.cell_names())
        if not found:
            self._remember(self._unknown if complete else self._unresolved, asked)
            if not complete:
                raise CellUnavailable
            return None
        if len({one.digest for one in found}) > 1:
            raise Unauthenticated("Two API keys have this id. Send the key itself.")
        if complete:
            self._known[asked] = found[0]
        return found[0]

    def _directory_of(self, known: FoundKey | None) -> Directory:
        """The directory of the cell that a key's tenant lives in."""
        if known is None:
            raise Unauthenticated("This API key is not known.")
        app = self._cells.home  # where operators of all cells have their keys
        if known.tenant is not None:
            placement = self._cells.placement_of(known.tenant)
            cell = known.cell if placement is None else placement.admitting[0]
            app = self._cells.app_of(cell) or app
        directory: Directory = app.extensions["fairline"].tenants.directory
        return directory

    def _cells_to_ask(self) -> list[AskedCell]:
        """The cells that are not away, and the process's own database."""
        apps = {name: self._cells.app_of(name) for name in self._cells.cell_names()}
        if self._cells.home not in apps.values():
            apps[""] = self._cells.home
        with self._changing:
            for name in [name for name in self._asked if apps.get(name) is None]:
                self._asked.pop(name).close()
            for name, app in apps.items():
                if app is None:
                    continue
                directory = app.extensions["fairline"].tenants.directory
                known = self._asked.get(name)
                if known is None or known.directory is not directory:
                    if known is not None:
                        known.close()
                    self._asked[name] = AskedCell(name, directory)
            return [cell for name, cell in self._asked.items() if not self._cells.is_away(name)]

    def _remember(self, kept: dict[AskedKey, float], key: AskedKey) -> None:
        with self._changing:
            kept.pop(key, None)
            kept[key] = self._clock() + UNKNOWN_SECONDS
            while len(kept) > MOST_UNKNOWN:
                del kept[next(iter(kept))]


def fits(asked: AskedKey, caller: Caller) -> bool:
    """Whether this is the key that is looked for, and not another one with its id."""
    return asked.digest is None or same_digest(caller.digest, asked.digest)
