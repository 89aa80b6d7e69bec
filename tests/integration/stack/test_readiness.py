"""Processes that are alive and do not serve their clients are replaced."""

from __future__ import annotations

import time

import pytest

from app.stack.spec import ProcessSpec
from app.stack.supervisor import Program, Supervisor
from tests.integration.stack.conftest import SLEEP, pids, wait


def test_process_that_is_alive_and_never_ready_is_replaced_and_then_reset(
    supervisor: Supervisor,
) -> None:
    resets: list[int] = []
    spec = ProcessSpec(
        "broker",
        SLEEP,
        is_ready=lambda: bool(resets),
        unready_seconds=2.5,
        reset=lambda: resets.append(slot.restarts),
    )
    supervisor.add(Program("broker", lambda _: spec, stop_rank=0))
    [slot] = supervisor.slots
    wait(supervisor, lambda: bool(resets), 30.0)
    assert resets == [2], "the first restart keeps the data"
    wait(supervisor, lambda: slot.child is not None and slot.unready_since == 0.0)
    [pid] = pids(supervisor)
    assert not supervisor.wait(lambda: pids(supervisor) != [pid], 2.0), "it is ready and stays"


@pytest.mark.long
def test_process_that_takes_long_to_get_ready_is_given_the_time(supervisor: Supervisor) -> None:
    """The machine may be too busy; killed again and again it would never be ready."""
    resets: list[int] = []
    spec = ProcessSpec(
        "broker",
        SLEEP,
        is_ready=lambda: time.monotonic() - slot.child.started_at > 3.0,  # type: ignore[union-attr]
        unready_seconds=1.0,
        reset=lambda: resets.append(1),
    )
    supervisor.add(Program("broker", lambda _: spec, stop_rank=0))
    [slot] = supervisor.slots
    wait(supervisor, lambda: slot.restarts > 0 and slot.unready_since == 0.0 < slot.ready_at, 90.0)
    assert len(resets) <= 3
    [pid] = pids(supervisor)
    assert not supervisor.wait(lambda: pids(supervisor) != [pid], 4.0), "it is ready and stays"


def test_process_that_dies_at_once_keeps_its_data_for_as_long(supervisor: Supervisor) -> None:
    resets: list[float] = []
    spec = ProcessSpec(
        "broker",
        ("false",),
        is_ready=lambda: False,
        unready_seconds=2.0,
        reset=lambda: resets.append(time.monotonic()),
    )
    begun = time.monotonic()
    supervisor.add(Program("broker", lambda _: spec, stop_rank=0))
    wait(supervisor, lambda: bool(resets), 30.0)
    assert resets[0] - begun >= 4.0


def test_process_that_is_no_longer_ready_is_replaced_with_its_data(supervisor: Supervisor) -> None:
    ready, resets = [True], list[int]()
    spec = ProcessSpec(
        "broker",
        SLEEP,
        is_ready=lambda: ready[0],
        unready_seconds=0.5,
        reset=lambda: resets.append(1),
    )
    supervisor.add(Program("broker", lambda _: spec, stop_rank=0))
    supervisor.tick()
    supervisor.tick()
    [first] = pids(supervisor)
    ready[0] = False
    wait(supervisor, lambda: pids(supervisor) not in ([first], []), 20.0)
    ready[0] = True
    [second] = pids(supervisor)
    assert not supervisor.wait(lambda: pids(supervisor) != [second], 2.0)
    assert resets == []
