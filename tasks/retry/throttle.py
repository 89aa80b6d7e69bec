"""Throttle of a tenant in a pool: one that keeps crashing workers runs one job at a time.

One job in flight harms one worker at a time, and still shows when the tenant is harmless again:
a whole window without a crash lifts the throttle.
"""

from __future__ import annotations

#: Crashes that count are at most this old.
WINDOW_SECONDS = 600.0
#: Crashes in the window that bring the throttle.
CRASHES = 5
#: Jobs of a throttled tenant that may be in flight in the pool.
IN_FLIGHT = 1


def throttled(crashes: int, was: bool, limit: int = CRASHES) -> bool:
    """Whether a tenant with ``crashes`` in the window is throttled, given that it ``was``."""
    return crashes >= (1 if was else limit)
