"""Runs of jobs that were given to this worker: each begins before its Celery task, which waits.

A job is given without a message from the broker (`models.jobs.offer`). Celery needs a millisecond
to start a task for it, which the run does not wait for.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field

from models.jobs.claim import Claim, JobRef
from models.jobs.settle import Ending

#: Runs that are remembered until their task takes them; that of a lost connection never does.
MOST_KEPT = 1000


@dataclass(slots=True, eq=False)
class GivenRun:
    """A run that its task waits for."""

    claim: Claim
    #: None: the claim was lost, or its ending could not be settled.
    ending: Future[Ending | None] = field(default_factory=Future)
    #: What it took, its wait for a slot included; set with the ending.
    seconds: float = 0.0
    #: Ends it from outside, so that it is handed back.
    stop: Callable[[], object] = lambda: None


class GivenRuns:
    """The claims of given jobs, and then their runs, until their tasks take them."""

    def __init__(self) -> None:
        self._claims: dict[JobRef, Claim] = {}
        self._runs: dict[JobRef, GivenRun] = {}

    def __contains__(self, ref: JobRef) -> bool:
        return ref in self._claims or ref in self._runs

    def add(self, claim: Claim) -> None:
        self._claims[claim.ref] = claim

    def take_claim(self, ref: JobRef) -> Claim | None:
        """Let the task itself run it; None if its run has begun, or it was handed back."""
        return self._claims.pop(ref, None)

    def begin(self, ref: JobRef) -> GivenRun | None:
        """Let the run begin before its task; None if it was handed back."""
        claim = self._claims.pop(ref, None)
        if claim is None:
            return None
        run = self._runs[ref] = GivenRun(claim)
        if len(self._runs) > MOST_KEPT:
            del self._runs[next(iter(self._runs))]
        return run

    def find(self, ref: JobRef) -> GivenRun | None:
        return self._runs.get(ref)

    def take(self, ref: JobRef) -> GivenRun | None:
        """The run that has begun, for its task: a second message finds none."""
        return self._runs.pop(ref, None)
