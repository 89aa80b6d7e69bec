"""What a job is expected to take before anything was measured. Pure."""

from __future__ import annotations

#: Seconds of a job whose type never ran, by pool.
FIRST_SECONDS = {"short": 10.0, "medium": 60.0, "long": 600.0}
#: … in a pool of somebody's own.
OTHER_SECONDS = 60.0


def default_seconds(pool: str) -> float:
    """Seconds charged for a job of a type that was never measured."""
    return FIRST_SECONDS.get(pool, OTHER_SECONDS)
