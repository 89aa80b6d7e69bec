"""Commands whose errors are one line that names options instead of fields."""

from __future__ import annotations

from typing import Any

import click
from flask.cli import AppGroup
from sqlalchemy.exc import OperationalError

from app.errors import FairlineError, FieldError
from models.store.errors import StateStoreError


class FairlineCommand(click.Command):
    """A command whose expected errors are one message and exit code 1 instead of a traceback."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except FairlineError as error:
            messages = "; ".join(self.as_typed(wrong) for wrong in error.errors)
            raise click.ClickException(messages or error.detail) from error
        except (StateStoreError, OperationalError) as error:
            raise click.ClickException(unavailable(getattr(error, "orig", error))) from error

    def as_typed(self, wrong: FieldError) -> str:
        """The error, with the option in place of the field that it sets."""
        options = {one.name: one.opts[0] for one in self.params if isinstance(one, click.Option)}
        # The reservation's message names the other limit.
        message = wrong.message.replace("in_flight, the cap", "--cap")
        if not wrong.field.startswith("limits."):
            return f"{options.get(wrong.field, wrong.field)} {message}"
        within = wrong.field.removeprefix("limits.")
        pool, _, limit = within.rpartition(".")
        return f"{options[limit]} {pool} {message}" if limit in options else f"{within} {message}"


class FairlineGroup(AppGroup):
    """A group of such commands."""

    command_class = FairlineCommand


def unavailable(error: BaseException) -> str:
    """That the database is unavailable, in a line."""
    from app.config import settings

    # The driver's second line asks whether the server is running.
    message = f"the database is not responding: {str(error).strip().partition(chr(10))[0]}"
    if "database_url" in settings().model_fields_set:
        return message
    return f'{message} (for the stack of make up: eval "$(python -m app.stack env)")'
