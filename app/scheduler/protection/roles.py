"""Warden: watches what fails and holds it back, by the pure policies of :mod:`tasks.retry`.

Four roles, each in its own rhythm: circuits of dependencies, quarantine of job types,
throttles of tenants, spikes of usage. All of them read what workers and reaper counted and
write one conditional statement a change, with the event that tells of it. What they write is
obeyed elsewhere: see :mod:`app.reads.holds` and :mod:`tasks.worker.rules`.
"""

from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy import Engine

from app.scheduler.protection.circuits import Circuits
from app.scheduler.protection.quarantine import Quarantine
from app.scheduler.protection.spikes import Spikes
from app.scheduler.protection.throttles import Throttles
from app.scheduler.role import TimedRole
from models.leadership import Leader
from tasks.registry import JobType
from tasks.retry.throttle import CRASHES


def guard_roles(
    engine: Engine,
    leader: Leader,
    types: Mapping[str, JobType],
    throttle_crashes: int = CRASHES,
) -> list[TimedRole]:
    """The warden's roles and how often each looks."""
    dependencies = {one.dependency for one in types.values() if one.dependency}
    return [
        TimedRole(Circuits(engine, leader, dependencies), 1.0),
        TimedRole(Throttles(engine, leader, throttle_crashes), 1.0),
        TimedRole(Quarantine(engine, leader), 10.0),
        TimedRole(Spikes(engine, leader), 30.0),
    ]
