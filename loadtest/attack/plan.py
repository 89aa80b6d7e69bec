"""A round, how much of it there is, and the order of all rounds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module

from loadtest.attack.stage import Stage


@dataclass(frozen=True, slots=True)
class Scale:
    """How long a round lasts, and the part of its connections that is opened."""

    seconds: float
    share: float = 1.0
    #: Of a list of requests each of which is to be sent once, one in so many is.
    one_in: int = 1

    def of(self, connections: int) -> int:
        return max(2, round(self.share * connections))


@dataclass(frozen=True, slots=True)
class Round:
    #: In a few words, as the report has it.
    name: str
    run: Callable[[Stage, Scale], None]


#: Modules of ``loadtest.attack.rounds``, in the order in which they run.
FAMILIES = (*("floods", "readers", "writers", "bodies", "keys", "browsers", "framing", "streams"),)


def rounds_of(family: str) -> Sequence[Round]:
    found: Sequence[Round] = import_module(f"loadtest.attack.rounds.{family}").ROUNDS
    return found
