"""``flask --app app tenants move|spread|moves``: tenants go to other cells, while they work."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

import click

from app.cli.cells import all_cells
from app.cli.tenants import show_table, tenants
from app.policy.placement import parse_weights
from models.audit import Act
from models.cells.databases import CellDatabases
from models.cells.moves import (
    Move,
    MoveRefused,
    cancel_move,
    read_move,
    read_moves,
    request_move,
)
from models.cells.placements import read_placement
from models.cells.tenant_rows import find_tenant
from models.jobs.transfer import count_left
from models.store.session import connect

#: Pause between two looks at a move.
LOOK_SECONDS = 0.5
#: Jobs are counted up to this, to show how far a move is.
MOST_COUNTED = 10_000_000


class Cells(click.ParamType[dict[str, float]]):
    """Names of cells separated by commas, each with a weight or without."""

    name = "cell[=weight],…"

    def convert(self, value: Any, param: Any, ctx: Any) -> dict[str, float]:
        if isinstance(value, dict):
            return value
        try:
            return parse_weights(value)
        except ValueError as error:
            self.fail(f"{error}", param, ctx)


def waiting_option(command: Callable[..., None]) -> Callable[..., None]:
    return click.option("--wait", is_flag=True, help="Show how far it is, until its end.")(command)


@tenants.command("move", acts=(Act.TENANT_MOVE,))
@click.argument("name")
@click.option("--to", type=Cells(), help="The cells that it is to live in.")
@click.option("--cancel", is_flag=True, help="Take back a move, before new jobs go there.")
@waiting_option
def move(name: str, to: dict[str, float] | None, cancel: bool, wait: bool) -> None:
    """Move a tenant to other cells, with all it has.

    New jobs go there within seconds. Those that wait follow, those that run end where they are.
    """
    if cancel is (to is not None):
        raise click.UsageError("Give either --to or --cancel.")
    change(name, to, wait)


@tenants.command("spread", acts=(Act.TENANT_MOVE,))
@click.argument("name")
@click.option("--over", type=Cells(), required=True, help="The cells, with weights.")
@waiting_option
def spread(name: str, over: dict[str, float], wait: bool) -> None:
    """Let a tenant live in several cells, or in fewer again.

    New jobs are divided by the weights. Those of cells that are not named go to the others.
    """
    change(name, over, wait)


@tenants.command("moves", acts=())
def moves() -> None:
    """Show the moves that are under way, and what keeps them from going on."""
    with all_cells() as found:
        rows = [
            (
                move.tenant,
                shown(move.admitting),
                step_text(move),
                f"{move.age_seconds:.0f} s",
                move.transferred,
                " ".join(move.error.split()),  # those of PostgreSQL have several lines
            )
            for move in read_moves(found.registry)
        ]
    show_table(("TENANT", "TO", "STEP", "FOR", "JOBS", "ERROR"), rows)


def change(name: str, weights: Mapping[str, float] | None, wait: bool) -> None:
    """Request a move, or cancel the one that is under way."""
    with all_cells() as found:
        try:
            if weights is None:
                cancel_move(found.registry, name)
                click.echo(f"tenant {name}: the move is being taken back")
            else:
                begun = request_move(found.registry, name, weights)
                click.echo(f"tenant {name}: to {shown(begun.admitting)}")
        except MoveRefused as refused:
            raise click.ClickException(str(refused)) from refused
        if wait:
            follow(found, name)


def follow(found: CellDatabases, name: str) -> None:
    """Show a move until it has ended: its steps as lines where there is no terminal for a bar."""
    first = read_move(found.registry, name)
    total = 0 if first is None else jobs_to_go(found, first)
    last, step, bare = "", "", not sys.stdout.isatty()
    with click.progressbar(
        length=max(total, 1), label=f"moving {name}", item_show_func=lambda item: item
    ) as bar:
        while (current := read_move(found.registry, name)) is not None:
            before, step = step, step_text(current)
            bar.update(current.transferred - bar.pos, step)
            if bare and step != before:
                click.echo(f"  {step}")
            if current.error and current.error != last:
                last = current.error
                click.echo(f"\n{last}", err=True)
            time.sleep(LOOK_SECONDS)
        bar.update(bar.length - bar.pos if bar.length else 0, "done")
    placement = read_placement(found.registry, name)
    where = "deleted" if placement is None else f"in {shown(placement.weights)}"
    click.echo(f"tenant {name}: {where}")


def jobs_to_go(found: CellDatabases, move: Move) -> int:
    """Jobs in the cells that a tenant leaves."""
    total = 0
    for cell in move.leaving:
        tenant = find_tenant(found.engine(cell), move.tenant)
        if tenant is not None:
            with connect(found.engine(cell)) as connection:
                total += count_left(connection, tenant[0], MOST_COUNTED).jobs
    return total


def step_text(move: Move) -> str:
    """What is being done, in a few words."""
    return move.step.value if move.runs else f"{move.step.value}, waits for a scheduler"


def shown(weights: Mapping[str, float]) -> str:
    """Cells with their weights, as they are given."""
    if len(weights) == 1:
        return next(iter(weights))
    return ", ".join(f"{cell}={weight:g}" for cell, weight in sorted(weights.items()))
