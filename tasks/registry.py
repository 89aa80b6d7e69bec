"""Job types: what can be run, where, and under which limits.

``@job_type`` registers a function; :mod:`tasks.entry` gives it a Celery task of the same
name, so that Flower speaks the author's language.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from models.pools import POOLS
from tasks.runtime.context import JobContext

Run = Callable[[JobContext, Any], Any]

BUILT_IN = ("tasks.jobs.score_application", "tasks.jobs.echo", "tasks.jobs.sleep")


@dataclass(frozen=True, slots=True)
class JobType:
    """A kind of job."""

    #: Name in the API, the row, the Celery task and the metrics.
    name: str
    #: Pool it runs in.
    pool: str
    #: The function that does the work.
    run: Run
    #: A run that takes longer loses its lease.
    timeout_seconds: float
    #: Tries an error of the job's own making gets.
    tries: int
    #: Service it depends on, for circuit and quota.
    dependency: str | None
    #: Called once in each worker process of the pool before its first job.
    prepare: Callable[[], None] | None
    #: SQL over ``settled`` (id, type, status, result), run in the settling statement.
    project: str | None


_types: dict[str, JobType] = {}


def job_type(
    name: str,
    *,
    pool: str,
    timeout: float = 300.0,
    tries: int | None = None,
    dependency: str | None = None,
    prepare: Callable[[], None] | None = None,
    project: str | None = None,
) -> Callable[[Run], Run]:
    """Register the decorated function as the job type ``name``."""
    if pool not in POOLS:
        raise ValueError(f"job type {name!r} names an unknown pool {pool!r}")

    def register(run: Run) -> Run:
        if name in _types and _types[name].run.__module__ != run.__module__:
            raise ValueError(f"job type {name!r} is registered twice")
        _types[name] = JobType(
            name, pool, run, timeout, tries or POOLS[pool].tries, dependency, prepare, project
        )
        return run

    return register


def load_types(extra_modules: str = "") -> dict[str, JobType]:
    """Import the built-in and the user's modules; all registered types by name."""
    modules = [name.strip() for name in extra_modules.split(",") if name.strip()]
    for module in (*BUILT_IN, *modules):
        importlib.import_module(module)
    return _types
