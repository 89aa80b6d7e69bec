"""Environment variables of a stack: for its own processes, and for a user's shell.

``python -m app.stack env`` also exports a list of the addresses that the stack generated itself: a
later ``up`` in the same shell ignores those, unless the user has changed them.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, MutableMapping
from pathlib import Path

from app.stack.home import Home
from app.stack.leftovers import STACK_VARIABLE
from app.stack.options import StackOptions

#: Where the commands of this environment are; not resolved, so a virtual one stays itself.
COMMANDS = Path(sys.executable).parent
#: Settings that a stack generated, as JSON by name.
GENERATED = "FAIRLINE_FROM_STACK"
#: Identifies a stack, so a shell keeps it.
HOME = "FAIRLINE_HOME"


def environment(
    options: StackOptions, home: Home, database_url: str, broker_url: str
) -> dict[str, str]:
    """The environment of every process of the stack."""
    served = ",".join(pool for pool, count in options.workers.items() if count)
    given = {**options.file, **os.environ}
    # Without kept bytecode each process would compile every module at each start: a third of it.
    given.pop("PYTHONDONTWRITEBYTECODE", None)
    return {
        **stack_defaults(options),
        **given,
        "PATH": f"{COMMANDS}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
        "PYTHONUNBUFFERED": "1",
        STACK_VARIABLE: home.stack_id(),
        HOME: str(home.path),
        "FAIRLINE_DATABASE_URL": database_url,
        "FAIRLINE_BROKER_URL": broker_url,
        "FAIRLINE_QUEUE_TYPE": queue_type(options),
        "FAIRLINE_BLOB_URL": options.blob_url or str(home.blobs),
        "FAIRLINE_HOST": options.host,
        "FAIRLINE_PORT": str(options.port),
        "FAIRLINE_API_WORKERS": str(options.api_workers),
        "FAIRLINE_SERVED_POOLS": given.get("FAIRLINE_SERVED_POOLS") or served,
        **({"FAIRLINE_SCALE_MIN": json.dumps(options.least)} if options.autoscale else {}),
    }


def stack_defaults(options: StackOptions) -> dict[str, str]:
    """Settings whose defaults differ under ``make up``."""
    own_database = not options.database_url
    return {
        # Only the stack's own database may be used without a key.
        "FAIRLINE_ANONYMOUS_TENANT": "demo" if own_database else "",
        "FAIRLINE_CONSOLE_OPEN": "true" if own_database else "false",
        "FAIRLINE_DEMO_TYPES": "true" if own_database else "false",
        "FAIRLINE_FLOWER_URL": f"http://localhost:{options.flower_port}",
    }


def queue_type(options: StackOptions) -> str:
    """The type of the queues: on the embedded broker, one node gains nothing from a quorum."""
    return options.queue_type or ("quorum" if options.broker_url else "classic")


def shell_settings(variables: Mapping[str, str], given: Mapping[str, str]) -> dict[str, str]:
    """The stack's settings for a shell; ``given`` is the environment that it was started with."""
    # Without the stack's mark: processes that carry it are ended with the stack.
    names = {name for name in variables if name.startswith("FAIRLINE_")} - {STACK_VARIABLE}
    settings = {name: variables[name] for name in sorted(names)}
    generated = {name: value for name, value in settings.items() if given.get(name) != value}
    generated.pop(HOME, None)
    return {**settings, GENERATED: json.dumps(generated)}


def drop_generated(environment: MutableMapping[str, str]) -> None:
    """Remove the settings that a stack, this one or another, generated for this shell."""
    try:
        generated = dict(json.loads(environment.pop(GENERATED, "{}")))
    except (TypeError, ValueError):  # not written by a stack
        return
    for name, value in generated.items():
        if environment.get(name) == value:
            del environment[name]
