"""Builds an API process that serves all cells: one application for each, and the router."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from flask import Flask

from app.api.routes.overview import CELLS
from app.api.services import Services
from app.celery import celery_at
from app.cells.copied_callers import CopiedCallers
from app.cells.overview import AllCells
from app.cells.region_intake import RegionIntake
from app.cells.registry_cache import RegistryCache
from app.cells.router import CellRouter
from app.cells.served_cells import ServedCells
from app.cells.tenant_pages import merge_tenant_page
from app.config import Settings
from app.server.factory import begin_app, build_app, end_app
from models.cells.registry import CellRow, open_registry, read_identity
from models.database_url import normal_url, standby_url
from models.presence import process_name
from models.store.errors import StateStoreError
from models.store.roles import DatabaseRole


def build_router(settings: Settings) -> CellRouter:
    """The application of an API process with cells."""
    registry = open_registry(settings, process=process_name("api"), role=DatabaseRole.API)
    router = CellRouter(settings, RegistryCache(registry))
    home = build_app(settings, callers=router.keys)
    services: Services = home.extensions["fairline"]
    all_cells = AllCells(router, router.cache)
    home.extensions[CELLS] = all_cells
    merge_tenant_page(home, router)

    def build(row: CellRow) -> Flask:
        own = settings_of(settings, row)
        app = build_app(
            own,
            celery=celery_at(own),
            cell=row.number,
            callers=router.keys,
            sessions=services.sessions,
        )
        app.extensions[CELLS] = all_cells
        merge_tenant_page(app, router)
        return app

    def home_name(cells: Mapping[str, CellRow]) -> str | None:
        row = home_of(settings, services, cells)
        if row is None:
            return None
        home.extensions["fairline"] = replace(services, cell=row.number)
        return row.name

    def own_cells() -> Sequence[Sequence[str]]:
        rows = (router.served.row_of(name) for name in router.cell_names())
        return host_groups(settings.region, [row for row in rows if row is not None])

    router.serve(ServedCells(home, home_name, build, begin_app, end_cell))
    router.copies = CopiedCallers(registry, settings.admission_seconds)
    if settings.region:
        router.region = RegionIntake(settings, router, own_cells, router.copies)
    return router


def host_groups(region: str, rows: Sequence[CellRow]) -> Sequence[Sequence[str]]:
    """The cells of a region that may keep submissions for others, in two groups.

    Those that are being drained, so that they can be removed, are the second: they keep some only
    while none of the first responds.
    """
    own = [row for row in rows if row.region == region]
    drained = [row for row in own if row.state == "draining"]
    return [row.name for row in own if row not in drained], [row.name for row in drained]


def settings_of(settings: Settings, row: CellRow) -> Settings:
    """The process's settings with the addresses of a cell."""
    read = row.read_database_url
    return settings.model_copy(
        update={
            "database_url": normal_url(row.database_url),
            "broker_url": row.broker_url,
            "read_database_url": standby_url(read) if read else "",
        }
    )


def home_of(settings: Settings, services: Services, cells: Mapping[str, CellRow]) -> CellRow | None:
    """The cell whose database is the process's own, by its address or by what it says itself."""
    for row in cells.values():
        with suppress(ValueError):
            if normal_url(row.database_url) == settings.database_url:
                return row
    try:
        _, name = read_identity(services.engine)
    except StateStoreError:
        return None
    return cells.get(name)


def end_cell(app: Flask, stop: threading.Event) -> None:
    """Stop the threads of an application, and close its connections."""
    end_app(app, stop)
    app.extensions["fairline"].engine.dispose()
