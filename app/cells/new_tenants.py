"""New tenants: each is placed in a cell, in the registry, before it is created there.

Only one whose name and terms are valid: what is placed is not taken back, as somebody else may be
about to create a tenant of that name there.

Dying in between leaves a placement without a tenant: creating it again uses that, or another cell
if one is asked for, once nobody else can be about to create it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import TYPE_CHECKING

from sqlalchemy import Engine
from werkzeug.wrappers import Request

from app.api.auth.access import Access, authorize
from app.api.http.body import BodyLimits, read_body, read_document, validate_body
from app.api.schemas.requests import NewTenant
from app.api.services import Services
from app.cells.fan_out import begin, copied, query_of
from app.console.tenants.terms_form import parse_tenant
from app.errors import CellUnavailable, Conflict, FairlineError
from app.policy.placement import Placement
from app.tenants.changes import new_tenant
from app.tenants.scopes import Scope
from models.cells.placements import (
    PlacementRow,
    change_placement,
    least_used_cells,
    place_tenant,
    read_placement,
)
from models.cells.registry import read_cells
from models.cells.tenant_rows import find_tenant
from models.store.clock import DATABASE_CLOCK
from models.store.session import transaction

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIEnvironment

    from app.cells.router import CellRouter

#: Where a tenant is created, and who may.
CREATES = {"/operator/tenants": Access.OPERATOR, "/console/tenants": Access.CONSOLE}
TO_CREATE = frozenset({Scope.OPERATE})
#: After a placement is made its tenant may still be created for so long.
BEING_CREATED = timedelta(minutes=1)


def place(
    registry: Engine,
    engine_of: Callable[[str], Engine],
    name: str,
    wanted: str | None = None,
    region: str = "",
) -> str:
    """The cell that a new tenant is to be created in; Conflict if there is such a tenant."""
    row = read_placement(registry, name)
    if row is None:
        cell = chosen_cell(registry, wanted, region)
        with transaction(registry) as connection:
            row = place_tenant(connection, name, {cell: 1.0})
        if dict(row.weights) == {cell: 1.0}:
            return cell
    if wanted is None or wanted in row.weights:
        # Whether the tenant is there its database decides.
        return wanted or Placement(row.version, row.weights).admitting[0]
    cell = chosen_cell(registry, wanted, region)
    for known in row.weights:
        if find_tenant(engine_of(known), name) is not None:
            raise exists(row)
    if DATABASE_CLOCK.now() - row.changed_at < BEING_CREATED:
        raise Conflict(f"This tenant is being created in {', '.join(row.weights)}.")
    with transaction(registry) as connection:
        if not change_placement(connection, name, row.version, {cell: 1.0}):
            raise Conflict("Somebody else is creating this tenant.")
    return cell


def chosen_cell(registry: Engine, wanted: str | None, region: str) -> str:
    """The cell that is asked for, else the open one of the region with the fewest tenants."""
    if wanted is None:
        found = least_used_cells(registry, region) or least_used_cells(registry, "")
        if not found:
            raise Conflict("There is no open cell.")
        return next(iter(found))
    states = {cell.name: cell.state for cell in read_cells(registry)}
    if wanted not in states:
        raise Conflict(f"There is no cell {wanted[:40]!r}.")
    if states[wanted] != "open":
        raise Conflict(f"The cell {wanted!r} is being drained: it takes no tenants.")
    return wanted


def exists(row: PlacementRow) -> Conflict:
    """The error of a tenant that is to be created in another cell than it is in."""
    return Conflict(f"There is a tenant {row.tenant!r} already, in {', '.join(row.weights)}.")


def creates_tenant(environ: WSGIEnvironment) -> bool:
    """Whether this request is to create a tenant."""
    return environ["REQUEST_METHOD"] == "POST" and environ["PATH_INFO"] in CREATES


def create(
    apps: CellRouter,
    registry: Engine,
    environ: WSGIEnvironment,
    start_response: StartResponse,
    wanted: str | None,
) -> Iterable[bytes]:
    """Place the tenant that an operator creates, and have it created in its cell.

    ``wanted``: the cell that was named.
    """
    home: Services = apps.home.extensions["fairline"]
    authorize(home, environ, CREATES[environ["PATH_INFO"]], TO_CREATE)
    body = read_body(environ, home.body_limits)

    def engine_of(cell: str) -> Engine:
        app = None if apps.is_away(cell) else apps.app_of(cell)
        if app is None:
            raise CellUnavailable
        engine: Engine = app.extensions["fairline"].engine
        return engine

    name = name_in(copied(environ, body=body), home.body_limits)
    # Of a request that is not valid any cell says what is wrong.
    cell = wanted
    if name:
        cell = place(registry, engine_of, name, wanted, apps.settings.region)
    app = apps.app_of(cell if cell is not None else apps.cell_names()[0])
    if app is None or (cell is not None and apps.is_away(cell)):
        raise CellUnavailable
    return begin(app, copied(environ, body=body))(environ, start_response)


def name_in(environ: WSGIEnvironment, limits: BodyLimits) -> str | None:
    """The name of the tenant in a JSON document or a form; None if it cannot be created."""
    try:
        if environ["PATH_INFO"].startswith("/console"):
            asked = parse_tenant(Request(environ).form.to_dict())
        elif query_of(environ):  # the cell was taken out of it; there are no other parameters
            return None
        else:
            asked = validate_body(read_document(environ, limits), NewTenant)
        return new_tenant(asked.name, asked.change()).name
    except FairlineError:
        return None
