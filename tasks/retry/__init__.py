"""PURE: retry policy: what a failure means for its job, and what many mean for a type or tenant.

Constants of one policy stay in its module (``circuit.PROBES``, ``budget.WINDOW_SECONDS``), since
several have the same name.
"""

from tasks.retry.backoff import APP_ERROR_SECONDS
from tasks.retry.budget import budget_left
from tasks.retry.circuit import Circuit, CircuitState, Window, next_circuit
from tasks.retry.decision import (
    CRASH_CAP,
    History,
    RetryLimits,
    RetryStanding,
    Verdict,
    decide_retry,
)
from tasks.retry.quarantine import quarantined
from tasks.retry.spike import spiking
from tasks.retry.throttle import throttled

__all__ = [
    "APP_ERROR_SECONDS",
    "CRASH_CAP",
    "Circuit",
    "CircuitState",
    "History",
    "RetryLimits",
    "RetryStanding",
    "Verdict",
    "Window",
    "budget_left",
    "decide_retry",
    "next_circuit",
    "quarantined",
    "spiking",
    "throttled",
]
