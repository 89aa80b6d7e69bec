"""Circuits: dependencies that mostly fail are not called for a while, then probed.

The policy is ``tasks.retry.circuit``, fed with what workers counted. A change deletes the
counts that led to it in the same statement, so that both windows of the policy begin at the change.
All tenants get an event when a circuit opens, with the reason if the dependency gave one that
concerns everybody (a revoked key), and when it has closed again. A dependency that no job
type declares has no probes to recover by: a circuit left from earlier is deleted.
"""

from __future__ import annotations

import logging
from collections.abc import Collection

from sqlalchemy import Engine

from app.scheduler.role import RoleQueries
from models.leadership import STILL_LEADER, Leader
from models.presence import NEWS_SECONDS
from models.store.prepared import PreparedStatement
from models.tallies import TallyKind, parse_tenant_name
from tasks.retry.circuit import (
    BAD_SHARE,
    WINDOW_SECONDS,
    Circuit,
    CircuitState,
    Window,
    next_circuit,
)

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
PREPARED = PreparedStatement("read_circuits", READ_CIRCUITS)
#: Parts of tenants whose calls failed; asked for only when that matters.
READ_TENANTS = f"""
    SELECT name, sum(total)::bigint AS calls, sum(amount)::bigint AS failed FROM tallies
    WHERE kind = '{TallyKind.TENANT_DEPENDENCY}'
      AND bucket > now() - make_interval(secs => %(seconds)s)
      AND split_part(name, E'\n', 1) = %(dependency)s
    GROUP BY name HAVING sum(amount) > 0
"""
#: Whether probes of tenants whose calls did not fail are in flight.
READ_OTHERS = """
    SELECT circuit.dependency FROM circuits AS circuit
    WHERE circuit.dependency = %(dependency)s AND EXISTS (
        SELECT FROM jobs
        WHERE status IN ('dispatched', 'running') AND jobs.dependency = circuit.dependency
          AND dispatched_at >= circuit.changed_at AND tenant_id <> ALL (%(failing)s::bigint[]))
"""
#: A probe that ended is counted within this time.
COUNT_SECONDS = 2 * NEWS_SECONDS
#: Refusals of everybody's calls, the most frequent reason first.
READ_OUTAGES = f"""
    SELECT split_part(name, E'\n', 1) AS dependency, split_part(name, E'\n', 2) AS reason,
           sum(total)::bigint AS calls
    FROM tallies
    WHERE kind = '{TallyKind.OUTAGE}' AND bucket > now() - interval '{WINDOW_SECONDS:g} s'
    GROUP BY name ORDER BY calls DESC, name
"""
#: A circuit that becomes half open keeps its reason.
CHANGE = f"""
    WITH changed AS (
        INSERT INTO circuits AS circuit (dependency, state, reason)
        SELECT %(dependency)s, %(state)s, %(reason)s WHERE {STILL_LEADER}
        ON CONFLICT (dependency) DO UPDATE
        SET state = excluded.state, changed_at = now(),
            reason = CASE WHEN excluded.state = 'half_open' THEN circuit.reason
                          ELSE excluded.reason END
        WHERE circuit.state = %(before)s
        RETURNING dependency
    ), forgotten AS (
        DELETE FROM tallies AS tally USING changed
        WHERE tally.kind IN ('{TallyKind.DEPENDENCY}', '{TallyKind.TENANT_DEPENDENCY}',
                             '{TallyKind.OUTAGE}')
          AND split_part(tally.name, E'\n', 1) = changed.dependency
    ), reported AS (
        INSERT INTO events (tenant_id, kind, detail)
        SELECT 0, event.kind, json_strip_nulls(json_build_object(
            'dependency', dependency, 'calls', %(calls)s, 'failed', %(failed)s,
            'reason', nullif(%(reason)s, '')))
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


class Circuits(RoleQueries):
    def __init__(self, engine: Engine, leader: Leader, dependencies: Collection[str]) -> None:
        super().__init__(engine, leader)
        self._dependencies = sorted(dependencies)
        #: Until when a probe of a tenant without failures may not have been counted.
        self._others_until: dict[str, float] = {}

    def run_once(self, now: float) -> int:
        """Change what has to change; how many circuits did."""
        self._write(FORGET, declared=self._dependencies)
        rows = self._read(PREPARED, dependencies=self._dependencies)
        outages = self._outages() if any(row.failed or row.failed_probes for row in rows) else {}
        changed = 0
        for row in rows:
            before = Circuit(CircuitState(row.state), row.changed_at)
            window = Window(int(row.calls), int(row.failed))
            probes = Window(int(row.probes), int(row.failed_probes))
            counted = probes if before.state is CircuitState.HALF_OPEN else window
            outage_calls, reason = outages.get(row.dependency, (0, ""))
            tenants = self._tenants(row.dependency, before, counted, row.clock)
            after = next_circuit(
                *(before, window, probes, row.clock),
                tenants=tenants.values(),
                outages=outage_calls,
                others_probe=self._others_probe(row.dependency, before, tenants, row.clock),
            )
            if after != before:
                opens = after.state is CircuitState.OPEN and 2 * outage_calls >= counted.bad
                changed += self._change(
                    row.dependency, before.state, after.state, counted, reason if opens else ""
                )
        return changed

    def _tenants(
        self, dependency: str, circuit: Circuit, counted: Window, clock: float
    ) -> dict[int, Window]:
        """The failing tenants' parts of what was counted, if a change may depend on them."""
        match circuit.state:
            case CircuitState.CLOSED if counted.bad_share >= BAD_SHARE:
                seconds = WINDOW_SECONDS
            case CircuitState.HALF_OPEN if counted.bad:
                seconds = clock - circuit.changed_at + WINDOW_SECONDS
            case _:
                return {}
        rows = self._read(READ_TENANTS, dependency=dependency, seconds=seconds)
        return {parse_tenant_name(row.name)[1]: Window(row.calls, row.failed) for row in rows}

    def _others_probe(
        self, dependency: str, circuit: Circuit, failing: Collection[int], clock: float
    ) -> bool:
        """Whether probes of tenants that have not failed may still be counted."""
        if circuit.state is CircuitState.HALF_OPEN and failing:
            if self._read(READ_OTHERS, dependency=dependency, failing=list(failing)):
                self._others_until[dependency] = clock + COUNT_SECONDS
            return clock < self._others_until.get(dependency, 0.0)
        return False

    def _outages(self) -> dict[str, tuple[int, str]]:
        """Refused calls and their most frequent reason, by dependency."""
        found: dict[str, tuple[int, str]] = {}
        for row in self._read(READ_OUTAGES):
            calls, reason = found.get(row.dependency, (0, row.reason))
            found[row.dependency] = (calls + row.calls, reason)
        return found

    def _change(
        self,
        dependency: str,
        before: CircuitState,
        after: CircuitState,
        counted: Window,
        reason: str,
    ) -> int:
        event = EVENTS.get((before, after))
        changed = self._read(
            CHANGE,
            dependency=dependency,
            state=after.value,
            before=before.value,
            calls=counted.total,
            failed=counted.bad,
            reason=reason,
            events=[event] if event else [],
        )
        if changed:
            why = f": {reason}" if reason else ""
            logger.warning("circuit of %s: %s, was %s%s", dependency, after, before, why)
        return len(changed)
