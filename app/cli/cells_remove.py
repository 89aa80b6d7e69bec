"""``flask --app app cells remove``: forgets a cell that nobody lives in any more."""

from __future__ import annotations

import time

import click
from sqlalchemy import Engine
from sqlalchemy.exc import SQLAlchemyError

from app.cli.cells import all_cells
from app.cli.errors import FairlineCommand
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


@click.command("remove", cls=FairlineCommand, acts=(Act.CELL_CHANGE,))
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@click.option(
    "--forget-blobs",
    is_flag=True,
    help="It will not be back: the others delete its blobs as orphans.",
)
def remove_one(name: str, yes: bool, forget_blobs: bool) -> None:
    """Forget a cell that is drained, or was lost and replaced: it is no longer asked.

    Nothing is changed in its database. While it may come back with jobs, no cell deletes orphans
    in the blob store: its jobs may need them.
    """
    with all_cells() as found:
        known = {row.name: row for row in read_cells(found.registry)}
        if name not in known:
            raise click.ClickException(f"There is no cell {name!r}.")
        kept = kept_in(found, name)
        refuse_or_ask(name, kept, yes=yes)
        answers = kept is not None
        gone = forget_blobs or (answers and not has_jobs(found.engine(name)))
        if not remove_cell(found.registry, name):
            raise click.ClickException(why_not_removed(found.registry, known[name]))
        record_first(found.registry, Act.CELL_CHANGE, name, after={"state": "removed"})
        click.echo(f"cell {name} is removed")
        forget_cell_mark(known[name], gone=gone)
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


def refuse_or_ask(name: str, kept: KeptRequests | None, *, yes: bool) -> None:
    """Refuse to remove a cell that keeps submissions for other cells; ask if it has aliases."""
    if kept is None:
        click.echo(
            f"{name} does not answer: submissions that it keeps for other cells, if any, are given"
            " up with it",
            err=True,
        )
        return
    if kept.waiting:
        raise click.ClickException(
            f"{name} keeps submissions for cells that are away ({kept.waiting}). They are handed"
            " over once those are back, or others are promoted in their place; see"
            " docs/operations.md#cells."
        )
    if kept.aliases and not yes:
        click.confirm(
            f"{name} alone knows ids that stand for earlier jobs with the same idempotency key"
            f" ({kept.aliases}): without it they are 404. It forgets them when they are as old as"
            f" ended jobs get. Remove {name} now?",
            abort=True,
        )


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
        click.echo(
            f"{name} may have been given submissions meanwhile. Keep its scheduler running until"
            " this is 0 in its database: SELECT count(*) FROM intake_jobs WHERE alias_of IS NULL",
            err=True,
        )


def forget_cell_mark(cell: CellRow, *, gone: bool) -> None:
    """Let the other cells delete orphans in the blob store again, or say that they do not."""
    from app.config import settings

    mark = cell_key(cell.number)
    if not gone:
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
