"""Who is killed, when and in which order: all of it follows from one printed seed."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random

from loadtest.chaos.stack import Stack

#: What can be killed.
TARGETS = ("api", "worker", "scheduler", "rabbitmq", "postgres")
#: The earliest and the latest moment of a kill after the stack has recovered from the last one.
PAUSE_SECONDS = (0.2, 2.0)


@dataclass(frozen=True, slots=True)
class Strike:
    """One planned kill."""

    number: int
    target: str
    #: After the recovery from the strike before.
    pause_seconds: float
    #: Chooses among several processes of the kind.
    choice: float


def plan(targets: Sequence[str], rounds: int, seed: int) -> Iterator[Strike]:
    """Every target once a round, each round in an order of its own."""
    chance = Random(seed)
    for turn in range(rounds):
        for place, target in enumerate(chance.sample(targets, len(targets))):
            number = turn * len(targets) + place + 1
            yield Strike(number, target, chance.uniform(*PAUSE_SECONDS), chance.random())


def victims(stack: Stack, target: str) -> list[int]:
    """The processes a target stands for."""
    if target == "api":
        return stack.api_workers()
    pids = stack.pids()
    if target == "worker":
        return [pid for name, pid in sorted(pids.items()) if name.startswith("worker-medium-")]
    if target == "scheduler":
        return [pid for name, pid in sorted(pids.items()) if name.startswith("scheduler-")]
    return [pids[target]]


def kill(stack: Stack, strike: Strike) -> int:
    """Kill one of them with SIGKILL; its pid."""
    candidates = victims(stack, strike.target)
    victim = candidates[int(strike.choice * len(candidates))]
    os.kill(victim, signal.SIGKILL)
    return victim
