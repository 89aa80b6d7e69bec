"""Cells that are closed to a tenant or opened, as the steps of a move do it."""

from __future__ import annotations

from sqlalchemy import Engine

from models.cells.away import set_away
from models.store.session import connect


def close_tenant(engine: Engine, tenant_id: int, version: int) -> bool:
    """Let a cell admit and dispatch nothing for a tenant; whether it knew no later placement."""
    with connect(engine) as connection:
        return set_away(connection, tenant_id, version, away=True)


def open_tenant(engine: Engine, tenant_id: int, version: int) -> bool:
    """Let a cell admit for a tenant; whether it knew no later placement."""
    with connect(engine) as connection:
        return set_away(connection, tenant_id, version, away=False)
