"""Hostile bodies, at every route that takes one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from loadtest.attack.attacker import REFUSED
from loadtest.attack.corpus.bodies import FINE, HUNGRY, MALFORMED, UNFIT_BY_PATH
from loadtest.attack.rounds.kinds import Repeated
from loadtest.attack.stage import Stage

#: Below the limit of the tenant, beyond which nothing of a body is read.
PER_SECOND = 90.0
#: A strange body that is in order is accepted, or one too many.
ACCEPTED = (202, 429)


def refused_bodies() -> Iterator[tuple[str, bytes]]:
    """Paths and bodies that no route takes."""
    for path, unfit in UNFIT_BY_PATH.items():
        yield from ((path, sent) for sent in MALFORMED.values())
        yield from ((path, sent) for sent, _ in unfit.values())
    yield from HUNGRY.values()


def everything(stage: Stage) -> list[Callable[[], object]]:
    ask = partial(stage.attacker.ask, "POST", key=stage.keys.hostile)
    return [
        *(partial(ask, path, REFUSED, body=sent) for path, sent in refused_bodies()),
        *(partial(ask, "/applications", ACCEPTED, body=sent) for sent in FINE.values()),
    ]


ROUNDS = (Repeated("hostile bodies", everything, per_second=PER_SECOND),)
