"""A scorer that takes its time and costs nothing: for trying, testing and measuring the platform.

The score is a hash of the application and therefore the same on every run, machine and Python
version. It says nothing about the application. Waiting is ``time.sleep``, so under gevent other
greenlets run meanwhile.
"""

from __future__ import annotations

import time

from tasks.quota import Report, nobody
from tasks.scorers.protocol import Application, Score, Usage
from tasks.scorers.rubric import CRITERIA, RUBRIC_HASH

_MODEL = "simulated"


class SimulatedScorer:
    """Waits ``seconds``, then gives the score that the application's hash amounts to."""

    def __init__(self, *, seconds: float) -> None:
        self._seconds = seconds

    def prepare(self) -> None:
        """Nothing to do."""

    def score(self, application: Application, report: Report = nobody) -> Score:
        """A repeatable score between 0.00 and 100.00; there is no quota to report."""
        if self._seconds > 0:
            time.sleep(self._seconds)
        digest = bytes.fromhex(application.fingerprint())
        score = int.from_bytes(digest[:8], "big") % 10_001 / 100
        return Score(
            score=score,
            rationale=_rationale(score, digest[8], digest[9]),
            model=_MODEL,
            rubric=RUBRIC_HASH,
            usage=Usage(input_tokens=0, output_tokens=0),
        )


def _rationale(score: float, pick: int, step: int) -> str:
    strongest = pick % len(CRITERIA)
    weakest = (strongest + 1 + step % (len(CRITERIA) - 1)) % len(CRITERIA)
    return (
        f"Simulated {score:.2f}: strongest in {CRITERIA[strongest].title}, "
        f"weakest in {CRITERIA[weakest].title}."
    )
