"""Pacing: how many due jobs may be queued now. Pure.

A hundred thousand jobs may be due at one instant. Queued, they would be ahead of whatever is
submitted after them; scheduled, they cost nothing. So the queue is filled only as far as the pool
needs to stay busy. If other jobs already fill it, due jobs are still queued at half of the pool's
speed: slowed down, never starved. The order, oldest due first, is the caller's.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

#: Seconds of work that the queue holds in advance, beyond the time until the next turn. Twice as
#: much was measured to double the wait of others during a stampede, and to end it no sooner.
RESERVE_SECONDS = 0.05
#: Share of what a pool ends that due jobs get when others fill the queue …
FLOOR_SHARE = 0.5
#: … and at least one job per slot and minute. A fixed number of jobs per second was rejected:
#: what a fast pool does not notice is a stampede to a slow one.
FLOOR_PER_SLOT_SECOND = 1 / 60
#: A longer pause counts as this long: an outage saves up no stampede.
MOST_SECONDS = 1.0


def allowance(
    *, queued: int, slots: int, ended_per_second: float, seconds: float, per_second: float
) -> float:
    """Due jobs to queue now, ``seconds`` after the last turn, never above ``per_second``.

    ``queued`` counts what waits for a slot, queued or at the broker, but not behind an open
    circuit. ``ended_per_second`` is a mean over some seconds; a peak would queue too many.

    Not a whole number: at short turns the floor is less than one job, and rounded down it would be
    none for ever. :class:`Pace` keeps the fraction.
    """
    slots = max(slots, 1)  # a pool without workers shows the autoscaler one job
    seconds = min(max(seconds, 0.0), MOST_SECONDS)
    # Includes the length of the turn: else a slow turn lets the pool run dry, it ends fewer jobs,
    # and the next target is lower still.
    target = max(slots, ended_per_second * (RESERVE_SECONDS + seconds))
    floor = max(ended_per_second * FLOOR_SHARE, slots * FLOOR_PER_SLOT_SECOND) * seconds
    return min(max(target - queued, floor), per_second * seconds)


@dataclass(frozen=True, slots=True)
class Pace:
    """The pace of one pool from turn to turn."""

    #: Jobs per second that may be queued at most.
    per_second: float
    #: Fraction of a job left over from earlier turns.
    carried: float = 0.0

    def turn(
        self, *, queued: int, slots: int, ended_per_second: float, seconds: float
    ) -> tuple[int, Pace]:
        """Whole jobs to queue now, and the pace of the next turn."""
        exact = self.carried + allowance(
            queued=queued,
            slots=slots,
            ended_per_second=ended_per_second,
            seconds=seconds,
            per_second=self.per_second,
        )
        whole = int(exact)
        return whole, replace(self, carried=exact - whole)
