"""The class of commands: their errors are one line that names options instead of fields.

Every command declares its acts for the audit log, none if it is read-only, and runs within
``models.audit.acting`` as the user of the system.
"""

from __future__ import annotations

import getpass
import os
import socket
from collections.abc import Sequence
from typing import Any

import click
from flask.cli import AppGroup
from sqlalchemy.exc import OperationalError

from app.errors import FairlineError, FieldError
from models.audit import Act, Actor, acting
from models.store.errors import StateStoreError


class FairlineCommand(click.Command):
    """A command whose expected errors are one message and exit code 1 instead of a traceback."""

    def __init__(self, *args: Any, acts: Sequence[Act], **options: Any) -> None:
        super().__init__(*args, **options)
        self.acts = acts

    def invoke(self, ctx: click.Context) -> Any:
        try:
            with acting(local_actor(self.acts)):
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


def local_actor(acts: Sequence[Act]) -> Actor:
    """The user of the system, on this host."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container's user may have no name
        user = f"uid {os.getuid()}"
    return Actor("command line", user, "operator", acts, socket.gethostname())


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
