"""What is lost with a message or a run, and what counts as a crash of the job. Pure.

A worker claims more than it runs. What waited in it when it died did not kill it, and is no crash.
The row says which claims wait: the claim notes it for those that have no slot at once, and the next
heartbeat notes the ones that have begun since. A job that kills its worker before that heartbeat
looks as if it had waited. So a claim that was lost like this is remembered, and from then on a run
of that job begins only after the row says so: it is mistaken once, and after five crashes dead.
The same goes for a job that was given to a worker which was not heard any more after that.

A job that kills its worker takes its neighbours with it. So a job that has lost a worker also
begins only after the row says so, which writes the results of all that have ended before. And of
those that have lost several, a process runs one at a time: the one that kills does not kill the
others again.
"""

from __future__ import annotations

#: A job that has lost so many workers may be what killed them.
SUSPECT_CRASHES = 2


def ran_seconds_of(
    leased_seconds: float | None, lease_seconds: float, lost_seconds: float | None
) -> float:
    """Time from the beginning of a lost run to the last sign of life.

    That is when its process was seen to end, if it was, else the last heartbeat: the lease lasted
    ``lease_seconds`` longer. Nobody knows what the run did after it, so nobody pays for that.
    """
    if lost_seconds is not None and lost_seconds > 0.0:
        return lost_seconds
    return max(0.0, (leased_seconds or 0.0) - lease_seconds)
