"""Commands: ``flask --app app …``."""

from __future__ import annotations

import signal
import threading
from pathlib import Path
from typing import Any

import click
from flask import Flask
from flask.cli import AppGroup

from app.config import Settings
from app.logs import configure_logging
from models.presence import process_name
from models.session import connection, open_engine

ROOT = Path(__file__).parents[1]

tenants = AppGroup("tenants", help="Whose work it is.")


def register_commands(app: Flask, settings: Settings) -> None:
    """Hang the commands on the Flask application."""
    app.cli.add_command(tenants)
    app.cli.add_command(migrate)
    app.cli.add_command(run_scheduler)
    app.cli.add_command(show_demo)


@click.command("migrate")
@click.option("--tenant", default=None, help="Also create this tenant unless it is there.")
def migrate(tenant: str | None) -> None:
    """Bring the database up to date: ``alembic upgrade head`` and a first tenant in one go."""
    from alembic import command
    from alembic.config import Config

    command.upgrade(Config(ROOT / "alembic.ini"), "head")
    if tenant is not None:
        create_tenant(tenant)


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
    from app.config import settings
    from app.demo import run_demo

    run_demo(url or f"http://127.0.0.1:{settings().port}", count, picture)


@tenants.command("ensure")
@click.argument("name")
def ensure_tenant(name: str) -> None:
    """Create a tenant unless it is there."""
    create_tenant(name)
    click.echo(f"tenant {name}")


def create_tenant(name: str) -> None:
    """A tenant of that name, now or already."""
    from app.config import settings

    with connection(open_engine(settings(), process="cli")) as taken:
        taken.exec_driver_sql(
            "INSERT INTO tenants (name) VALUES (%s) ON CONFLICT (name) DO NOTHING", (name,)
        )
