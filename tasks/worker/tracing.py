"""Hooks for spans and counts of runs; they cost one comparison while telemetry is off.

What is told, and by which names, is the telemetry's affair: see ``app/telemetry/runs.py``.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

from models.jobs.claim import Claim
from models.jobs.settle import Settlement
from tasks.worker.outcome import Outcome


class RunSpan(Protocol):
    """The span of a run."""

    def note(self, outcome: Outcome) -> None:
        """Say how the run ended."""


class Telemetry(Protocol):
    """Who listens."""

    def message(self) -> object:
        """The message whose jobs are about to run here."""

    def span(self, claim: Claim, worker: str, message: object) -> AbstractContextManager[RunSpan]:
        """A run from its beginning to its end."""

    def count(self, claim: Claim, settlement: Settlement) -> None:
        """The end of a run was written."""


class Unheard:
    """The span of a run that nobody listens to."""

    def note(self, outcome: Outcome) -> None:
        """Nothing."""


#: Set by the telemetry's set-up.
telemetry: Telemetry | None = None

_UNHEARD: AbstractContextManager[RunSpan] = nullcontext(Unheard())


def message_span() -> object:
    """The span of the message at hand, for its runs: they may be in threads of their own."""
    return None if telemetry is None else telemetry.message()


def run_span(claim: Claim, worker: str, message: object = None) -> AbstractContextManager[RunSpan]:
    """The span of one run; ``message`` is what brought it, as ``message_span`` gave it."""
    return _UNHEARD if telemetry is None else telemetry.span(claim, worker, message)


def note_settled(claim: Claim, settlement: Settlement) -> None:
    """Count a run whose end was written."""
    if telemetry is not None:
        telemetry.count(claim, settlement)
