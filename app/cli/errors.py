"""Errors of commands as one line that names options instead of fields."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import click
from sqlalchemy.exc import OperationalError

from app.errors import FairlineError, FieldError
from models.store.errors import StateStoreError

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


def short_errors(command: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Make a command's errors one message and exit code 1 instead of a traceback."""

    @functools.wraps(command)
    def run(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        try:
            return command(*args, **kwargs)
        except FairlineError as error:
            messages = "; ".join(map(as_typed, error.errors))
            raise click.ClickException(messages or error.detail) from error
        except (StateStoreError, OperationalError) as error:
            raise click.ClickException(unavailable(getattr(error, "orig", error))) from error

    return run


def as_typed(wrong: FieldError) -> str:
    """The error, with the option in place of the field that it sets."""
    parameters = click.get_current_context().command.params
    options = {one.name: one.opts[0] for one in parameters if isinstance(one, click.Option)}
    # The reservation's message names the other limit.
    message = wrong.message.replace("in_flight, the cap", "--cap")
    if not wrong.field.startswith("limits."):
        return f"{options.get(wrong.field, wrong.field)} {message}"
    within = wrong.field.removeprefix("limits.")
    pool, _, limit = within.rpartition(".")
    return f"{options[limit]} {pool} {message}" if limit in options else f"{within} {message}"


def unavailable(error: BaseException) -> str:
    """That the database is unavailable, in a line."""
    from app.config import settings

    # The driver's second line asks whether the server is running.
    message = f"the database is not responding: {str(error).strip().partition(chr(10))[0]}"
    if "database_url" in settings().model_fields_set:
        return message
    return f'{message} (for the stack of make up: eval "$(python -m app.stack env)")'
