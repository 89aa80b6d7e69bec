"""What went wrong with a command, in a line and in the words of who typed it."""

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


def in_plain_words(command: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """What went wrong as one message and exit code 1, not as a traceback."""

    @functools.wraps(command)
    def run(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        try:
            return command(*args, **kwargs)
        except FairlineError as error:
            told = [as_typed(wrong) for wrong in error.errors]
            raise click.ClickException("; ".join(told) or error.detail) from error
        except (StateStoreError, OperationalError) as error:
            raise click.ClickException(unanswered(getattr(error, "orig", error))) from error

    return run


def as_typed(wrong: FieldError) -> str:
    """What is wrong, with the option in place of the field that it sets."""
    parameters = click.get_current_context().command.params
    options = {one.name: one.opts[0] for one in parameters if isinstance(one, click.Option)}
    # The reservation's message names the other limit.
    message = wrong.message.replace("in_flight, the cap", "--cap")
    if not wrong.field.startswith("limits."):
        return f"{options.get(wrong.field, wrong.field)} {message}"
    within = wrong.field.removeprefix("limits.")
    pool, _, limit = within.rpartition(".")
    return f"{options[limit]} {pool} {message}" if limit in options else f"{within} {message}"


def unanswered(error: BaseException) -> str:
    """That the database is away, in a line."""
    from app.config import settings

    # The driver asks in a second line whether the server runs.
    said = f"the database does not answer: {str(error).strip().partition(chr(10))[0]}"
    if "database_url" in settings().model_fields_set:
        return said
    return f'{said} (for the stack of make up: eval "$(python -m app.stack env)")'
