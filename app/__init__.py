"""Fairline's API and scheduler. ``create_app`` is what gunicorn and flask run."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from flask import Flask

    from app.config import Settings


def create_app(settings: Settings | None = None) -> Flask:
    """The Flask application, with everything it needs to answer."""
    # Imported here: ``celery -A app`` imports this package too, and workers need no Flask.
    from app.config import settings as read_settings
    from app.server.factory import build_app

    return build_app(settings or read_settings())
