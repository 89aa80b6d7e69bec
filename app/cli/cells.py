"""``flask --app app cells …``: the cells of an installation, and which tenants live where."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING

import click
from sqlalchemy import Engine, make_url

from app.cli.errors import FairlineGroup
from app.cli.tenants import database, show_table, tenants
from app.tenants.changes import new_tenant
from app.tenants.terms import Change
from models.audit import Act, record_first
from models.cells.databases import CellDatabases
from models.cells.moves import MoveRefused, MoveStep, read_moves, request_move
from models.cells.placements import (
    least_used_cells,
    place_unplaced,
    read_named_placements,
    read_placements,
    tenants_of_cells,
)
from models.cells.registry import (
    CellRow,
    OtherCell,
    add_cell,
    identify,
    open_registry,
    read_cells,
    read_identity,
    set_cell_state,
)
from models.database_url import normal_url, standby_url
from models.store.errors import StateStoreError
from models.store.roles import DatabaseRole
from models.store.session import fetch, open_engine

if TYPE_CHECKING:
    from app.config import Settings

cells = FairlineGroup("cells", help="Manage cells: whole Fairlines that tenants are divided over.")

READ_TENANTS = "SELECT name FROM tenants WHERE deleted_at IS NULL ORDER BY name"
#: Tenant 0 is all of them.
READ_JOBS = """
    SELECT coalesce(sum(scheduled + queued), 0)::bigint AS waiting,
           coalesce(sum(dispatched + running), 0)::bigint AS running
    FROM job_counts WHERE tenant_id = 0
"""


def settings_with_registry() -> Settings:
    """The settings; exits if there is no registry."""
    from app.config import settings

    if not settings().registry_url:
        raise click.ClickException("There are no cells: FAIRLINE_REGISTRY_URL is not set.")
    return settings()


@contextmanager
def all_cells() -> Iterator[CellDatabases]:
    """The registry and the databases of the cells, for one command."""
    settings = settings_with_registry()
    registry = open_registry(settings, process="cli", role=DatabaseRole.API)
    databases = CellDatabases(registry, settings, process="cli", role=DatabaseRole.API)
    try:
        yield databases
    finally:
        databases.close()
        registry.dispose()


@contextmanager
def new_home(name: str, cell: str | None, change: Change | None = None) -> Iterator[Engine]:
    """The database that a new tenant is to be created in; without cells, the only one.

    A tenant that cannot be created is placed nowhere: ValidationFailed says why.
    """
    from app.config import settings

    if not settings().registry_url:
        if cell is not None:
            settings_with_registry()
        with nullcontext(database()) as engine:
            yield engine
        return
    from app.cells.new_tenants import place

    new_tenant(name, change)
    with all_cells() as found:
        chosen = place(found.registry, found.engine, name, cell, settings().region)
        yield found.engine(chosen)


@contextmanager
def cells_of(name: str) -> Iterator[Engine]:
    """The database of a tenant; what is changed there is copied to its other cells, if any."""
    from app.config import settings

    if not settings().registry_url:
        yield database()
        return
    from app.cells.tenant_changes import in_all_cells

    with all_cells() as found, in_all_cells(found, name) as engine:
        yield engine


@contextmanager
def every_database() -> Iterator[list[Engine]]:
    """The databases of all cells; without cells, the only one."""
    from app.config import settings

    if not settings().registry_url:
        yield [database()]
        return
    with all_cells() as found:
        yield [found.engine(cell) for cell in found.cells()]


@cells.command("add", acts=(Act.CELL_CHANGE,))
@click.argument("name")
@click.option("--database-url", required=True, help="Its database, which has been migrated.")
@click.option("--broker-url", required=True, help="Its broker.")
@click.option("--read-database-url", default="", help="Standbys that lists are read from.")
@click.option("--region", default="", help="Where it is.")
@click.option("--number", type=click.IntRange(1, 4095), help="A free one, unless it is given.")
def add(
    name: str,
    database_url: str,
    broker_url: str,
    read_database_url: str,
    region: str,
    number: int | None,
) -> None:
    """Add a cell, or change how it is reached.

    Its tenants are placed in it. The first one may be what is there already; ids of tenants of
    later ones begin at a number of their own.
    """
    cell = checked(CellRow(name, 0, region, database_url, broker_url, read_database_url, "open"))
    own = settings_with_registry().model_copy(update={"database_url": cell.database_url})
    engine = open_engine(own, process="cli", role=DatabaseRole.API)
    with all_cells() as found:
        known = {row.name: row for row in read_cells(found.registry)}
        others = [row for row in known.values() if row.name != name]
        # A number that was given before stays: ids of jobs have it.
        has, _ = read_identity(engine)
        if owner := next((row.name for row in others if row.number == has), None):
            raise click.ClickException(f"This is the database of {owner}, which is a cell already.")
        before = known[name].number if name in known else has
        try:
            cell = add_cell(
                found.registry,
                cell,
                number=number or before,
                had=before,
                write_number=lambda added: identify(engine, added, first=not others),
            )
        except OtherCell as other:
            raise click.ClickException(f"{other}.") from other
        after = {**masked(cell), "number": cell.number, "region": cell.region}
        record_first(found.registry, Act.CELL_CHANGE, name, after=after)
        placed = place_all(found.registry, engine, cell)
    engine.dispose()
    click.echo(f"cell {name}: number {cell.number}, {placed} tenants")


def checked(cell: CellRow) -> CellRow:
    """The cell, if its name and addresses are valid."""
    from app.broker_url import node_urls
    from app.policy.placement import CELL_NAME

    if not CELL_NAME.fullmatch(cell.name):
        raise click.UsageError("A name has up to 31 lower-case letters, digits and hyphens.")
    try:
        node_urls(cell.broker_url)
        read = cell.read_database_url
        return cell._replace(
            database_url=normal_url(cell.database_url),
            read_database_url=standby_url(read) if read else "",
        )
    except ValueError as error:
        raise click.UsageError(f"A URL {error}.") from error


def place_all(registry: Engine, engine: Engine, cell: CellRow) -> int:
    """Place the tenants that a cell has, unless others of their names are placed elsewhere."""
    names = [row.name for row in fetch(engine, READ_TENANTS)]
    placements = place_unplaced(registry, names, cell.name)
    elsewhere = [row for row in placements if cell.name not in row.weights]
    for row in elsewhere:
        where = ", ".join(row.weights)
        click.echo(f"not placed, as there is another in {where}: {row.tenant}", err=True)
    return len(placements) - len(elsewhere)


def masked(cell: CellRow) -> dict[str, str]:
    """The addresses of a cell, without passwords."""
    scheme, _, rest = cell.broker_url.partition("://")
    return {
        "database": make_url(cell.database_url).render_as_string(hide_password=True),
        "broker": f"{scheme}://{rest.rpartition('@')[2]}",
    }


@cells.command("list", acts=())
def show_cells() -> None:
    """List all cells with their tenants and jobs."""
    with all_cells() as found:
        rows = read_cells(found.registry)
        of_cells = tenants_of_cells(found.registry)
        with ThreadPoolExecutor(max(1, len(rows))) as pool:
            jobs = list(pool.map(lambda row: jobs_in(found, row.name), rows))
    table = []
    for row, counts in zip(rows, jobs, strict=True):
        used = (of_cells.get(row.name, 0), *counts, masked(row)["database"])
        table.append((row.name, row.number, row.region, row.state, *used))
    titles = ("CELL", "NUMBER", "REGION", "STATE", "TENANTS", "WAITING", "RUNNING", "DATABASE")
    show_table(titles, table)


def jobs_in(found: CellDatabases, cell: str) -> tuple[object, object]:
    """Jobs that wait and that run in a cell."""
    try:
        [row] = fetch(found.engine(cell), READ_JOBS)
    except StateStoreError:
        return "away", "away"
    return row.waiting, row.running


@cells.command("drain", acts=(Act.CELL_CHANGE, Act.TENANT_MOVE))
@click.argument("name")
@click.option("--undo", is_flag=True, help="Take new tenants again.")
@click.option("--move", is_flag=True, help="Also move its tenants to other cells.")
def drain(name: str, undo: bool, move: bool) -> None:
    """Place no new tenants in a cell."""
    if undo and move:
        raise click.UsageError("Give either --undo or --move.")
    state = "open" if undo else "draining"
    with all_cells() as found:
        if not set_cell_state(found.registry, name, state):
            raise click.ClickException(f"There is no cell {name!r}.")
        record_first(found.registry, Act.CELL_CHANGE, name, after={"state": state})
        click.echo(f"cell {name}: {state}")
        if move:
            move_all(found.registry, name)


def move_all(registry: Engine, cell: str) -> None:
    """Have all tenants of a cell moved, each to the one that will have the fewest then."""
    moves = [one for one in read_moves(registry) if one.step is not MoveStep.UNDO]
    coming = {one.tenant for one in moves if cell in one.admitting}
    region = next(row.region for row in read_cells(registry) if row.name == cell)
    tenants_of = least_used_cells(registry, region)
    for placement in read_placements(registry):
        if placement.weights.get(cell, 0.0) <= 0:
            if placement.tenant in coming:
                cancel = f"tenants move {placement.tenant} --cancel"
                message = f"is on its way to {cell}: {cancel}, or drain again when it is there."
                click.echo(f"{placement.tenant}: {message}", err=True)
            continue
        rest = {name: weight for name, weight in placement.weights.items() if weight > 0}
        weight = rest.pop(cell)
        if not rest and not tenants_of:
            raise click.ClickException("There is no other open cell in its region.")
        wanted = rest or {min(tenants_of, key=tenants_of.__getitem__): weight}
        try:
            request_move(registry, placement.tenant, wanted)
        except MoveRefused as refused:
            click.echo(f"{placement.tenant}: {refused}", err=True)
        else:
            click.echo(f"{placement.tenant}: to {', '.join(wanted)}")
            if not rest:
                tenants_of[next(iter(wanted))] += 1


@tenants.command("where", acts=())
@click.argument("name", required=False)
def where(name: str | None) -> None:
    """Show the cells of all tenants, or of one, with their weights."""
    with all_cells() as found:
        if name is None:
            rows = read_placements(found.registry)
        else:
            rows = read_named_placements(found.registry, (name,))
    if name is not None and not rows:
        raise click.ClickException(f"There is no tenant {name!r}.")
    shown = []
    for row in sorted(rows):
        weights = ", ".join(f"{cell}={weight:g}" for cell, weight in row.weights.items())
        shown.append((row.tenant, weights, row.version, row.changed_at))
    show_table(("TENANT", "CELLS", "VERSION", "CHANGED"), shown)
