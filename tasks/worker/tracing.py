"""Hooks for spans and counts of runs; they cost one comparison while telemetry is off.

``app/telemetry/runs.py`` implements them.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Protocol

from models.jobs.claim import Claim
from models.jobs.settle import Settlement
from tasks.worker.outcome import Outcome

#: The span of a run, as what records how the run ended.
RunSpan = Callable[[Outcome], None]


@dataclass(slots=True)
class ModelCall:
    """A call of a language model; whoever makes it fills in what the answer says."""

    model: str = ""
    tokens_in: int | None = None
    tokens_out: int | None = None


class Telemetry(Protocol):
    """What telemetry implements."""

    def message(self) -> object:
        """The span of the message whose jobs are about to run."""

    def span(self, claim: Claim, worker: str, message: object) -> AbstractContextManager[RunSpan]:
        """The span of a run, whose message has the span ``message``."""

    def count(self, claim: Claim, settlement: Settlement, waited: float | None) -> None:
        """Count a run whose ending was written; at its job's first start also the wait."""

    def model_call(self, provider: str, model: str) -> AbstractContextManager[ModelCall]:
        """The duration of a call and its tokens."""


#: Set when telemetry starts.
telemetry: Telemetry | None = None

_NO_SPAN: AbstractContextManager[RunSpan] = nullcontext(lambda _: None)


def message_span() -> object:
    """The span of the current message; its jobs may run in other threads."""
    return None if telemetry is None else telemetry.message()


def run_span(claim: Claim, worker: str, message: object = None) -> AbstractContextManager[RunSpan]:
    return _NO_SPAN if telemetry is None else telemetry.span(claim, worker, message)


def model_call(provider: str, model: str) -> AbstractContextManager[ModelCall]:
    """While a model is called."""
    if telemetry is None:
        return nullcontext(ModelCall())
    return telemetry.model_call(provider, model)


def note_settled(claim: Claim, settlement: Settlement, waited: float | None) -> None:
    if telemetry is not None:
        telemetry.count(claim, settlement, waited)
