"""The settings of a running stack for a shell, and how a later ``up`` there tells them apart.

Services whose address the stack made up itself are not given from outside: once it is stopped,
nobody is there. So a shell also gets a list of what was made up. What it set otherwise since
stays, and so does what the stack was given itself.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, MutableMapping

from app.stack.leftovers import STACK_VARIABLE

#: What a stack made up, as JSON by name.
MADE_UP = "FAIRLINE_FROM_STACK"
#: Says which stack, not what it made up.
HOME = "FAIRLINE_HOME"


def hand_out(variables: Mapping[str, str], given: Mapping[str, str]) -> dict[str, str]:
    """Settings for a shell, of a stack that was itself given some."""
    # But for the mark of the stack's own processes: what bears it is ended with the stack.
    told = {name for name in variables if name.startswith("FAIRLINE_")} - {STACK_VARIABLE}
    settings = {name: variables[name] for name in sorted(told)}
    made_up = {name: value for name, value in settings.items() if given.get(name) != value}
    made_up.pop(HOME, None)
    return {**settings, MADE_UP: json.dumps(made_up)}


def take_back(environment: MutableMapping[str, str]) -> None:
    """Forget what a stack made up, this one or another."""
    try:
        made_up = dict(json.loads(environment.pop(MADE_UP, "{}")))
    except (TypeError, ValueError):  # nothing that a stack wrote
        return
    for name, value in made_up.items():
        if environment.get(name) == value:
            del environment[name]
