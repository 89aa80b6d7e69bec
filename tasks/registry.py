"""Registry of job types: what can be run, where, and under which limits.

``@job_type`` registers a function; :mod:`tasks.entry` creates a Celery task of the same name.
"""

from __future__ import annotations

import importlib
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from pydantic import BaseModel, ValidationError

from models.jobs.states import FailureClass
from models.pools import POOLS
from tasks.context import JobContext
from tasks.errors import Permanent
from tasks.errors_of_schema import first_errors
from tasks.retry.backoff import APP_ERROR_SECONDS, MOST_WAIT_SECONDS
from tasks.retry.decision import RetryLimits

#: Names that fit into URLs, labels and queues.
NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,99}")

Run = Callable[[JobContext, Any], Any]
#: How a running job is cancelled: ``Cancelled`` is raised in it, or it checks
#: ``ctx.is_cancelled()``.
Cancel = Literal["interrupt", "cooperative"]

BUILT_IN = ("tasks.jobs.score_application", "tasks.jobs.trials")
#: Of these, the types to try things out with.
DEMO = "tasks.jobs.trials"
#: Default time limit, if the pool allows that much.
TIMEOUT_SECONDS = 300.0


@dataclass(frozen=True, slots=True)
class JobType:
    #: Name in the API, the row, the Celery task and the metrics.
    name: str
    #: Pool it is declared for; its jobs may be moved to another one that fits its run times.
    pool: str
    run: Run
    timeout_seconds: float
    #: Attempts and delays.
    limits: RetryLimits
    #: The dependency whose circuit and quota apply.
    dependency: str | None
    #: Model of its payload, which the function gets; invalid submissions are rejected.
    schema: type[BaseModel] | None
    #: Limits of a run in a dedicated process.
    memory_mb: int | None
    cpu_seconds: float | None
    #: Called once in each worker process before its first run there.
    prepare: Callable[[], None] | None
    #: SQL over ``settled`` (id, type, status, result), run in the settling statement.
    project: str | None
    cancel: Cancel = "interrupt"

    def read(self, payload: Any) -> Any:
        """The payload as the function gets it: an instance of the schema, if there is one."""
        return payload if self.schema is None else self.schema.model_validate(payload)

    def call(self, ctx: JobContext, payload: Any) -> Any:
        """Run the function. The schema may have changed since the payload was submitted."""
        try:
            instance = self.read(payload)
        except ValidationError as error:
            message = f"The payload does not match the schema of {self.name}: {listed(error)}."
            raise Permanent(message) from None
        return self.run(ctx, instance)


_types: dict[str, JobType] = {}


def job_type(
    name: str,
    *,
    pool: str,
    timeout: float | None = None,
    tries: int | None = None,
    backoff: Sequence[float] | None = None,
    class_tries: Mapping[str, int] | None = None,
    dependency: str | None = None,
    schema: type[BaseModel] | None = None,
    memory_mb: int | None = None,
    cpu_seconds: float | None = None,
    prepare: Callable[[], None] | None = None,
    project: str | None = None,
    cancel: Cancel = "interrupt",
) -> Callable[[Run], Run]:
    """Register the decorated function as the job type ``name``.

    The function gets the context and the payload, as an instance of ``schema`` if there is one.
    ``tries`` and ``backoff`` (seconds after the first, second, … failure) apply to APP_ERROR;
    ``class_tries`` sets the attempts for other failure classes, as ``{"TIMEOUT": 3}``. The pool
    provides the defaults. When a running job is cancelled, :class:`~tasks.errors.Cancelled` is
    raised in it at its next yield; with ``cancel="cooperative"`` it is not, until the grace is
    over: such a function asks ``ctx.is_cancelled()``.
    """
    if not NAME.fullmatch(name):
        allowed = "letters, digits, '_', '-' and '.', at most 100"
        raise ValueError(f"{name!r} is not a valid name for a job type: {allowed}")
    if pool not in POOLS:
        raise ValueError(f"job type {name!r} has an unknown pool {pool!r}")
    pool_limits = POOLS[pool]
    seconds = min(TIMEOUT_SECONDS, pool_limits.most_seconds) if timeout is None else timeout
    if not 0 < seconds <= pool_limits.most_seconds:
        raise ValueError(
            f"job type {name!r}: a timeout in {pool!r} is at most {pool_limits.most_seconds:g} s"
        )
    if unknown := set(class_tries or ()) - {failure.value for failure in FailureClass}:
        raise ValueError(f"job type {name!r} has unknown failure classes {sorted(unknown)}")
    waits = APP_ERROR_SECONDS if backoff is None else tuple(backoff)
    if not (waits and all(0 <= wait <= MOST_WAIT_SECONDS for wait in waits)):
        raise ValueError(f"job type {name!r}: backoff must be a list of seconds, each 0 to a year")
    limits = RetryLimits(
        tries=pool_limits.tries if tries is None else tries,
        backoff_seconds=waits,
        class_tries=dict(class_tries or {}),
    )
    if min(limits.tries, *limits.class_tries.values(), 1) < 1:
        raise ValueError(f"job type {name!r}: at least one attempt is needed")
    if (memory_mb is not None and memory_mb <= 0) or (cpu_seconds is not None and cpu_seconds <= 0):
        raise ValueError(f"job type {name!r}: a limit must be positive")
    if cancel not in get_args(Cancel):
        raise ValueError(f"job type {name!r}: cancel must be one of {get_args(Cancel)}")

    def register(run: Run) -> Run:
        known = _types.get(name)
        if known is not None and origin_of(known.run) != origin_of(run):
            raise ValueError(f"job type {name!r} is registered twice")
        _types[name] = JobType(
            name,
            pool,
            run,
            seconds,
            limits,
            dependency,
            schema,
            memory_mb or pool_limits.memory_mb,
            cpu_seconds or pool_limits.cpu_seconds,
            prepare,
            project,
            cancel,
        )
        return run

    return register


def origin_of(run: Run) -> tuple[str, str]:
    """Where a function is defined: the same if its module is imported again."""
    return run.__module__, run.__qualname__


def listed(error: ValidationError) -> str:
    """The invalid fields and why, without their values."""
    return "; ".join(
        f"{'.'.join(['payload', *map(str, entry['loc'])])}: {entry['msg']}"
        for entry in first_errors(error)
    )


def projections_of(types: Iterable[JobType]) -> list[str]:
    """The SQL that writes results of these types to other tables."""
    return [job_type.project for job_type in types if job_type.project]


def load_types(extra_modules: str = "", *, demo: bool = True) -> dict[str, JobType]:
    """Import the built-in and the given modules; all registered types by name."""
    modules = [name.strip() for name in extra_modules.split(",") if name.strip()]
    built_in = [module for module in BUILT_IN if demo or module != DEMO]
    for module in (*built_in, *modules):
        try:
            importlib.import_module(module)
        except ModuleNotFoundError as error:
            if f"{module}.".startswith(f"{error.name}."):
                raise SystemExit(missing(module)) from None
            raise  # of something that it imports: the traceback says where
    return _types


def missing(module: str) -> str:
    """That a module of job types is not there, and what to do."""
    name = module.removesuffix(".py")
    file = f"{name.replace('.', '/')}.py"
    return f"fairline: FAIRLINE_JOB_MODULES: there is no module {module!r}: " + (
        f"write {name}, without .py"
        if name != module
        else f"put {file} into {os.getcwd()}, or its folder into PYTHONPATH"
    )
