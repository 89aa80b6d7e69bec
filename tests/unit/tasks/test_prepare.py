"""Getting ready for a job type, once a process."""

from __future__ import annotations

from dataclasses import replace

import pytest

from models.pools import POOLS, unmeasured_refs
from tasks.errors import Permanent, Snooze
from tasks.registry import load_types
from tasks.watchdog.lost_runs import MARGIN_SECONDS, hard_limit_seconds
from tasks.worker.prepare import PreparedTypes

ECHO = load_types()["echo"]


def refuse() -> None:
    raise Permanent("There is no key here.")


def test_what_was_prepared_at_the_start_is_not_prepared_again() -> None:
    calls: list[str] = []
    at_start = replace(ECHO, name="a", prepare=lambda: calls.append("a"))
    moved_here = replace(ECHO, name="b", prepare=lambda: calls.append("b"))
    prepared = PreparedTypes()
    prepared.begin([at_start])
    for job_type in (at_start, moved_here, ECHO, moved_here):
        prepared.ensure(job_type)
    assert calls == ["a", "b"]


def test_a_worker_that_cannot_run_its_own_types_does_not_start() -> None:
    with pytest.raises(SystemExit, match="echo: There is no key here"):
        PreparedTypes().begin([replace(ECHO, prepare=refuse)])


def test_a_type_that_cannot_get_ready_is_tried_again_later() -> None:
    prepared, ready = PreparedTypes(), []
    with pytest.raises(Snooze):
        prepared.ensure(replace(ECHO, prepare=refuse))
    prepared.ensure(replace(ECHO, prepare=lambda: ready.append(1)))
    assert ready == [1]


def test_the_parents_patience_is_that_of_the_messages_it_gets() -> None:
    """Not that of the pool a type was declared for: it may have moved from there."""
    assert hard_limit_seconds(ECHO, 1) == ECHO.timeout_seconds + MARGIN_SECONDS
    assert [unmeasured_refs(POOLS[pool]) for pool in ("short", "medium", "long")] == [20, 1, 1]
    assert hard_limit_seconds(ECHO, 20) == 20 * ECHO.timeout_seconds + MARGIN_SECONDS
