"""``flask --app app cells promote``: another cell takes the place of one that is lost for good."""

from __future__ import annotations

import time

import click

from app.cli.cells import all_cells
from app.cli.errors import FairlineCommand
from models.audit import Act, record_first
from models.cells.databases import CellDatabases
from models.cells.promotion import Promoted, promote
from models.cells.registry import set_cell_state
from models.store.errors import StateStoreError
from models.store.session import fetch

#: Tenants that are named in a message.
MOST_NAMED = 10


@click.command("promote", cls=FairlineCommand, acts=(Act.CELL_CHANGE, Act.TENANT_MOVE))
@click.argument("lost")
@click.option("--to", required=True, help="The cell that its tenants live in from now on.")
@click.option("--force", is_flag=True, help="Even if it answers.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
def promote_cell(lost: str, to: str, force: bool, yes: bool) -> None:
    """Let another cell take the place of one that is lost.

    For a cell that will not be back soon: its tenants' terms, keys and schedules are installed
    from the registry's copies, and new jobs run in the other cell. Jobs that the lost cell has are
    not known there; if it comes back they are transferred. Make sure that it does not run on
    where you cannot reach it: it would go on with its jobs.
    """
    with all_cells() as found:
        check(found, lost, to, force=force)
        if not yes:
            click.confirm(f"Place all tenants of {lost} in {to}?", abort=True)
        began = time.monotonic()
        set_cell_state(found.registry, lost, "draining")
        after = {"state": "draining", "promoted": to}
        record_first(found.registry, Act.CELL_CHANGE, lost, after=after)
        done = promote(found, lost, to)
    report(done, lost, to, time.monotonic() - began)


def check(found: CellDatabases, lost: str, to: str, *, force: bool) -> None:
    """Refuse what cannot work, and what would be better done by moves."""
    known = found.cells()
    for name in (lost, to):
        if name not in known:
            raise click.ClickException(f"There is no cell {name!r}.")
    if lost == to:
        raise click.UsageError("Name another cell.")
    if not answers(found, to):
        raise click.ClickException(f"{to} does not answer.")
    if not force and answers(found, lost):
        raise click.ClickException(
            f"{lost} answers. Its tenants can be moved together with their jobs:"
            f" cells drain {lost} --move. To promote {to} all the same, give --force."
        )


def answers(found: CellDatabases, cell: str) -> bool:
    try:
        fetch(found.engine(cell), "SELECT 1")
    except StateStoreError:
        return False
    return True


def report(done: Promoted, lost: str, to: str, seconds: float) -> None:
    """What was done; exits with an error if a tenant could not be placed."""
    click.echo(f"{len(done.tenants)} tenants of {lost} live in {to} now ({seconds:.1f} s)")
    for tenant, reason in done.failed.items():
        click.echo(f"{tenant} stays where it is: {reason}", err=True)
    if done.without_copy:
        names = ", ".join(done.without_copy[:MOST_NAMED])
        more = len(done.without_copy) - MOST_NAMED
        raise click.ClickException(
            f"The registry has no copy of {names}{f' and {more} more' if more > 0 else ''}:"
            " they stay where they are."
        )
    if done.failed:
        raise click.ClickException(f"{len(done.failed)} tenants could not be placed.")
