"""Retry policy, pure: what an outcome means for the job, and what many mean for all.

Standard library only; ``now`` and chance are passed in. Constants of one policy stay in its
module (``circuit.PROBES``, ``budget.WINDOW_SECONDS``), since several are called alike.
"""

from tasks.retry.backoff import APP_ERROR_SECONDS, backoff_seconds, jittered
from tasks.retry.budget import budget_left
from tasks.retry.circuit import Circuit, CircuitState, next_circuit
from tasks.retry.decision import (
    CRASH_CAP,
    History,
    RetryDecision,
    RetryLimits,
    RetryStanding,
    Verdict,
    decide_retry,
)
from tasks.retry.quarantine import quarantined
from tasks.retry.spike import spiking
from tasks.retry.throttle import throttled
from tasks.retry.window import Window

__all__ = [
    "APP_ERROR_SECONDS",
    "CRASH_CAP",
    "Circuit",
    "CircuitState",
    "History",
    "RetryDecision",
    "RetryLimits",
    "RetryStanding",
    "Verdict",
    "Window",
    "backoff_seconds",
    "budget_left",
    "decide_retry",
    "jittered",
    "next_circuit",
    "quarantined",
    "spiking",
    "throttled",
]
