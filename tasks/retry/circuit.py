"""Circuit breaker of a dependency.

    closed ──half of the calls fail──▶ open ──60 s──▶ half open ──three good calls──▶ closed
                                        ▲                 │
                                        └──one bad call───┘

The caller counts calls. Both counts must begin at the circuit's last change, or failures from
before it would reopen what has just closed.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

#: Calls that count are at most this old.
WINDOW_SECONDS = 60.0
#: Fewer calls than this change nothing.
MIN_CALLS = 10
#: Share of failed calls that opens a circuit.
BAD_SHARE = 0.5
#: How long a circuit stays open.
OPEN_SECONDS = 60.0
#: Good calls that close a half-open circuit.
PROBES_WANTED = 3
#: Jobs of a half-open dependency that may be in flight: as many as it takes to close.
PROBES = PROBES_WANTED


@dataclass(frozen=True, slots=True)
class Window:
    """Calls or runs of a period: how many, and how many of them failed."""

    total: int
    bad: int

    @property
    def bad_share(self) -> float:
        """Share of the bad ones; 0 if there are none at all."""
        return self.bad / self.total if self.total else 0.0


class CircuitState(StrEnum):
    """Whether a dependency may be called."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


@dataclass(frozen=True, slots=True)
class Circuit:
    """The state of a circuit."""

    state: CircuitState
    #: When it began, by the clock of ``now``.
    changed_at: float


def next_circuit(circuit: Circuit, window: Window, probes: Window, now: float) -> Circuit:
    """The circuit at ``now``: the same one, or one that changed at this moment.

    ``window`` counts the calls of the last ``WINDOW_SECONDS``, ``probes`` those since the
    circuit is half open. One bad probe outweighs any number of good ones: opening again
    costs a minute, closing too early costs every job a call. A probe without an answer
    decides nothing, so the circuit stays half open until it has one.
    """
    match circuit.state:
        case CircuitState.CLOSED if window.total >= MIN_CALLS and window.bad_share >= BAD_SHARE:
            return Circuit(CircuitState.OPEN, now)
        case CircuitState.OPEN if now - circuit.changed_at >= OPEN_SECONDS:
            return Circuit(CircuitState.HALF_OPEN, now)
        case CircuitState.HALF_OPEN if probes.bad:
            return Circuit(CircuitState.OPEN, now)
        case CircuitState.HALF_OPEN if probes.total >= PROBES_WANTED:
            return Circuit(CircuitState.CLOSED, now)
        case _:
            return circuit
