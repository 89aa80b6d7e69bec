"""Keys: stolen, forged, revoked and expired ones, and the victim's ids, at every route."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from loadtest.attack.attacker import REFUSED
from loadtest.attack.corpus.routes import CALLS, CONSOLE, OPERATOR, PUBLIC, Call
from loadtest.attack.rounds.kinds import Repeated
from loadtest.attack.stage import Stage


def guarded() -> Iterator[tuple[str, Call]]:
    """Method and call of every route that needs a key."""
    for route, calls in CALLS.items():
        method = route.partition(" ")[0]
        yield from ((method, call) for call in calls if call.access is not PUBLIC)


def asked(stage: Stage, method: str, call: Call, **more: Any) -> Callable[..., object]:
    """The call with the victim's ids; it takes the statuses that are allowed."""
    path, body, form = call.filled(stage.ids)
    sent = b"" if body is None else json.dumps(body).encode()
    return partial(stage.attacker.ask, method, path, body=sent, form=form, **more)


def wrong_keys(stage: Stage) -> list[Callable[[], object]]:
    """Whatever is wrong with a key, no route is open to it."""
    return [
        partial(asked(stage, method, call, key=key), REFUSED)
        for method, call in guarded()
        for key in ("", *stage.keys.wrong.values())
    ]


def foreign_ids(stage: Stage) -> list[Callable[[], object]]:
    """A valid key of another tenant neither reads nor changes what the victim has."""
    key = stage.keys.hostile
    crash = partial(stage.attacker.ask, "POST", "/jobs", (403,), key=key, body=b'{"type":"crash"}')
    calls = guarded()
    return [*(partial(asked(stage, *each, key=key), allowed(each[1])) for each in calls), crash]


def allowed(call: Call) -> tuple[int, ...] | None:
    """What a stranger may hear; None: anything that is its own."""
    if call.access in (OPERATOR, CONSOLE):
        return (403,)
    return (404,) if call.stranger == 404 else None


ROUNDS = (
    Repeated("wrong keys at every route", wrong_keys),
    Repeated("the victim's ids at every route", foreign_ids),
)
