"""Lost messages: how long a job may be dispatched while its queue is empty. Pure.

Then its message is in the hands of a worker, which claims at once, or it was lost: purged, deleted
with its queue, or lost by the broker. Claims may be slow, and a job that is dispatched again too
soon is never claimed at all, as each message finds a newer lease. So the wait doubles each time.
"""

from __future__ import annotations

LEAST_SECONDS = 2.0
MOST_SECONDS = 64.0
#: What is left of the wait after a second without a lost message.
FALL_PER_SECOND = 0.98


def next_wait(wait: float, lost: bool) -> float:
    """The wait for the next second, after one in which messages were found lost or were not."""
    return min(MOST_SECONDS, wait * 2) if lost else max(LEAST_SECONDS, wait * FALL_PER_SECOND)
