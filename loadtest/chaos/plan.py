"""PURE: who is hit, how and when. All of it follows from one printed seed.

Targets come in rounds, each round in an order of its own, so that a short run hits every kind
of process too. A run of 30 minutes has more than 300 kills.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from random import Random

#: What can be hit, and how often in a round.
TARGETS = {
    "api": 1,
    "api-leader": 1,
    "short": 1,
    "medium": 2,
    "long": 1,
    "long-child": 2,
    "scheduler": 2,
    "rabbitmq": 1,
    "postgres": 1,
    "postgres-backend": 1,
}
#: Only a process that the supervisor knows by name is stopped politely.
RESTARTED = frozenset(TARGETS) - {"api", "long-child", "postgres-backend"}
#: The shortest and the longest time between two hits.
PAUSE_SECONDS = (1.5, 5.0)
#: A frozen process goes on after this long …
FREEZE_SECONDS = (1.0, 40.0)
#: … half of them soon after their leases of 6 to 9 s, when others have just taken over.
OUTLAST_SECONDS = (7.0, 15.0)


class Act(StrEnum):
    """What is done to a process."""

    KILL = "kill"
    FREEZE = "freeze"
    RESTART = "restart"


#: How often each act is done in ten.
ACTS = {Act.KILL: 7, Act.FREEZE: 2, Act.RESTART: 1}


@dataclass(frozen=True, slots=True)
class Hit:
    """One planned blow."""

    number: int
    #: After the beginning of the run.
    at_seconds: float
    target: str
    act: Act
    #: Chooses among several processes of the kind.
    choice: float
    #: How long a frozen process is frozen.
    seconds: float = 0.0

    def __str__(self) -> str:
        much = f" for {self.seconds:.1f} s" if self.act is Act.FREEZE else ""
        return f"{self.act} {self.target}{much}"


def plan(targets: Sequence[str], seconds: float, seed: int) -> list[Hit]:
    """The hits of a run of ``seconds``; a longer run begins like a shorter one."""
    chance = Random(seed)
    hits: list[Hit] = []
    moment = 0.0
    acts = {target: _acts(target, chance.random()) for target in targets}
    while True:
        for target in _round(targets, chance):
            moment += chance.uniform(*PAUSE_SECONDS)
            choice, frozen = chance.random(), _freeze_seconds(chance)
            if moment > seconds:
                return hits
            act = next(acts[target])
            # Nothing stays frozen beyond the end: from then on everything must heal.
            frozen = min(frozen, max(FREEZE_SECONDS[0], seconds - moment))
            hits.append(
                Hit(
                    len(hits) + 1,
                    moment,
                    target,
                    act,
                    choice,
                    frozen if act is Act.FREEZE else 0.0,
                )
            )


def _round(targets: Sequence[str], chance: Random) -> list[str]:
    cards = [target for target in targets for _ in range(TARGETS[target])]
    return chance.sample(cards, len(cards))


def _acts(target: str, seed: float) -> Iterator[Act]:
    """The acts on one target: a shuffled ten after the other, so that none is forgotten."""
    chance = Random(seed)
    cards = [act for act, count in ACTS.items() for _ in range(count)]
    while True:
        for act in chance.sample(cards, len(cards)):
            yield act if act is not Act.RESTART or target in RESTARTED else Act.KILL


def _freeze_seconds(chance: Random) -> float:
    """Often a few seconds, often a little more than a lease, now and then far beyond it."""
    least, most = FREEZE_SECONDS
    anything = float(least * (most / least) ** chance.random())
    return chance.choice((anything, chance.uniform(*OUTLAST_SECONDS)))
