"""Circuit breaker of a dependency.

    closed ──half of the calls fail──▶ open ──60 s──▶ half open ──three good calls──▶ closed
                                        ▲                 │
                                        └─────────────────┘
                            bad calls of two tenants, or of one alone

A circuit holds back all tenants, so the failures of one of them do not open it while the calls of
others succeed: the jobs of that one just come back later. A dependency that refuses everybody's
calls (a revoked key, an unpaid account) says so: fewer calls are enough to open its circuit.

The caller counts calls. Both counts must begin at the circuit's last change, or failures from
before it would reopen what has just closed.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum

#: Calls that count are at most this old.
WINDOW_SECONDS = 60.0
#: Fewer calls than this change nothing.
MIN_CALLS = 10
#: So few are enough if they were refused for a reason that concerns all tenants.
MIN_OUTAGES = 3
#: Share of failed calls that opens a circuit.
BAD_SHARE = 0.5
#: How long a circuit stays open.
OPEN_SECONDS = 60.0
#: Good calls that close a half-open circuit.
PROBES_WANTED = 3
#: Jobs of a half-open dependency that may be in flight: as many as it takes to close.
PROBES = PROBES_WANTED
#: Probes that one tenant gets in ``OPEN_SECONDS``, however fast they fail.
MOST_PROBES = MIN_CALLS


@dataclass(frozen=True, slots=True)
class Window:
    """Calls or runs of a period: how many, and how many of them failed."""

    total: int
    bad: int

    @property
    def bad_share(self) -> float:
        """Share of the bad ones; 0 if there are none at all."""
        return self.bad / self.total if self.total else 0.0


def without(window: Window, own: Window) -> Window:
    """What is left of a window without a tenant's part of it.

    Both are counted a little apart in time, so the part may exceed the whole.
    """
    bad = max(0, window.bad - own.bad)
    return Window(max(bad, window.total - own.total), bad)


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


def next_circuit(
    circuit: Circuit,
    window: Window,
    probes: Window,
    now: float,
    *,
    tenants: Collection[Window] = (),
    outages: int = 0,
    others_probe: bool = False,
) -> Circuit:
    """The circuit at ``now``: the same one, or one that changed at this moment.

    ``window`` counts the calls of the last ``WINDOW_SECONDS``, ``probes`` those since the
    circuit is half open. ``tenants`` are the parts of either that belong to tenants whose calls
    failed, ``outages`` the failures that concern all tenants. ``others_probe``: probes of tenants
    without failures are in flight.
    """
    state = circuit.state
    match circuit.state:
        case CircuitState.CLOSED if is_down(window, tenants, outages):
            state = CircuitState.OPEN
        case CircuitState.OPEN if now - circuit.changed_at >= OPEN_SECONDS:
            state = CircuitState.HALF_OPEN
        case CircuitState.HALF_OPEN:
            state = probed(probes, tenants, outages, others_probe)
    return circuit if state is circuit.state else Circuit(state, now)


def is_down(window: Window, tenants: Collection[Window], outages: int) -> bool:
    """Whether half of enough calls failed, and not those of one tenant alone.

    Failures hang on one tenant if most calls of the others succeed. If nobody else made any,
    that tenant's calls decide. Refusals that concern all tenants need fewer calls.
    """
    if outages >= MIN_OUTAGES and outages >= BAD_SHARE * window.total:
        return True
    if window.total < MIN_CALLS or window.bad_share < BAD_SHARE:
        return False
    others = [without(window, own) for own in tenants]
    return all(rest.bad_share >= BAD_SHARE for rest in others if rest.total)


def probed(
    probes: Window, tenants: Collection[Window], outages: int, others_probe: bool
) -> CircuitState:
    """The state of a half-open circuit after these probes.

    One bad probe outweighs any number of good ones: opening again costs a minute, closing too early
    costs every job a call. A probe without an answer decides nothing. If all bad ones are of one
    tenant, good ones of the others close the circuit; a few bad ones are tolerated so that the
    others get to probe, and any number while they do: bad ones may come first because they are
    the fastest.
    """
    if not probes.bad:
        enough = probes.total >= PROBES_WANTED
        return CircuitState.CLOSED if enough else CircuitState.HALF_OPEN
    suspect = next((own for own in tenants if own.bad >= probes.bad), None)
    if suspect is None or outages:
        return CircuitState.OPEN
    others = without(probes, suspect)
    if others.total >= PROBES_WANTED:
        return CircuitState.CLOSED
    if others_probe:
        return CircuitState.HALF_OPEN
    tolerated = MIN_CALLS if others.total else PROBES_WANTED
    return CircuitState.OPEN if suspect.bad >= tolerated else CircuitState.HALF_OPEN
