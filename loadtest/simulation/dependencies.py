"""What holds lanes back in a cell: the circuit and the quota of a dependency.

The decisions are the product's (:mod:`tasks.retry.circuit`, :mod:`app.policy.quota`); here are the
counts that the scheduler reads from tables.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping

from app.policy.quota import QuotaBucket, QuotaPacer
from tasks.retry.circuit import (
    PROBES,
    WINDOW_SECONDS,
    Circuit,
    CircuitState,
    Window,
    next_circuit,
)


class Dependency:
    def __init__(self, name: str, calls_per_minute: float) -> None:
        self.name = name
        self.circuit = Circuit(CircuitState.CLOSED, 0.0)
        self.opened = 0
        self._pacer = QuotaPacer()
        self._quota = QuotaBucket(declared={"requests": calls_per_minute})
        #: Calls and failed ones by second, as far back as they count.
        self._calls: deque[tuple[float, int, int]] = deque()
        self._now = 0.0
        #: Of the half-open circuit: calls, failures, calls under way, and by tenant.
        self._probes = Window(0, 0)
        self._probing = 0
        self.probes: Counter[int] = Counter()

    def begin_second(self, now: float) -> None:
        self._now = now
        self._pacer.update(self._quota, now)
        while self._calls and self._calls[0][0] <= now - WINDOW_SECONDS:
            self._calls.popleft()
        window = Window(sum(one[1] for one in self._calls), sum(one[2] for one in self._calls))
        after = next_circuit(self.circuit, window, self._probes, now)
        if after is not self.circuit:
            self.opened += after.state is CircuitState.OPEN
            self.circuit = after
            self._calls.clear()
            self._probes, self._probing = Window(0, 0), 0
            self.probes.clear()

    def record(self, calls: int, failed: int) -> None:
        """Calls that ended."""
        if not calls:
            return
        if self._calls and self._calls[-1][0] == self._now:
            _, before, bad = self._calls.pop()
            self._calls.append((self._now, before + calls, bad + failed))
        else:
            self._calls.append((self._now, calls, failed))
        if self.circuit.state is CircuitState.HALF_OPEN:
            self._probes = Window(self._probes.total + calls, self._probes.bad + failed)
            self._probing = max(0, self._probing - calls)

    def allowance(self, now: float) -> int | None:
        """Jobs that may be sent now; None: any number."""
        paced = self._pacer.allowance(now)
        match self.circuit.state:
            case CircuitState.OPEN:
                return 0
            case CircuitState.HALF_OPEN:
                # One at a time, as the scheduler gives them.
                probes = min(1, max(0, PROBES - self._probing))
                return probes if paced is None else min(paced, probes)
        return paced

    def spend(self, jobs: int, tenant: int, now: float) -> None:
        """So many jobs of a tenant were sent."""
        self._pacer.spend(jobs, now)
        if self.circuit.state is CircuitState.HALF_OPEN:
            self._probing += jobs
            self.probes[tenant] += jobs

    @property
    def half_open(self) -> bool:
        return self.circuit.state is CircuitState.HALF_OPEN


class Dependencies(dict[str, Dependency]):
    """By name, which is that of the lane."""

    def begin_second(self, now: float) -> None:
        for each in self.values():
            each.begin_second(now)

    def held(self, now: float) -> dict[str, int]:
        """Lanes that give at most so many jobs now."""
        allowed = {name: each.allowance(now) for name, each in self.items()}
        return {name: jobs for name, jobs in allowed.items() if jobs is not None}

    def given_probes(self) -> Mapping[str, Counter[int]]:
        """Probes of each tenant, by the lanes that may give one."""
        return {name: each.probes for name, each in self.items() if each.half_open}
