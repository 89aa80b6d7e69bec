"""Warden: watches what fails and holds it back, by the pure policies of :mod:`tasks.retry`.

Four roles, each in its own rhythm: circuits of dependencies, quarantine of job types,
throttles of tenants, spikes of usage. All of them read what workers and reaper counted and
write one conditional statement a change, with the event that tells of it. What they write is
obeyed elsewhere: see :mod:`app.scheduler.holds` and :mod:`tasks.runtime.rules`.
"""

from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy import Engine

from app.scheduler.circuits import Circuits
from app.scheduler.leader import Leader
from app.scheduler.quarantine import Quarantine
from app.scheduler.rhythm import Rhythm
from app.scheduler.spikes import Spikes
from app.scheduler.throttles import Throttles
from tasks.registry import JobType
from tasks.retry.throttle import CRASHES


def warden(
    engine: Engine,
    leader: Leader,
    types: Mapping[str, JobType],
    throttle_crashes: int = CRASHES,
) -> list[Rhythm]:
    """The warden's roles and how often each looks."""
    dependencies = {one.dependency for one in types.values() if one.dependency}
    return [
        Rhythm(Circuits(engine, leader, dependencies), 1.0),
        Rhythm(Throttles(engine, leader, throttle_crashes), 1.0),
        Rhythm(Quarantine(engine, leader), 10.0),
        Rhythm(Spikes(engine, leader), 30.0),
    ]
