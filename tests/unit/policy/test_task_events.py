"""Which task events are sent and which are counted: none is lost, none counts twice."""

from __future__ import annotations

from collections import Counter
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from app.policy.task_events import BURST_SECONDS, MOST_OPEN, TaskEvents

RECEIVED, STARTED, SUCCEEDED = "task-received", "task-started", "task-succeeded"
FAILED, RETRIED, REVOKED = "task-failed", "task-retried", "task-revoked"
ENDS = (SUCCEEDED, FAILED, RETRIED, REVOKED)
#: A task's name, how it ends, whether it is started, and how long after the one before it comes.
TASKS = st.lists(
    st.tuples(
        st.sampled_from(("echo", "sleep")),
        st.sampled_from(ENDS),
        st.booleans(),
        st.floats(min_value=0, max_value=1),
    ),
    max_size=80,
)


def events_of(number: int, name: str, end: str, started: bool) -> list[tuple[str, dict[str, Any]]]:
    """The events of a task as Celery sends them: only the first has the name."""
    uuid = f"task-{number}"
    fields = {"runtime": 0.05} if end == SUCCEEDED else {}
    begun: list[tuple[str, dict[str, Any]]] = [(STARTED, {"uuid": uuid})] if started else []
    received = (RECEIVED, {"uuid": uuid, "name": name, "args": "(1 job)"})
    return [received, *begun, (end, {"uuid": uuid, **fields})]


@given(TASKS, st.sampled_from((0.0, 0.5, 3.0, 1e9)))
def test_every_event_is_sent_or_counted_once(
    tasks: list[tuple[str, str, bool, float]], rate: float
) -> None:
    events, now = TaskEvents(rate, 0.0), 0.0
    happened: Counter[str] = Counter()
    sent: Counter[str] = Counter()
    for number, (name, end, started, pause) in enumerate(tasks):
        now += pause
        shown: dict[str, Any] = {}
        for kind, fields in events_of(number, name, end, started):
            happened[kind] += 1
            passed = events.pass_on(kind, fields, now)
            if passed is not None:
                sent[kind] += 1
                shown |= passed
        assert shown.get("name", name) == name, "whatever is shown has its name"
        assert not shown or shown["uuid"] == f"task-{number}"
    sums = events.take_sums()
    counted = sum((Counter(each["events"]) for each in sums.values()), Counter())
    assert sent + counted == happened
    assert not events.take_sums()
    runtimes = sum(len(each["runtimes"]) for each in sums.values())
    assert runtimes == counted[SUCCEEDED]
    if rate == 0.0:
        assert not sent
    if rate > 1e6:
        assert not counted


@given(st.integers(min_value=1, max_value=50), st.floats(min_value=0.1, max_value=100))
def test_tasks_are_shown_up_to_the_rate(seconds: int, rate: float) -> None:
    events = TaskEvents(rate, 0.0)
    shown = 0
    for number in range(40 * seconds):
        received = {"uuid": str(number), "name": "echo"}
        shown += events.pass_on(RECEIVED, received, number / 40) is not None
    assert shown <= max(1.0, rate * BURST_SECONDS) + rate * seconds
    assert shown >= min(40 * seconds, int(rate * seconds))


def test_a_task_that_fails_is_shown_with_what_was_not_sent_before() -> None:
    events = TaskEvents(0.2, 0.0)
    assert events.pass_on(RECEIVED, {"uuid": "1", "name": "echo"}, 1.0), "the first is shown"
    assert not events.pass_on(RECEIVED, {"uuid": "2", "name": "fail", "args": "(1 job)"}, 2.0)
    assert not events.pass_on(STARTED, {"uuid": "2"}, 3.0)
    failed = events.pass_on(FAILED, {"uuid": "2", "exception": "no"}, 4.0)
    assert failed == {
        "uuid": "2",
        "name": "fail",
        "args": "(1 job)",
        "received": 2.0,
        "started": 3.0,
        "exception": "no",
    }
    assert events.take_sums()["fail"]["events"] == {RECEIVED: 1, STARTED: 1}


def test_a_flood_of_failures_is_counted_too() -> None:
    events = TaskEvents(2.0, 0.0)
    shown = [
        events.pass_on(FAILED, {"uuid": str(number), "name": "fail"}, 0.0) for number in range(100)
    ]
    assert sum(each is not None for each in shown) == 2.0 * BURST_SECONDS
    assert events.take_sums()["fail"]["events"] == {FAILED: 100 - 2 * BURST_SECONDS}


def test_tasks_that_never_end_are_forgotten() -> None:
    events = TaskEvents(0.0, 0.0)
    for number in range(MOST_OPEN + 1):
        events.pass_on(RECEIVED, {"uuid": str(number), "name": "echo"}, 0.0)
    assert events.pass_on(SUCCEEDED, {"uuid": "0"}, 0.0), "as one of a task that is shown"
    assert events.pass_on(SUCCEEDED, {"uuid": "1"}, 0.0) is None


def test_sums_survive_a_new_connection() -> None:
    before, after = TaskEvents(0.0, 0.0), TaskEvents(0.0, 0.0)
    before.pass_on(RECEIVED, {"uuid": "1", "name": "echo"}, 0.0)
    after.inherit(before)
    assert after.pass_on(SUCCEEDED, {"uuid": "1", "runtime": 0.12345}, 1.0) is None
    assert after.take_sums() == {
        "echo": {"events": {RECEIVED: 1, SUCCEEDED: 1}, "prefetched": 0, "runtimes": [0.1235]}
    }
