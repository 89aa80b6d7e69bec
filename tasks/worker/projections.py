"""Projections of job types: which of them fail, and the settling statements with the others.

A projection is SQL of a type's author about a table of theirs. One that fails (a table, column or
privilege that is not there, say during a rollout) would fail the settling of every type. Each is
therefore checked alone: when the worker starts, when settling fails, and every few seconds while
one fails. Jobs of such a type are not run. A result that is there already is not written: a job
is never succeeded without its projection. Both are deferred without spending an attempt, with
the reason in their error, and run again once it works, here or in another worker.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Mapping

from sqlalchemy import Engine
from sqlalchemy.exc import DBAPIError

from models.jobs.settle import PLAIN, explain_settling, settle_statement
from models.store.errors import StateStoreUnavailable
from models.store.prepared import code_of
from tasks.registry import JobType, projections_of
from tasks.worker.outcome import Deferred
from tasks.worker.texts import plain_text

logger = logging.getLogger(__name__)

#: Pause between two checks while one fails.
CHECK_SECONDS = 5.0
#: Longest reason kept.
REASON_CHARACTERS = 300


class Projections:
    def __init__(self, types: Mapping[str, JobType]) -> None:
        self._types = types
        #: Why projections fail, by type; replaced whole, since slots read it.
        self.failing: Mapping[str, str] = {}
        self._statements: dict[frozenset[str], str] = {}
        #: When to check again, by the monotonic clock; at first at once.
        self.due = 0.0

    def deferral_of(self, name: str) -> Deferred | None:
        """What becomes of jobs of this type while its projection fails."""
        reason = self.failing.get(name)
        return None if reason is None else deferral(name, reason)

    def statement_of(self, names: frozenset[str]) -> str:
        """The settling statement with the projections of these types, and of no other: a lock on
        its table would stop them all."""
        if names not in self._statements:
            named = [each for each in self._types.values() if each.name in names]
            self._statements[names] = settle_statement(projections_of(named))
        return self._statements[names]

    def check_if_due(self, engine: Engine) -> None:
        if time.monotonic() >= self.due:
            self.check(engine)

    def check(self, engine: Engine) -> bool:
        """Find out which projections fail; whether settling works without them."""
        if reason_of(engine, PLAIN):
            return False
        before, failing = self.failing, {}
        for job_type in self._types.values():
            if not job_type.project:
                continue
            name = job_type.name
            if reason := reason_of(engine, settle_statement((job_type.project,)), before.get(name)):
                failing[name] = reason
        self._note(before, failing)
        self.failing = failing
        self.due = time.monotonic() + CHECK_SECONDS if failing else math.inf
        return True

    def _note(self, before: Mapping[str, str], failing: Mapping[str, str]) -> None:
        for name in failing.keys() - before.keys():
            logger.error("the projection of %s fails, its jobs wait: %s", name, failing[name])
        for name in before.keys() - failing.keys():
            logger.warning("the projection of %s works again", name)


def reason_of(engine: Engine, statement: str, before: str | None = None) -> str | None:
    """Why PostgreSQL rejects a settling statement; ``before`` if it cannot say, say for a lock."""
    try:
        explain_settling(engine, statement)
    except DBAPIError as error:
        return first_line(error)
    except StateStoreUnavailable:
        return before
    return None


def deferral(name: str, reason: str) -> Deferred:
    return Deferred(f"The projection of {name} fails: {reason}. The job runs again later.")


def is_undefined(error: Exception) -> bool:
    """Whether it is about a name, a privilege or the syntax, and not about what is written."""
    return isinstance(error, DBAPIError) and (code_of(error) or "").startswith("42")


def first_line(error: Exception) -> str:
    """PostgreSQL's own message: SQLAlchemy's holds the whole statement."""
    return plain_text(getattr(error, "orig", error), REASON_CHARACTERS).partition("\n")[0]
