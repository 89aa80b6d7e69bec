"""The cells that a process serves: one application for each, made and removed while it runs."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sqlalchemy import Engine, create_engine

from models.cells.registry import CellRow
from models.store.errors import StateStoreUnavailable
from models.store.session import fetch

if TYPE_CHECKING:
    from flask import Flask

logger = logging.getLogger(__name__)

#: How long a cell may take to write what still waits.
END_SECONDS = 4.0
#: A process whose database is of no cell asks so seldom whether it is by now.
HOME_SECONDS = 30.0
#: A server that only reads does not admit.
PROBE = "SELECT current_setting('transaction_read_only')::bool AS reads_only"


@dataclass(frozen=True, slots=True)
class ServedCell:
    """A cell, and the application that answers for it."""

    row: CellRow
    app: Flask
    #: Set when its threads are to end.
    stop: threading.Event = field(default_factory=threading.Event)


class ServedCells:
    """The applications of all cells. The home cell's is that of the process's own settings."""

    def __init__(
        self,
        home: Flask,
        home_name: Callable[[Mapping[str, CellRow]], str | None],
        build: Callable[[CellRow], Flask],
        begin: Callable[[Flask, threading.Event], None],
        end: Callable[[Flask, threading.Event], None],
    ) -> None:
        """``home_name``: which of the cells is the process's own; None: that is not known, or it
        is none of them."""
        self.home = home
        self._home_name = home_name
        self._build, self._begin, self._end = build, begin, end
        self._cells: dict[str, ServedCell] = {}
        self._numbers: dict[int, str] = {}
        self._serving = False
        self._changing = threading.Lock()
        #: Ends with the process.
        self._home_stop = threading.Event()
        #: The cells of which the home cell was none, and until when that is assumed.
        self._asked: Mapping[str, CellRow] = {}
        self._ask_at = 0.0
        #: The name of the home cell, once it is known.
        self.home_cell: str | None = None

    def app_of(self, cell: str) -> Flask | None:
        """The application of a cell; None if there is no such cell, or it cannot be served."""
        served = self._cells.get(cell)
        return None if served is None else served.app

    def row_of(self, cell: str) -> CellRow | None:
        """A cell as the registry knows it."""
        served = self._cells.get(cell)
        return None if served is None else served.row

    def names(self) -> list[str]:
        """All cells, by number."""
        return [self._numbers[number] for number in sorted(self._numbers)]

    def numbered(self, number: int) -> str | None:
        """The name of the cell of this number."""
        return self._numbers.get(number)

    def apps(self) -> list[Flask]:
        """All applications, that of the home cell first."""
        others = [served.app for served in self._cells.values() if served.app is not self.home]
        return [self.home, *others]

    def update(self, cells: Mapping[str, CellRow]) -> None:
        """Serve these cells: begin with new ones, end with others."""
        with self._changing:
            if self.home_cell is None and (
                cells != self._asked or time.monotonic() >= self._ask_at
            ):
                self._asked, self._ask_at = dict(cells), time.monotonic() + HOME_SECONDS
                self.home_cell = self._home_name(cells)
            for name, row in cells.items():
                known = self._cells.get(name)
                # Its name may become known later: its database was away when it was asked first.
                late = name == self.home_cell and known is not None and known.app is not self.home
                if known is None or late or reached_otherwise(known.row, row):
                    self._add(name, row)
                elif known.row != row:
                    self._cells[name] = ServedCell(row, known.app, known.stop)
                if known is not None and known.app is not self._cells[name].app:
                    self._remove(known)
            for name in self._cells.keys() - cells.keys():
                self._remove(self._cells.pop(name))
            self._numbers = {served.row.number: name for name, served in self._cells.items()}

    def begin_serving(self) -> None:
        """Start the threads of all applications."""
        with self._changing:
            self._serving = True
            self._begin(self.home, self._home_stop)
            for served in self._cells.values():
                if served.app is not self.home:
                    self._begin(served.app, served.stop)

    def end_serving(self) -> None:
        """Stop them, at the same time: each may have to write what still waits."""
        with self._changing:
            self._serving = False
            cells = [served for served in self._cells.values() if served.app is not self.home]
        threads = [self._end_in_thread(served) for served in cells]
        self._end(self.home, self._home_stop)
        for thread in threads:
            thread.join(END_SECONDS)

    def probe(self, cell: str) -> None:
        """Ask the database of a cell; raises ``StateStoreError`` if it does not take writes."""
        app = self.app_of(cell)
        if app is not None:
            engine = beside(app.extensions["fairline"].engine)
            try:
                [row] = fetch(engine, PROBE)
            finally:
                engine.dispose()
            if row.reads_only:
                raise StateStoreUnavailable("the server only reads")

    def _add(self, name: str, row: CellRow) -> None:
        if name == self.home_cell:
            self._cells[name] = ServedCell(row, self.home, self._home_stop)
            return
        try:
            served = ServedCell(row, self._build(row))
        except ValueError as error:  # one cell's wrong URL must not end the service of others
            logger.error("cell %s cannot be served: %s", name, error)
            return
        logger.info("cell %s is served", name)
        self._cells[name] = served
        if self._serving:
            self._begin(served.app, served.stop)

    def _remove(self, served: ServedCell) -> None:
        if served.app is not self.home and self._serving:
            logger.info("cell %s is no longer served as it was", served.row.name)
            self._end_in_thread(served)

    def _end_in_thread(self, served: ServedCell) -> threading.Thread:
        work = (served.app, served.stop)
        thread = threading.Thread(target=self._end, args=work, name="end cell", daemon=True)
        thread.start()
        return thread


def beside(engine: Engine) -> Engine:
    """An engine for the same database with connections of its own: a pool that is used up says
    nothing about the database."""
    return create_engine(
        engine.url, pool=engine.pool.recreate(), isolation_level="AUTOCOMMIT", hide_parameters=True
    )


def reached_otherwise(known: CellRow, row: CellRow) -> bool:
    """Whether a cell's application has to be made anew."""
    return (
        known.number,
        known.database_url,
        known.broker_url,
        known.read_database_url,
    ) != (row.number, row.database_url, row.broker_url, row.read_database_url)
