"""Engines of all cells, for schedulers and commands: opened when they are first asked for."""

from __future__ import annotations

import threading

from sqlalchemy import Engine

from models.cells.registry import CellRow, read_cells
from models.settings import DatabaseSettings
from models.store.roles import DatabaseRole
from models.store.session import open_engine

#: Connections that are kept to each cell.
CONNECTIONS = 2


class UnknownCell(Exception):
    """The registry has no cell of this name."""


class CellDatabases:
    """The engine of each cell of a registry. Safe to use from several threads."""

    def __init__(
        self,
        registry: Engine,
        settings: DatabaseSettings,
        *,
        process: str = "fairline",
        role: DatabaseRole | None = None,
    ) -> None:
        self.registry = registry
        self._settings = settings
        self._process = process
        self._role = role
        self._opened: dict[str, tuple[CellRow, Engine]] = {}
        self._opening = threading.Lock()

    def cells(self) -> dict[str, CellRow]:
        """All cells by name, as the registry has them now."""
        return {cell.name: cell for cell in read_cells(self.registry)}

    def cell(self, name: str) -> CellRow:
        """How a cell is reached."""
        try:
            return self.cells()[name]
        except KeyError:
            raise UnknownCell(f"there is no cell {name!r}") from None

    def engine(self, name: str) -> Engine:
        """The engine of a cell, as it was reached when it was first asked for: see `refresh`."""
        opened = self._opened.get(name)
        if opened is not None:
            return opened[1]
        cell = self.cell(name)
        with self._opening:
            if name not in self._opened:
                self._opened[name] = cell, self._open(cell)
            return self._opened[name][1]

    def refresh(self) -> None:
        """Close the engines of cells that are reached in another way now, or are gone."""
        cells = self.cells()
        with self._opening:
            for name, (known, engine) in list(self._opened.items()):
                current = cells.get(name)
                if current is None or current.database_url != known.database_url:
                    del self._opened[name]
                    engine.dispose()

    def close(self) -> None:
        """Close all engines; the registry's is the caller's."""
        with self._opening:
            for _, engine in self._opened.values():
                engine.dispose()
            self._opened.clear()

    def _open(self, cell: CellRow) -> Engine:
        own = self._settings.model_copy(
            update={"database_url": cell.database_url, "db_pool_size": CONNECTIONS}
        )
        return open_engine(own, process=self._process, role=self._role)
