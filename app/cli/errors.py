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
from sqlalchemy.exc import OperationalError, ProgrammingError

from app.errors import FairlineError, FieldError
from models.audit import Act, Actor, acting
from models.cells.databases import UnknownCell
from models.store.errors import StateStoreError

#: PostgreSQL's codes for a column, function or table that does not exist.
NOT_THERE = ("42703", "42883", "42P01")


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
        except UnknownCell as error:
            raise click.ClickException(f"{error}: see cells list and tenants where") from error
        except ProgrammingError as error:
            if (
                Act.DATABASE_MIGRATE in self.acts
                or getattr(error.orig, "pgcode", "") not in NOT_THERE
            ):
                raise
            raise click.ClickException(not_migrated(error.orig)) from error

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

    message = f"the database is not responding: {first_line(error)}"
    if "database_url" in settings().model_fields_set:
        return message
    return f'{message} (for the stack of make up: eval "$(python -m app.stack env)")'


def not_migrated(error: BaseException | None) -> str:
    """That a database has not the tables of this version, in a line."""
    from app.config import settings

    which = "the database"
    if settings().registry_url:
        which = "the registry or the database of a cell"
    missing = first_line(error)
    return f"{which} has not been migrated to this version ({missing}): flask --app app migrate"


def first_line(error: BaseException | None) -> str:
    """What a driver's error says first; more lines show the statement, or ask questions."""
    return str(error).strip().partition("\n")[0]
