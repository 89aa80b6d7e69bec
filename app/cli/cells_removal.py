"""What ``flask --app app cells remove`` looks at, and what it does with the blobs of the cell."""

from __future__ import annotations

import click
from sqlalchemy import Engine
from sqlalchemy.exc import SQLAlchemyError

from models.blobs import BlobError, cell_key, open_blobs
from models.cells.databases import CellDatabases
from models.cells.intake_jobs import count_all_waiting
from models.cells.placements import read_placements
from models.cells.registry import CellRow
from models.jobs.transfer import has_jobs
from models.store.errors import StateStoreError

#: Tenants that a message names.
MOST_NAMED = 5


def why_not_removed(registry: Engine, cell: CellRow) -> str:
    """What keeps a cell from being removed."""
    if cell.state != "draining":
        return f"{cell.name} is not drained: cells drain {cell.name} --move."
    living = [row.tenant for row in read_placements(registry) if cell.name in row.weights]
    if not living:
        return f"Tenants are being moved to {cell.name}: tenants moves."
    more = ", …" if len(living) > MOST_NAMED else ""
    return f"Tenants live in {cell.name}: {', '.join(living[:MOST_NAMED])}{more}."


def is_empty(found: CellDatabases, name: str) -> bool:
    """Whether a cell says that it has no jobs; refuses to remove one that keeps submissions for
    other cells."""
    try:
        waiting, empty = count_all_waiting(found.engine(name)), not has_jobs(found.engine(name))
    except (StateStoreError, SQLAlchemyError):  # also a database that was never migrated
        click.echo(
            f"{name} does not answer: submissions that it keeps for other cells, if any, are given"
            " up with it",
            err=True,
        )
        return False
    if waiting:
        raise click.ClickException(
            f"{name} keeps {waiting} submissions for cells that are away. They are handed over once"
            " those are back, or others are promoted in their place; see docs/operations.md#cells."
        )
    return empty


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
