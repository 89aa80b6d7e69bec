"""Replayer: queues the dead letters of running replays, at their tenants' rates.

Every tenth of a second the replays that waited longest get a part of the turn: candidates are read,
tokens taken for as many as the tenant's limits have room for, and these queued by one statement
that also counts them. Half of a tenant's burst stays with its submissions. A tenant without room is
left alone for a moment.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

from sqlalchemy import Engine, Row
from sqlalchemy.exc import DBAPIError

from app.admission.depth import TenantQueue
from app.admission.tenant_limits import Hold, TenantLimits
from app.scheduler.role import RoleQueries
from models.jobs.ids import BELOW_ALL
from models.jobs.replay_requests import NEXT_REPLAYS, PASS_OVER, PEEK, WORK
from models.leadership import Leader
from models.store.errors import StatementTooSlow

logger = logging.getLogger(__name__)

REPLAY_SECONDS = 0.1
#: Pause after a look that found no replay.
IDLE_SECONDS = 0.5
#: Jobs of one turn, and replays among which they are divided; the dispatcher waits meanwhile.
JOBS_A_TURN = 500
REPLAYS_A_TURN = 10
#: Dead letters that one turn looks at.
LOOKS_A_TURN = 5_000
#: A replay whose statement was too slow is left alone for this long, as is its tenant.
SLOW_SECONDS = 5.0


class Candidates(NamedTuple):
    """The next jobs of a replay."""

    #: Their ids and queues.
    jobs: Sequence[tuple[str, TenantQueue]]
    #: How far was looked.
    last: str
    #: There are no more dead letters behind.
    at_end: bool


class Choice(NamedTuple):
    """What of the candidates is queued."""

    ids: list[str]
    #: Where the walk goes on.
    position: str
    #: Jobs were passed, to be met in another pass.
    passed: bool
    #: Nothing lacked a token.
    complete: bool


def choose(
    candidates: Candidates,
    left: dict[TenantQueue, int],
    full: Collection[TenantQueue],
    position: str,
) -> Choice:
    """The ids that there is room ``left`` for, which is taken, and where the walk goes on.

    It passes jobs of a full queue and stops before the first that lacks a token.
    """
    chosen: list[str] = []
    passed = stopped = False
    for job_id, queue in candidates.jobs:
        if left.get(queue, 0) > 0:
            left[queue] -= 1
            chosen.append(job_id)
        elif queue in full:
            passed = True
        else:
            stopped = True
        if not stopped:
            position = job_id
    return Choice(chosen, position if stopped else candidates.last, passed, not stopped)


class Replayer(RoleQueries):
    def __init__(self, engine: Engine, leader: Leader, tenant_limits: TenantLimits) -> None:
        super().__init__(engine, leader)
        self._tenant_limits = tenant_limits
        #: Tenants without room, and until when.
        self._held: dict[int, float] = {}
        self._due = 0.0
        #: Whether the last turn found a replay that is running.
        self.has_work = True

    def run_once(self, now: float) -> int:
        """Queue what there is room for; how many jobs."""
        self._held = {tenant_id: until for tenant_id, until in self._held.items() if until > now}
        if now < self._due:
            return 0
        running = self._read(NEXT_REPLAYS, held=list(self._held), limit=REPLAYS_A_TURN)
        self.has_work = bool(running or self._held)
        if not running:
            self._due = now + (0.0 if self._held else IDLE_SECONDS)
            return 0
        found, held = self._look_at(running)
        wanted = Counter(queue for _, candidates in found for _, queue in candidates.jobs)
        granted = self._tenant_limits.take(wanted, spare=True) if wanted else None
        left, full = (dict(granted.jobs), granted.full) if granted else ({}, frozenset())
        held |= granted.held if granted else {}
        queued = 0
        for replay, candidates in found:
            choice = choose(candidates, left, full, replay.position)
            reason = held[replay.tenant_id].code or None if replay.tenant_id in held else None
            try:
                queued += self._work(replay, choice, choice.complete and candidates.at_end, reason)
            except (StatementTooSlow, DBAPIError) as error:
                held[replay.tenant_id] = self._pass_over(replay, error)
        for tenant_id, hold in held.items():
            self._held[tenant_id] = now + hold.seconds
        return queued

    def _look_at(
        self, running: Sequence[Row[Any]]
    ) -> tuple[list[tuple[Row[Any], Candidates]], dict[int, Hold]]:
        """The next jobs of these replays; and the tenants of those that cannot be read now."""
        found, held = [], {}
        for replay in running:
            try:
                found.append((replay, self._peek(replay, len(running))))
            except (StatementTooSlow, DBAPIError) as error:
                held[replay.tenant_id] = self._pass_over(replay, error)
                if isinstance(error, StatementTooSlow):
                    break  # others may be as slow, and the dispatcher waits
        return found, held

    def _pass_over(self, replay: Row[Any], error: Exception) -> Hold:
        """Leave its tenant alone for a while; then another replay of the tenant goes first."""
        reason = str(getattr(error, "orig", error)).strip()  # not the statement
        logger.warning("replay %s: a statement failed: %s", replay.id, reason)
        self._write(PASS_OVER, replay=replay.id)
        return Hold("", SLOW_SECONDS)

    def _peek(self, replay: Row[Any], sharing: int) -> Candidates:
        """The next jobs of one of so many replays that share the turn."""
        room = JOBS_A_TURN // sharing
        if replay.most is not None:
            room = min(room, replay.most - replay.done)
        looks = LOOKS_A_TURN // sharing
        rows = self._read(PEEK, **{**replay._mapping, "room": max(0, room), "looks": looks})
        jobs = [(row.id, (replay.tenant_id, row.pool)) for row in rows if row.id is not None]
        if room <= 0:
            return Candidates((), replay.position, at_end=True)
        if len(jobs) == room:
            return Candidates(jobs, jobs[-1][0], at_end=False)
        return Candidates(jobs, rows[0].last or replay.position, rows[0].looked_at < looks)

    def _work(self, replay: Row[Any], choice: Choice, at_end: bool, reason: str | None) -> int:
        """Queue the chosen ones; at the end, begin another pass or be finished."""
        again = replay.again or choice.passed
        enough = replay.most is not None and replay.done >= replay.most
        # One that is locked now is found by another pass.
        ended = enough or (at_end and not again and not choice.ids)
        restart = at_end and again and not ended
        [row] = self._read(
            WORK,
            replay=replay.id,
            tenant_id=replay.tenant_id,
            before=replay.before,
            chosen=choice.ids,
            position=BELOW_ALL if restart else choice.position,
            again=again and not restart,
            reason=reason,
            ended=ended,
        )
        if ended:
            logger.info("replay %s is finished: %d jobs", replay.id, replay.done)
        return int(row.queued)
