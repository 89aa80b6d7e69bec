"""Circuits: dependencies that mostly fail are not called for a while, then probed.

The policy is ``tasks.retry.circuit``, fed with what workers counted. A change deletes the
counts that led to it in the same statement, so that both windows of the policy begin at the change.
All tenants get an event when a circuit opens and when it has closed again. A dependency that no job
type declares has no probes to recover by: a circuit left from earlier is deleted.
"""

from __future__ import annotations

import logging
from collections.abc import Collection

from sqlalchemy import Engine

from app.scheduler.role import LeaderQueries
from models.leadership import STILL_LEADER, Leader
from models.tallies import TallyKind
from tasks.retry.circuit import WINDOW_SECONDS, Circuit, CircuitState, Window, next_circuit

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
    ), reported AS (
        INSERT INTO events (tenant_id, kind, detail)
        SELECT 0, event.kind, json_build_object(
            'dependency', dependency, 'calls', %(calls)s, 'failed', %(failed)s)
        FROM changed, unnest(%(events)s::text[]) AS event (kind)
    )
    SELECT dependency FROM changed
"""
FORGET = f"DELETE FROM circuits WHERE dependency <> ALL (%(declared)s::text[]) AND {STILL_LEADER}"
#: Events to all tenants, by the states before and after.
EVENTS = {
    (CircuitState.CLOSED, CircuitState.OPEN): "dependency_circuit_open",
    (CircuitState.HALF_OPEN, CircuitState.CLOSED): "dependency_circuit_closed",
}


class Circuits(LeaderQueries):
    def __init__(self, engine: Engine, leader: Leader, dependencies: Collection[str]) -> None:
        super().__init__(engine, leader)
        self._dependencies = sorted(dependencies)

    def run_once(self, now: float) -> int:
        """Change what has to change; how many circuits did."""
        self._write(FORGET, declared=self._dependencies)
        changed = 0
        for row in self._read(READ_CIRCUITS, dependencies=self._dependencies):
            before = Circuit(CircuitState(row.state), row.changed_at)
            window = Window(int(row.calls), int(row.failed))
            probes = Window(int(row.probes), int(row.failed_probes))
            after = next_circuit(before, window, probes, row.clock)
            if after != before:
                counted = probes if before.state is CircuitState.HALF_OPEN else window
                changed += self._change(row.dependency, before.state, after.state, counted)
        return changed

    def _change(
        self, dependency: str, before: CircuitState, after: CircuitState, counted: Window
    ) -> int:
        event = EVENTS.get((before, after))
        changed = self._read(
            CHANGE,
            dependency=dependency,
            state=after.value,
            before=before.value,
            calls=counted.total,
            failed=counted.bad,
            events=[event] if event else [],
        )
        if changed:
            logger.warning("circuit of %s: %s, was %s", dependency, after, before)
        return len(changed)
