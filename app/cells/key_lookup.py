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
#: How long other keys wait for a cell that does not answer.
GROUP_SECONDS = 0.05


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


class KeyQuestion:
    """Some keys that all cells are asked for, and what they have answered."""

    def __init__(
        self,
        keys: Sequence[AskedKey],
        cells: Iterable[str],
        deadline: float,
        clock: Callable[[], float],
    ) -> None:
        """``deadline``: who has not answered by then is not waited for."""
        self.ids = [key.id for key in keys]
        self.asked = frozenset(cells)
        #: Cells that have not answered, or could not.
        self.missing = set(self.asked)
        self._deadline, self._clock = deadline, clock
        self._waiting = set(self.asked)
        self._keys = keys
        self._found: dict[AskedKey, list[FoundKey]] = {key: [] for key in keys}
        self._changed = threading.Condition()

    def answer(self, cell: str, callers: Sequence[Caller | None] | None) -> None:
        """A cell knows these callers by the ids; None: it does not answer."""
        with self._changed:
            self._waiting.discard(cell)
            if callers is not None:
                self.missing.discard(cell)
                for key, caller in zip(self._keys, callers, strict=True):
                    if caller is not None and fits(key, caller):
                        tenant = None if caller.tenant is None else caller.tenant.name
                        self._found[key].append(FoundKey(cell, tenant, caller.digest))
            self._changed.notify_all()

    def wait_for_all(self, seconds: float) -> None:
        """Return when all cells have answered, or some of them not in so many seconds."""
        with self._changed:
            self._changed.wait_for(lambda: not self._waiting, seconds)

    def wait_for(self, key: AskedKey) -> Sequence[FoundKey]:
        """Where a key is. By its id alone it may be in several cells: all are waited for."""
        with self._changed:
            self._changed.wait_for(
                lambda: not self._waiting or (key.digest is not None and self._found[key]),
                max(0.0, self._deadline - self._clock()),
            )
            return tuple(self._found[key])


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
        self._questions: GroupCommit[AskedKey, KeyQuestion] = GroupCommit(
            self._ask, name="keys of cells"
        )

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
        question = self._questions.submit(asked, self._seconds + 0.2)
        found = question.wait_for(asked)
        if found and asked.digest is not None:
            self._known[asked] = found[0]
            return found[0]
        for cell in question.missing - {""}:
            self._cells.suspect(cell)
        complete = not question.missing and question.asked >= set(self._cells.cell_names())
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

    def _ask(self, keys: Sequence[AskedKey]) -> list[KeyQuestion]:
        """Ask all cells at once. Not longer than a moment: other keys wait meanwhile."""
        directories = self._directories()
        question = KeyQuestion(keys, directories, self._clock() + self._seconds, self._clock)
        for cell, directory in directories.items():
            work = (cell, directory, question)
            threading.Thread(target=look_up, args=work, name="find keys", daemon=True).start()
        question.wait_for_all(GROUP_SECONDS)
        return [question] * len(keys)

    def _directories(self) -> dict[str, Directory]:
        """The directories of the cells that are not away, and of the process's own database."""
        names = [name for name in self._cells.cell_names() if not self._cells.is_away(name)]
        apps = {name: app for name in names if (app := self._cells.app_of(name)) is not None}
        if self._cells.home not in apps.values():
            apps[""] = self._cells.home
        return {name: app.extensions["fairline"].tenants.directory for name, app in apps.items()}

    def _remember(self, kept: dict[AskedKey, float], key: AskedKey) -> None:
        kept.pop(key, None)
        kept[key] = self._clock() + UNKNOWN_SECONDS
        while len(kept) > MOST_UNKNOWN:
            del kept[next(iter(kept))]


def fits(asked: AskedKey, caller: Caller) -> bool:
    """Whether this is the key that is looked for, and not another one with its id."""
    return asked.digest is None or same_digest(caller.digest, asked.digest)


def look_up(cell: str, directory: Directory, question: KeyQuestion) -> None:
    """Ask one cell."""
    try:
        question.answer(cell, directory.look_up(question.ids))
    except StateStoreError as error:
        logger.debug("cell %s: %s", cell, error)
        question.answer(cell, None)
