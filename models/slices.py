"""Slices: queues of a pool that have workers of their own. Pure.

``<pool>.free`` serves all free accounts together, ``<pool>.reserved.<tenant>`` one tenant
alone. A job of a slice stays a job of its pool: leases, limits and tries are the pool's.
"""

from __future__ import annotations

import re

#: Pools have no dots in their names, nor have tenants.
_SLICED = re.compile(r"([a-z][a-z0-9_-]*)\.(free|reserved\.[a-z0-9][a-z0-9_-]{0,62})")


def reserved(tenant: str) -> str:
    """The slice of one tenant."""
    return f"reserved.{tenant}"


def slice_queue(pool: str, slice_: str = "") -> str:
    """The queue of a slice; without one, the queue that everybody in the pool shares."""
    return f"{pool}.{slice_}" if slice_ else pool


def parse_queue(name: str) -> tuple[str, str]:
    """Pool and slice of a queue; whatever is no slice is taken for a pool with none."""
    found = _SLICED.fullmatch(name)
    return (found[1], found[2]) if found else (name, "")
