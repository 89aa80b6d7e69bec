"""Retry budget of a tenant: failing jobs may not cost much more than the work itself.

Over the window a tenant's retries stay within twice its first runs. Beyond that, its failures
become dead letters early, and can be replayed once the cause is gone. Crashes and failures of
dependencies are not charged: they are not the tenant's fault.
"""

from __future__ import annotations

#: Runs that count are at most this old.
WINDOW_SECONDS = 600.0
#: Retries per first run.
RETRIES_PER_FIRST_RUN = 2
#: Retries that every tenant has, however little it runs.
FLOOR = 20


def budget_left(first_runs: int, retries: int) -> bool:
    """Whether a tenant with these runs in the window may have one more retry."""
    return retries < max(FLOOR, RETRIES_PER_FIRST_RUN * first_runs)
