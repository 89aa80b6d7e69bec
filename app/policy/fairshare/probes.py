"""Probes of a half-open circuit: which tenants may give the next one. Pure.

By fair share alone one tenant could give all of them: calls that fail at once cost next to nothing.
So a tenant has to wait while another that waits in the lane has given fewer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from app.policy.fairshare.queue import FairQueue


@contextmanager
def fewest_first(
    queue: FairQueue, given: Mapping[str, Mapping[int, int]], most: int, *, free: bool = False
) -> Iterator[None]:
    """While it lasts, only tenants with the fewest probes wait in the lanes of ``given``.

    ``given``: the probes of each tenant, by lane; a tenant with ``most`` gives no more. ``free``:
    the slots are those of free accounts alone.
    """
    left_out = []
    for lane, probes in given.items():
        waiting = [one for one in probes if queue.waits_in(one, lane)]
        for tenant_id in waiting:
            queue.remove_lane(tenant_id, lane)
        for fewest in sorted({probes[one] for one in waiting}):
            if fewest >= most or queue.any_in(lane, free=free):
                break
            for tenant_id in [one for one in waiting if probes[one] == fewest]:
                waiting.remove(tenant_id)
                queue.add_lane(tenant_id, lane)
        left_out += [(tenant_id, lane) for tenant_id in waiting]
    try:
        yield
    finally:
        for tenant_id, lane in left_out:
            queue.add_lane(tenant_id, lane)
