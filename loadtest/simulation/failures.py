"""Failures of runs: which jobs run again, when, and which are dead, by the product's decision."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from heapq import heappop, heappush
from random import Random

from tasks.retry.decision import History, RetryLimits, Verdict, decide_retry

#: Runs that fail, and of which class they are.
FAILED_SHARE = 0.003
CLASSES = {"APP_ERROR": 0.90, "PERMANENT": 0.06, "TIMEOUT": 0.04}
#: The death of a worker is noticed within this time.
NOTICE_SECONDS = 7.0
#: Mean time between two deaths of a worker: a machine, an eviction, an upgrade.
WORKER_LIFE_SECONDS = 5 * 86_400.0
NEW = History(attempt=0, deferrals=0)


@dataclass(frozen=True, slots=True)
class Retry:
    """A job that failed and runs again."""

    tenant: int
    kind: int
    history: History


class Failures:
    """Failed jobs of one pool that wait to run again."""

    def __init__(self, tries: int, dice: Random) -> None:
        self._limits = RetryLimits(tries)
        self._dice = dice
        self._due: list[tuple[float, int, Retry]] = []
        self._numbers = 0
        self.dead = 0
        self.by_class: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._due)

    def draw_class(self) -> str:
        return self._dice.choices(list(CLASSES), list(CLASSES.values()))[0]

    def fail(self, job: Retry, failure_class: str, now: float) -> None:
        """A run failed: the job is scheduled again or dead."""
        self.by_class[failure_class] += 1
        decision = decide_retry(failure_class, job.history, self._limits, self._dice)
        if decision.verdict is Verdict.DEAD:
            self.dead += 1
            return
        before = job.history
        after = History(
            attempt=before.attempt + decision.spends_try,
            deferrals=before.deferrals + (failure_class == "DEPENDENCY"),
            crashes=before.crashes + (failure_class == "WORKER_CRASH"),
            violations=before.violations + (failure_class == "TIMEOUT"),
        )
        wait = NOTICE_SECONDS if failure_class == "WORKER_CRASH" else 0.0
        self._numbers += 1
        again = Retry(job.tenant, job.kind, after)
        heappush(self._due, (now + wait + decision.delay_seconds, self._numbers, again))

    def is_due(self, until: float) -> bool:
        return bool(self._due) and self._due[0][0] < until

    def take(self, until: float, most: int) -> list[tuple[float, Retry]]:
        """Up to so many that are due, oldest first, and since when."""
        taken: list[tuple[float, Retry]] = []
        while len(taken) < most and self.is_due(until):
            at, _, job = heappop(self._due)
            taken.append((at, job))
        return taken
