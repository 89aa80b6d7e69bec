"""Fairline's API and scheduler. ``create_app`` is what gunicorn runs, ``application`` flask."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from flask import Flask

    from app.cells.router import CellRouter
    from app.config import Settings
    from app.server.wsgi import FairlineApp

    #: Only the commands: ``flask --app app …`` finds it first. A scheduler needs no routes.
    application: Flask


def create_app(settings: Settings | None = None) -> FairlineApp | CellRouter:
    """The Flask application, with everything it needs to answer; with cells, one for each."""
    # Imported here: ``celery -A app`` imports this package too, and workers need no Flask.
    from app.config import settings as read_settings

    wanted = settings or read_settings()
    if wanted.registry_url:
        from app.server.cells import build_router

        return build_router(wanted)
    from app.server.factory import build_app

    return build_app(wanted)


def __getattr__(name: str) -> object:
    """Makes ``application`` for whoever asks for it."""
    if name != "application":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from flask import Flask

    from app.cli.commands import register_commands

    commands = Flask(__name__, static_folder=None)
    register_commands(commands)
    return commands
