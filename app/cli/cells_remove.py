"""``flask --app app cells remove``: forgets a cell that nobody lives in any more."""

from __future__ import annotations

import time

import click
from sqlalchemy import Engine
from sqlalchemy.exc import SQLAlchemyError

from app.cli.cells import all_cells, cells
from models.audit import Act, record_first
from models.blobs import BlobError, cell_key, open_blobs
from models.cells.databases import CellDatabases
from models.cells.intake_room import KeptRequests, count_kept
from models.cells.placements import read_placements
from models.cells.registry import CellRow, read_cells, remove_cell
from models.jobs.transfer import has_jobs
from models.store.errors import StateStoreError

#: Tenants that a message names.
MOST_NAMED = 5
#: Until API processes know that a cell is gone, and what they have begun to keep there is written.
NOTICED_SECONDS = 2.0


@cells.command("remove", acts=(Act.CELL_CHANGE,))
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@click.option("--forget-blobs", is_flag=True, help="It will not be back: its blobs are orphans.")
def remove(name: str, yes: bool, forget_blobs: bool) -> None:
    """Forget a cell that is drained, or was lost and replaced: it is no longer asked.

    Nothing is changed in its database. While it may come back with jobs, no cell deletes orphans
    in the blob store: its jobs may need them.
    """
    with all_cells() as found:
        known = {row.name: row for row in read_cells(found.registry)}
        if name not in known:
            raise click.ClickException(f"There is no cell {name!r}.")
        answers = check_intake(found, name, yes=yes)
        gone = forget_blobs or (answers and not has_jobs(found.engine(name)))
        if not remove_cell(found.registry, name):
            raise click.ClickException(why_not_removed(found.registry, known[name]))
        record_first(found.registry, Act.CELL_CHANGE, name, after={"state": "removed"})
        click.echo(f"cell {name} is removed")
        keep_or_forget_blobs(known[name], forget=gone)
        if answers:
            time.sleep(NOTICED_SECONDS)
            tell_late(found, name)


def why_not_removed(registry: Engine, cell: CellRow) -> str:
    """What keeps a cell from being removed."""
    if cell.state != "draining":
        return f"{cell.name} is not drained: cells drain {cell.name} --move."
    living = [row.tenant for row in read_placements(registry) if cell.name in row.weights]
    if not living:
        return f"Tenants are being moved to {cell.name}: tenants moves."
    more = ", …" if len(living) > MOST_NAMED else ""
    return f"Tenants live in {cell.name}: {', '.join(living[:MOST_NAMED])}{more}."


def check_intake(found: CellDatabases, name: str, *, yes: bool) -> bool:
    """Refuse to remove a cell that keeps submissions for other cells; whether it answers.

    Asks if ids were given out that it alone knows.
    """
    kept = kept_in(found, name)
    if kept is None:
        click.echo(
            f"{name} does not answer: submissions that it keeps for other cells, if any, are given"
            " up with it",
            err=True,
        )
        return False
    if kept.waiting:
        raise click.ClickException(
            f"{name} keeps {kept.waiting} submissions for cells that are away. They are handed over"
            " once those are back, or others are promoted in their place; see"
            " docs/operations.md#cells."
        )
    if kept.answered and not yes:
        click.confirm(
            f"{name} alone knows that the ids of {kept.answered} submissions stand for earlier"
            " ones with the same idempotency key: without it they are 404. It forgets them when"
            f" they are as old as ended jobs get. Remove {name} now?",
            abort=True,
        )
    return True


def kept_in(found: CellDatabases, name: str) -> KeptRequests | None:
    """What a cell keeps for other cells; None if it does not answer."""
    try:
        return count_kept(found.engine(name))
    except (StateStoreError, SQLAlchemyError):  # also a database that was never migrated
        return None


def tell_late(found: CellDatabases, name: str) -> None:
    """Say what API processes that still knew the cell have left there."""
    kept = kept_in(found, name)
    if kept is None or kept.waiting:
        some = "Submissions may have been" if kept is None else f"{kept.waiting} submissions were"
        click.echo(
            f"{some} taken into {name} meanwhile. Keep its scheduler running until this is 0 in its"
            " database: SELECT count(*) FROM intake_jobs WHERE alias_of IS NULL",
            err=True,
        )


def keep_or_forget_blobs(cell: CellRow, *, forget: bool) -> None:
    """Let the other cells delete orphans in the blob store again, or say that they do not."""
    from app.config import settings

    mark = cell_key(cell.number)
    if not forget:
        click.echo(
            f"{cell.name} may have jobs whose payloads are in the blob store: no cell deletes"
            f" orphans there any more. If it will not be back, delete {mark} there"
            " (docs/cells.md#blobs).",
            err=True,
        )
        return
    try:
        open_blobs(settings().blob_url).delete(mark)
    except BlobError as error:
        click.echo(f"Delete {mark} from the blob store: {error}.", err=True)
