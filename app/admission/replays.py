"""Replays under the limits of submissions: at once if there is room for all, else little by little.

What has no room becomes a row of ``replays``, which the leading scheduler works off.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from sqlalchemy import Engine, Row

from app.admission.tenant_limits import TenantLimits
from app.errors import Conflict
from app.tenants.allowed_types import forbidden_type
from models.jobs.cancel import Done
from models.jobs.replay import read_dead, replay_dead
from models.jobs.replay_requests import (
    MOST_RUNNING,
    ReplayRequest,
    count_matching,
    create,
    find_forbidden,
    find_running,
)
from models.wakeups import wake_scheduler

#: More than this many are never replayed within a request.
MOST_AT_ONCE = 10_000

Bounded = Callable[[], AbstractContextManager[object]]


def replay(
    engine: Engine,
    tenant_limits: TenantLimits,
    request: ReplayRequest,
    bounded: Bounded = nullcontext,
) -> list[str] | Row[Any]:
    """The ids of the jobs that were queued, or the replay that will queue them.

    A request that is equal to a running one joins it; Conflict if too many others of the tenant
    are running, Forbidden if a job is of a type that the tenant may not submit. Each step runs
    within ``bounded()``.
    """
    with bounded():
        running = find_running(engine, request)
        if running is not None:
            return running
        if (forbidden := find_forbidden(engine, request)) is not None:
            raise forbidden_type(forbidden.type, forbidden.types)
        found = count_matching(engine, request)
        jobs = found.total()
        fits = jobs <= MOST_AT_ONCE and has_room(tenant_limits, request.tenant_id, found)
    if not jobs:
        return []
    if not fits:
        with bounded():
            made = create(engine, request, jobs)
        if made is None:
            raise Conflict(
                f"{MOST_RUNNING} replays of dead letters are running, which is the most that a"
                " tenant can have: cancel one, or wait for its end."
            )
        wake_scheduler(engine)
        return made
    replayed = replay_dead(
        engine,
        request.tenant_id,
        request.ids,
        limit=jobs,
        before=request.before,
        job_type=request.type,
        error_class=request.error_class,
        bounded=bounded,
    )
    wake_scheduler(engine)
    return replayed


def has_room(tenant_limits: TenantLimits, tenant_id: int, jobs: Counter[str]) -> bool:
    """Whether the tenant's limits have room for all of them; takes it."""
    wanted = {(tenant_id, pool): count for pool, count in jobs.items()}
    return not wanted or tenant_limits.take(wanted, whole=True).jobs == wanted


def replay_for_tenants(engine: Engine, tenant_limits: TenantLimits, ids: Sequence[str]) -> Done:
    """Replay jobs of any tenants, each within its limits; what has no room follows later."""
    dead = read_dead(engine, ids)
    wanted = Counter((row.tenant_id, row.pool) for row in dead)
    granted = tenant_limits.take(wanted, whole=True) if wanted else None
    held = {tenant_id for tenant_id, _ in wanted if granted and tenant_id in granted.held}
    now = [row.id for row in dead if row.tenant_id not in held]
    changed = len(replay_dead(engine, None, now))
    for tenant_id in sorted(held):
        theirs = tuple(row.id for row in dead if row.tenant_id == tenant_id)
        create(engine, ReplayRequest(tenant_id, theirs), len(theirs), unbounded=True)
    wake_scheduler(engine)
    later = len(dead) - len(now)
    return Done(changed, skipped=len(set(ids)) - changed - later, later=later)
