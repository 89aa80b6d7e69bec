"""Circuits: dependencies that mostly fail are not called for a while, then asked carefully.

The policy is :func:`tasks.retry.next_circuit`; here it is fed with what the workers counted,
and its answer is written, if nobody wrote another one meanwhile. A change forgets the counts
that led to it in the same statement, so that both windows of the policy begin at the change.

Everybody is told when a circuit opens and when it is closed again, not of what happens in
between: a dependency that stays away is no news every minute.

A dependency that no job type declares has no probes to recover by: its failures are counted
and nothing else, and a circuit that is left from earlier is forgotten.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from dataclasses import dataclass

from sqlalchemy import Engine

from models.leadership import STILL_LEADER, Leader
from models.store.session import connect
from models.tallies import TallyKind
from tasks.retry import Circuit, CircuitState, Window, next_circuit
from tasks.retry.circuit import WINDOW_SECONDS

logger = logging.getLogger(__name__)

#: Probes may take long: all that was counted since the circuit is half open counts.
READ_CIRCUITS = f"""
    SELECT known.dependency, coalesce(circuit.state, 'closed') AS state,
           extract(epoch FROM coalesce(circuit.changed_at, now()))::float8 AS changed_at,
           extract(epoch FROM now())::float8 AS clock,
           coalesce(sum(total) FILTER (
               WHERE bucket > now() - interval '{WINDOW_SECONDS:g} s'), 0) AS calls,
           coalesce(sum(amount) FILTER (
               WHERE bucket > now() - interval '{WINDOW_SECONDS:g} s'), 0) AS failed,
           coalesce(sum(total) FILTER (WHERE circuit.state = 'half_open'), 0) AS probes,
           coalesce(sum(amount) FILTER (WHERE circuit.state = 'half_open'), 0) AS failed_probes
    FROM unnest(%(dependencies)s::text[]) AS known (dependency)
    LEFT JOIN circuits AS circuit ON circuit.dependency = known.dependency
    LEFT JOIN tallies AS tally ON tally.kind = '{TallyKind.DEPENDENCY}'
        AND tally.name = known.dependency
        AND tally.bucket > least(
            now() - interval '{WINDOW_SECONDS:g} s',
            (SELECT min(changed_at) - interval '1 minute' FROM circuits
             WHERE state = 'half_open'))
    GROUP BY known.dependency, circuit.state, circuit.changed_at
"""
CHANGE = f"""
    WITH changed AS (
        INSERT INTO circuits AS circuit (dependency, state)
        SELECT %(dependency)s, %(state)s WHERE {STILL_LEADER}
        ON CONFLICT (dependency) DO UPDATE SET state = excluded.state, changed_at = now()
        WHERE circuit.state = %(before)s
        RETURNING dependency
    ), forgotten AS (
        DELETE FROM tallies AS tally USING changed
        WHERE tally.kind = '{TallyKind.DEPENDENCY}' AND tally.name = changed.dependency
    ), told AS (
        INSERT INTO events (tenant_id, kind, detail)
        SELECT 0, event.kind, json_build_object(
            'dependency', dependency, 'calls', %(calls)s, 'failed', %(failed)s)
        FROM changed, unnest(%(events)s::text[]) AS event (kind)
    )
    SELECT dependency FROM changed
"""
FORGET = f"DELETE FROM circuits WHERE dependency <> ALL (%(declared)s::text[]) AND {STILL_LEADER}"
#: What everybody hears of, by the states before and after.
TOLD = {
    (CircuitState.CLOSED, CircuitState.OPEN): "dependency_circuit_open",
    (CircuitState.HALF_OPEN, CircuitState.CLOSED): "dependency_circuit_closed",
}


@dataclass(frozen=True, slots=True)
class CircuitReading:
    """A dependency as the tables have it."""

    dependency: str
    circuit: Circuit
    #: Calls of the policy's window, and all since the circuit changed.
    window: Window
    probes: Window
    #: The database's clock.
    now: float


class Circuits:
    """Opens and closes the circuits of the dependencies that job types declare."""

    def __init__(self, engine: Engine, leader: Leader, dependencies: Collection[str]) -> None:
        self._engine = engine
        self._leader = leader
        self._dependencies = sorted(dependencies)

    def run_once(self, now: float) -> int:
        """Change what has to change; how many circuits did."""
        changed = 0
        for reading in self._read():
            after = next_circuit(reading.circuit, reading.window, reading.probes, reading.now)
            if after != reading.circuit:
                changed += self._change(reading, after.state)
        return changed

    def _read(self) -> list[CircuitReading]:
        with connect(self._engine) as connection:
            connection.exec_driver_sql(
                FORGET, {"declared": self._dependencies, "epoch": self._leader.epoch}
            )
            rows = connection.exec_driver_sql(
                READ_CIRCUITS, {"dependencies": self._dependencies}
            ).all()
        return [
            CircuitReading(
                row.dependency,
                Circuit(CircuitState(row.state), row.changed_at),
                window=Window(int(row.calls), int(row.failed)),
                probes=Window(int(row.probes), int(row.failed_probes)),
                now=row.clock,
            )
            for row in rows
        ]

    def _change(self, reading: CircuitReading, state: CircuitState) -> int:
        before = reading.circuit.state
        counted = reading.probes if before is CircuitState.HALF_OPEN else reading.window
        event = TOLD.get((before, state))
        with connect(self._engine) as connection:
            row = connection.exec_driver_sql(
                CHANGE,
                {
                    "dependency": reading.dependency,
                    "state": state.value,
                    "before": before.value,
                    "calls": counted.total,
                    "failed": counted.bad,
                    "events": [event] if event else [],
                    "epoch": self._leader.epoch,
                },
            ).first()
        if row is None:
            return 0
        logger.warning("circuit of %s: %s, was %s", reading.dependency, state, before)
        return 1
