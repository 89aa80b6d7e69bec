"""Commands: ``flask --app app …``."""

from __future__ import annotations

import signal
import threading
from pathlib import Path
from typing import Any

import click
from flask import Flask

from app.cli.errors import in_plain_words
from app.cli.quotas import quotas
from app.cli.tenants import database, keys, tenants
from app.config import Settings
from app.logs import configure_logging
from models.presence import process_name
from models.store.session import open_engine

ROOT = Path(__file__).parents[2]


def register_commands(app: Flask, settings: Settings) -> None:
    """Hang the commands on the Flask application."""
    app.cli.add_command(tenants)
    app.cli.add_command(keys)
    app.cli.add_command(quotas)
    app.cli.add_command(migrate)
    app.cli.add_command(run_scheduler)
    app.cli.add_command(show_demo)
    app.cli.add_command(replay_dead_letters)


@click.command("migrate")
@click.option("--tenant", default=None, help="Also create this tenant unless it is there.")
@click.option(
    "--operator-key",
    type=click.Path(path_type=Path, dir_okay=False),
    default=None,
    help="Also keep an operator's key in this file.",
)
@in_plain_words
def migrate(tenant: str | None, operator_key: Path | None) -> None:
    """Bring the database up to date: alembic upgrade head and a first tenant in one go."""
    from alembic import command
    from alembic.config import Config

    from app.tenants.changes import ensure_tenant, keep_operator_key

    command.upgrade(Config(ROOT / "alembic.ini"), "head")
    if tenant is not None:
        ensure_tenant(database(), tenant)
    if operator_key is not None:
        keep_operator_key(database(), operator_key)


@click.command("scheduler")
def run_scheduler() -> None:
    """Run a scheduler: one leads, the others stand by."""
    from app.celery import celery
    from app.config import settings
    from app.scheduler.service import SchedulerService
    from app.telemetry import start_telemetry

    configure_logging()
    stop = threading.Event()

    def halt(*_: Any) -> None:
        stop.set()

    signal.signal(signal.SIGTERM, halt)
    signal.signal(signal.SIGINT, halt)
    engine = open_engine(settings(), process=process_name("scheduler"))
    start_telemetry("scheduler", engine)
    SchedulerService(engine, celery, settings()).run(stop)


@click.command("demo")
@click.option("--count", default=40, show_default=True, help="Applications to send.")
@click.option("--url", default=None, help="Where the API is; http://127.0.0.1:$PORT if not given.")
@click.option("--picture", default=None, help="Draw what was shown into this SVG file.")
def show_demo(count: int, url: str | None, picture: str | None) -> None:
    """Send applications to a running stack and watch them being scored."""
    from app.cli.demo import run_demo
    from app.config import settings

    run_demo(url or f"http://127.0.0.1:{settings().port}", count, picture)


@click.command("replay")
@click.option("--type", "job_type", default=None, help="Only jobs of this type.")
@click.option("--tenant", default=None, help="Only jobs of this tenant.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@in_plain_words
def replay_dead_letters(job_type: str | None, tenant: str | None, yes: bool) -> None:
    """Bring dead letters back to the line, with a fresh count."""
    from app.config import settings
    from models.jobs.replay import BATCH, count_dead, replay_matching

    engine = open_engine(settings(), process="cli")
    found = count_dead(engine, job_type, tenant)
    for letters in found:
        click.echo(f"{letters.tenant}: {letters.count:,} dead letters")
    total = sum(letters.count for letters in found)
    if not total:
        click.echo("There are none to replay.")
        return
    if not yes:
        click.confirm(f"Replay {total:,}?", abort=True)
    replayed = 0
    for letters in found:
        while True:
            # As of the count: what dies again meanwhile stays dead until it is asked for.
            batch = replay_matching(
                engine, letters.tenant_id, limit=BATCH, before=letters.as_of, job_type=job_type
            )
            replayed += len(batch)
            click.echo(f"{replayed:,} of {total:,} replayed")
            if len(batch) < BATCH:
                break
