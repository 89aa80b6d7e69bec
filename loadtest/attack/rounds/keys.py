"""Keys: stolen, forged, revoked and expired ones, and the victim's ids, at every route."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from loadtest.attack.attacker import REFUSED
from loadtest.attack.corpus.routes import CALLS, CONSOLE, OPERATOR, PUBLIC, Call
from loadtest.attack.plan import Round, Scale
from loadtest.attack.stage import Stage

CLIENTS = 6


def guarded() -> Iterator[tuple[str, Call]]:
    """Method and call of every route that needs a key."""
    for route, calls in CALLS.items():
        method = route.partition(" ")[0]
        yield from ((method, call) for call in calls if call.access is not PUBLIC)


def asked(stage: Stage, method: str, call: Call, **more: Any) -> Callable[..., list[int]]:
    """The call with the victim's ids."""
    path, body, form = call.filled(stage.ids)
    sent = b"" if body is None else json.dumps(body).encode()
    return partial(stage.attacker.ask, method, path, body=sent, form=form, **more)


def wrong_keys(stage: Stage, scale: Scale) -> None:
    """Whatever is wrong with a key, no route is open to it."""
    calls = [
        partial(asked(stage, method, call, key=key), REFUSED)
        for method, call in guarded()
        for key in ("", *stage.keys.wrong.values())
    ]
    stage.attacker.repeat(calls, scale.of(CLIENTS), scale.seconds, one_in=scale.one_in)


def foreign_ids(stage: Stage, scale: Scale) -> None:
    """A valid key of another tenant neither reads nor changes what the victim has."""
    calls = [
        partial(asked(stage, method, call, key=stage.keys.hostile), allowed(call))
        for method, call in guarded()
    ]
    crash = partial(stage.attacker.ask, "POST", "/jobs", (403,), key=stage.keys.hostile)
    calls.append(partial(crash, body=b'{"type":"crash"}'))
    stage.attacker.repeat(calls, scale.of(CLIENTS), scale.seconds, one_in=scale.one_in)


def allowed(call: Call) -> tuple[int, ...] | None:
    """What a stranger may hear; None: anything that is its own."""
    if call.access in (OPERATOR, CONSOLE):
        return (403,)
    return (404,) if call.stranger == 404 else None


ROUNDS = (
    Round("wrong keys at every route", wrong_keys),
    Round("the victim's ids at every route", foreign_ids),
)
