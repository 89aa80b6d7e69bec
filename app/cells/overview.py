"""Reads region, state, tenants, jobs and rates of every cell at once, for operators."""

from __future__ import annotations

from typing import TYPE_CHECKING

from app.api.routes.overview import CellFigures, CellStanding, read_figures
from app.api.services import Services
from app.cells.fan_out import ServedApps, each
from models.store.roles import every_tenant
from models.store.session import connect

if TYPE_CHECKING:
    from flask import Flask

    from app.cells.registry_cache import RegistryCache


class AllCells:
    """The cells of the registry, asked at the same time."""

    def __init__(self, apps: ServedApps, cache: RegistryCache) -> None:
        self._apps = apps
        self._cache = cache

    def read(self) -> list[CellStanding]:
        """All cells, by number."""
        rows = sorted(self._cache.cells.values(), key=lambda row: row.number)
        figures = each(self._apps, [row.name for row in rows], figures_of)
        return [
            CellStanding(row.name, row.number, row.region, row.state, figures.get(row.name))
            for row in rows
        ]

    def name_of(self, number: int) -> str:
        """The name of the cell of this number; empty: there is none."""
        return self._apps.cell_numbered(number) or ""


def figures_of(_: str, app: Flask) -> CellFigures:
    """What one cell has and does."""
    services: Services = app.extensions["fairline"]
    with every_tenant(), connect(services.engine) as connection:
        return read_figures(connection)
