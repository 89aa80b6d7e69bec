"""Mover: makes the steps of moves of tenants between cells.

The leading scheduler of every cell takes moves whose runner gave no sign for a while, of any
tenants, and goes on with those that it has: see `models.cells.moves`. A move that cannot go on, say
because a cell does not answer, is put off and holds up no other; why is in its row.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection

from sqlalchemy.exc import SQLAlchemyError

from models.cells.away import StillAdmitting
from models.cells.databases import CellDatabases, UnknownCell
from models.cells.fences import StaleRunner
from models.cells.move_steps import KNOWN_SECONDS, MoveRunner
from models.cells.moves import (
    GIVEN_UP,
    LEASE_SECONDS,
    REFUSING,
    Move,
    MoveLost,
    MoveStep,
    advance,
    raise_fence,
    renew,
    take_move,
)
from models.cells.tenant_rows import CannotMove
from models.store.errors import StateStoreError

logger = logging.getLogger(__name__)

#: Pause between two looks for moves.
MOVE_SECONDS = 0.2
#: A move that waits for jobs in flight, or has much to copy, lets others have a turn.
WAIT_SECONDS = 0.3
#: A move that could not go on is left alone for so long; its lease is longer.
PAUSE_SECONDS = 5.0
#: A move that cannot go on for so long while its tenant is refused is taken back.
GIVE_UP_SECONDS = 20.0
#: No step begins after this time in a turn, unless the tenant is refused until it is made.
TURN_SECONDS = 5.0
#: The longest message that is kept of an error.
MOST_CHARACTERS = 500


class Mover:
    """Runs moves under a name of its own."""

    def __init__(
        self,
        databases: CellDatabases,
        name: str,
        *,
        known_seconds: float = KNOWN_SECONDS,
        lease_seconds: float = LEASE_SECONDS,
    ) -> None:
        self._databases = databases
        self._name = name
        self._lease_seconds = lease_seconds
        self._known_seconds = known_seconds
        self._runners: dict[str, MoveRunner] = {}
        #: Tenants whose moves are left alone, and until when.
        self._paused: dict[str, float] = {}

    def run_once(self, now: float) -> int:
        """Go on with every move that is ours or nobody's; how many steps were made."""
        # Not from ``now``: other roles of this thread may have taken long.
        ended, seen, until = 0, set[str](), time.monotonic() + TURN_SECONDS
        self._paused = {tenant: until for tenant, until in self._paused.items() if until > now}
        while time.monotonic() < until:
            move = self._take(without={*seen, *self._paused})
            if move is None:
                break
            seen.add(move.tenant)
            ended += self._run(move, until)
        return ended

    def _take(self, *, without: Collection[str] = (), only: str | None = None) -> Move | None:
        return take_move(
            self._databases.registry,
            self._name,
            without=without,
            only=only,
            lease_seconds=self._lease_seconds,
        )

    def _run(self, first: Move, until: float) -> int:
        """Steps of one move, as long as it goes on; over time only while its tenant is refused."""
        ended = 0
        move: Move | None = first
        while move is not None and self._make_step(move):
            ended += 1
            move = self._take(only=first.tenant)
            if move is None:
                self._runners.pop(first.tenant, None)
            elif time.monotonic() > until and move.step not in REFUSING:
                break
        return ended

    def _make_step(self, move: Move) -> bool:
        """A turn of one move; whether that ended its step."""
        runner = self._runners.get(move.tenant)
        if runner is None or runner.move.fence != move.fence:
            runner = MoveRunner(self._databases, move, known_seconds=self._known_seconds)
            self._runners[move.tenant] = runner
        runner.renewed(move)
        try:
            # A former primary may still take writes: rows that went there would be lost.
            self._databases.refresh()
            if runner.run_once():
                logger.info("the move of %s: %s is done", move.tenant, move.step)
                return True
            self._paused[move.tenant] = time.monotonic() + WAIT_SECONDS
        except MoveLost:
            logger.info("the move of %s was taken over or cancelled", move.tenant)
            del self._runners[move.tenant]
        except StaleRunner as stale:
            self._overtake(move, stale.known)
        except (CannotMove, StillAdmitting, UnknownCell, StateStoreError, SQLAlchemyError) as error:
            self._put_off(move, error)
        return False

    def _overtake(self, move: Move, known: int) -> None:
        """The lease is ours: whoever had the higher fence has lost it, in whichever way."""
        del self._runners[move.tenant]
        try:
            raise_fence(self._databases.registry, move, known)
        except MoveLost:
            logger.info("the move of %s was taken over", move.tenant)

    def _put_off(self, move: Move, error: Exception) -> None:
        message = (str(error).strip() or type(error).__name__)[:MOST_CHARACTERS]
        logger.warning("the move of %s cannot go on (%s): %s", move.tenant, move.step, message)
        self._paused[move.tenant] = time.monotonic() + PAUSE_SECONDS
        try:
            if move.step in GIVEN_UP and move.age_seconds > GIVE_UP_SECONDS:
                # Its tenant is refused meanwhile, although the cell that it lives in may be well.
                logger.warning("the move of %s is taken back", move.tenant)
                advance(self._databases.registry, move, MoveStep.UNDO)
                del self._paused[move.tenant]
            else:
                renew(self._databases.registry, move, error=message)
        except MoveLost:
            del self._runners[move.tenant]
