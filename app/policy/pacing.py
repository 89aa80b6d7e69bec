"""How many due jobs may join a pool's queue. Pure.

A hundred thousand jobs may be due at one instant. In the queue they would stand in front of
whatever is submitted after them; outside of it they cost nothing. So the queue is filled only
as far as the pool needs it to stay busy. If others already fill it, due jobs still join at
half of the pool's speed: slowed down, never starved, and never a queue of their own.

Says nothing about which jobs join: the oldest due first is the caller's order.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

#: Endings that the queue holds in advance, beyond those until the next turn. Twice as many were
#: measured to double the wait of others during a stampede, and to end it no sooner.
RESERVE_SECONDS = 0.05
#: Share of what a pool ends that due jobs get when others fill the queue …
FLOOR_SHARE = 0.5
#: … and the least of it: a job a slot and minute. A fixed number of jobs a second was
#: rejected: what a fast pool does not notice is a stampede to a slow one.
FLOOR_PER_SLOT_SECOND = 1 / 60
#: A longer pause counts as this long: after an outage nobody has saved up a stampede.
MOST_SECONDS = 1.0


def allowance(
    *, queued: int, slots: int, ended_per_second: float, seconds: float, per_second: float
) -> float:
    """Due jobs that may join now, ``seconds`` after the last turn, never above ``per_second``.

    ``queued`` counts what waits for a slot, in the queue or beyond it. Jobs parked behind an
    open circuit do not: they keep no pool busy. ``ended_per_second`` is a mean over some
    seconds; a peak lets too many join.

    Not a whole number: at short turns the floor is less than one job, and cut off it would
    be none for ever. :class:`Pace` keeps the fraction.
    """
    slots = max(slots, 1)  # a pool without workers shows the autoscaler one job
    seconds = min(max(seconds, 0.0), MOST_SECONDS)
    # The length of the turn belongs to the queue: else a slow turn lets the pool run dry, it
    # ends fewer jobs, and the next queue is shorter still.
    queue = max(slots, ended_per_second * (RESERVE_SECONDS + seconds))
    floor = max(ended_per_second * FLOOR_SHARE, slots * FLOOR_PER_SLOT_SECOND) * seconds
    return min(max(queue - queued, floor), per_second * seconds)


@dataclass(frozen=True, slots=True)
class Pace:
    """One pool's promotion from turn to turn."""

    #: Jobs a second that may join the queue at the very most.
    per_second: float
    #: Fraction of a job that earlier turns left over.
    carried: float = 0.0

    def turn(
        self, *, queued: int, slots: int, ended_per_second: float, seconds: float
    ) -> tuple[int, Pace]:
        """Whole jobs that may join now, and the pace of the next turn."""
        exact = self.carried + allowance(
            queued=queued,
            slots=slots,
            ended_per_second=ended_per_second,
            seconds=seconds,
            per_second=self.per_second,
        )
        whole = int(exact)
        return whole, replace(self, carried=exact - whole)
