"""Commands that run the platform: ``migrate``, ``scheduler``, ``demo`` and ``replay``."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click
from flask import Flask

from app.cli.audit import audit
from app.cli.cells import cells
from app.cli.cells_promote import promote_cell
from app.cli.cells_remove import remove_one
from app.cli.encryption import encryption
from app.cli.errors import FairlineCommand
from app.cli.keys import keys
from app.cli.placements import move as _move  # noqa: F401 - adds commands to those of tenants
from app.cli.quotas import quotas
from app.cli.tenants import database, tenants
from models.audit import Act, record_first

if TYPE_CHECKING:
    from alembic.config import Config
    from sqlalchemy import Engine

ROOT = Path(__file__).parents[2]


def register_commands(app: Flask) -> None:
    cells.add_command(promote_cell)
    cells.add_command(remove_one)
    platform = (migrate, run_scheduler, show_demo, replay_dead_letters)
    for command in (tenants, keys, quotas, audit, encryption, cells, *platform):
        app.cli.add_command(command)


@click.command(
    "migrate",
    cls=FairlineCommand,
    acts=(Act.DATABASE_MIGRATE, Act.TENANT_CREATE, Act.KEY_ISSUE),
)
@click.option(
    "--tenant",
    default=None,
    help="Also create this tenant, without limits, if it does not exist. Not in a cell: there, a "
    "tenant that was moved away must not be made anew.",
)
@click.option(
    "--operator-key",
    type=click.Path(path_type=Path, dir_okay=False),
    default=None,
    help="Also write an operator key to this file.",
)
@click.option(
    "--expand",
    is_flag=True,
    help="Stop before the first migration that the previous version cannot work with; "
    "in an empty database, which no version works with, there is none.",
)
@click.option(
    "--back",
    metavar="REVISION",
    help="Downgrade to this revision; 'expand' is where --expand stops.",
)
def migrate(tenant: str | None, operator_key: Path | None, expand: bool, back: str | None) -> None:
    """Migrate the database to this version.

    Rolling upgrade: --expand; replace every process, schedulers first, then workers, then the
    API; then migrate to the end. The way back, with the newer version's command: --back expand,
    replace every process, --back the revision of the previous version.
    """
    from alembic import command
    from alembic.config import Config

    from app.cli.login import keep_login, owner_database
    from app.config import settings
    from app.tenants.changes import ensure_tenant, keep_operator_key
    from app.tenants.terms import Change
    from models.cells.registry import read_identity

    engine = owner_database()
    config, before = Config(ROOT / "alembic.ini"), revision_of(engine)
    if back is not None:
        command.downgrade(config, last_expanding(config) if back == "expand" else back)
        record_migration(engine, before)
        return
    stop = expand and before is not None
    command.upgrade(config, last_expanding(config) if stop else "head")
    record_migration(engine, before)
    keep_login(engine, settings())
    if tenant is not None and read_identity(engine) == (0, ""):
        ensure_tenant(engine, tenant, Change({"tier_limits": False}))
    if operator_key is not None:
        keep_operator_key(engine, operator_key)


def revision_of(engine: Engine) -> str | None:
    """The revision of the database; None if it was never migrated."""
    from alembic.runtime.migration import MigrationContext

    with engine.connect() as connection:
        return MigrationContext.configure(connection).get_current_revision()


def record_migration(engine: Engine, before: str | None) -> None:
    """Record a change of the revision, after it: each migration is a transaction of its own.

    Not in a database that has gone back to a revision without the audit log.
    """
    from sqlalchemy import inspect

    after = revision_of(engine)
    if after != before and inspect(engine).has_table("audit_log"):
        was, became = {"revision": before}, {"revision": after}
        record_first(engine, Act.DATABASE_MIGRATE, before=was, after=became)


def last_expanding(config: Config) -> str:
    """The newest revision that does not drop what the previous version needs (``contract = True``).

    Only for upgrades from the release directly before this one.
    """
    from alembic.script import ScriptDirectory

    revisions = list(ScriptDirectory.from_config(config).walk_revisions())
    kept = [one for one in revisions if not getattr(one.module, "contract", False)]
    return kept[0].revision


@click.command("scheduler", cls=FairlineCommand, acts=())
def run_scheduler() -> None:
    """Run a scheduler. Of several, one leads and the others stand by."""
    # In place of this process: a scheduler needs nothing of Flask, a quarter of its memory.
    os.execv(sys.executable, (sys.executable, "-m", "app.scheduler"))


@click.command("demo", cls=FairlineCommand, acts=())
@click.option("--count", default=40, show_default=True, help="Applications to submit.")
@click.option("--url", default=None, help="URL of the API. [default: http://127.0.0.1:$PORT]")
@click.option("--picture", default=None, help="Save the output as an SVG file.")
def show_demo(count: int, url: str | None, picture: str | None) -> None:
    """Submit applications and show them being scored."""
    from app.cli.demo import run_demo
    from app.config import settings

    run_demo(url or f"http://127.0.0.1:{settings().port}", count, picture)


@click.command("replay", cls=FairlineCommand, acts=(Act.JOB_REPLAY, Act.REPLAY_REQUEST))
@click.option("--type", "job_type", default=None, help="Only jobs of this type.")
@click.option("--tenant", default=None, help="Only jobs of this tenant.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
def replay_dead_letters(job_type: str | None, tenant: str | None, yes: bool) -> None:
    """Queue dead letters again, with attempts reset."""
    from app.admission.replays import replay
    from app.admission.submission_limits import SubmissionLimits
    from app.admission.tenant_limits import TenantLimits
    from app.config import settings
    from app.errors import Conflict, Forbidden
    from models.jobs.replay import count_dead
    from models.jobs.replay_requests import ReplayRequest

    engine = database()
    tenant_limits = TenantLimits(engine, SubmissionLimits(**settings().submission_limits))
    found = count_dead(engine, job_type, tenant)
    for letters in found:
        click.echo(f"{letters.tenant}: {letters.jobs:,} dead letters")
    total = sum(letters.jobs for letters in found)
    if not total:
        click.echo("No dead letters to replay.")
        return
    if not yes:
        click.confirm(f"Replay {total:,}?", abort=True)
    replayed = 0
    for letters in found:
        # As of the count: what dies again meanwhile stays dead.
        wanted = ReplayRequest(letters.tenant_id, type=job_type, before=letters.as_of)
        try:
            done = replay(engine, tenant_limits, wanted)
        except (Conflict, Forbidden) as refused:  # the others' are replayed all the same
            click.echo(f"{letters.tenant}: nothing replayed. {refused.detail}")
            continue
        if isinstance(done, list):
            replayed += len(done)
            click.echo(f"{replayed:,} of {total:,} replayed")
        else:
            click.echo(f"{letters.tenant}: {done.total:,} to follow as fast as its limits allow")
