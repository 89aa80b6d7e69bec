"""Group commit: every caller gets its own result, whatever happens to the group."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.store import group_commit
from models.store.errors import StatementTooSlow, StateStoreUnavailable
from models.store.group_commit import GroupCommit
from models.store.ticket import Ticket
from tests import ROOT


class Writer:
    """A store that can be held shut, be away, or refuse an item."""

    def __init__(self) -> None:
        self.groups: list[list[int]] = []
        self.open = threading.Event()
        self.open.set()
        self.entered = threading.Event()
        self.away_times = 0
        self.refused: set[int] = set()
        #: Items that wait for a lock, and those of which one can see that.
        self.slow: set[int] = set()
        self.locked: set[int] = set()
        #: More at once is too slow for the time a statement has.
        self.most = 1000

    def __call__(self, items: Sequence[int]) -> list[int]:
        self.entered.set()
        assert self.open.wait(10)
        if self.away_times:
            self.away_times -= 1
            raise StateStoreUnavailable
        if len(items) > self.most:
            raise StateStoreUnavailable("statement timeout")
        if bad := self.refused & set(items):
            raise ValueError(f"refused {bad}")
        if (self.slow | self.locked) & set(items):
            raise StatementTooSlow
        self.groups.append(list(items))
        return [item * 10 for item in items]

    def is_locked(self, items: Sequence[int]) -> list[bool]:
        return [item in self.locked for item in items]


@pytest.fixture
def writer() -> Writer:
    return Writer()


def test_who_stands_in_a_line_that_moves_is_not_told_that_the_store_is_away() -> None:
    def write(items: Sequence[int]) -> list[int]:
        time.sleep(0.12)
        return [item * 10 for item in items]

    group: GroupCommit[int, int] = GroupCommit(write, name="slow", max_group=1)
    with ThreadPoolExecutor(8) as callers:
        answers = list(callers.map(lambda item: group.submit(item, timeout=0.75), range(8)))
    assert answers == [item * 10 for item in range(8)]
    assert group.close(5)


def test_what_everybody_gave_up_is_no_sign_of_life_of_the_store() -> None:
    freed = threading.Event()
    asked: list[list[int]] = []

    def write(items: Sequence[int]) -> list[int]:
        asked.append(list(items))
        freed.wait(1.0 if len(asked) == 1 else 10)
        raise StateStoreUnavailable

    group: GroupCommit[int, int] = GroupCommit(write, name="frozen")
    with pytest.raises(StateStoreUnavailable):
        group.submit(1, timeout=0.1)
    time.sleep(0.6)  # the first one still hangs; its second attempt will find nobody waiting
    with pytest.raises(StateStoreUnavailable):
        group.submit(2, timeout=0.4)
    assert group._written == 0.0
    freed.set()
    group.close(5)
    assert asked[0] == [1]


def test_when_the_line_stops_everybody_in_it_is_told_after_the_timeout() -> None:
    stuck = threading.Event()

    def write(items: Sequence[int]) -> list[int]:
        if items[0] > 2:
            stuck.wait(30)
        return list(items)

    group: GroupCommit[int, int] = GroupCommit(write, name="stuck", max_group=1)
    began = time.monotonic()

    def ask(item: int) -> float:
        with suppress(StateStoreUnavailable):
            group.submit(item, timeout=0.2)
        return time.monotonic() - began

    with ThreadPoolExecutor(6) as callers:
        waited = list(callers.map(ask, range(6)))
    stuck.set()
    assert 0.2 <= max(waited) < 10.0
    assert group.close(5)


def test_what_gathers_during_a_write_becomes_one_group(writer: Writer) -> None:
    group = GroupCommit(writer, name="test")
    writer.open.clear()
    first = group.post(1)
    assert writer.entered.wait(5)
    rest = [group.post(item) for item in (2, 3, 4)]
    writer.open.set()
    assert [ticket.result(5) for ticket in (first, *rest)] == [10, 20, 30, 40]
    assert writer.groups == [[1], [2, 3, 4]]


def test_an_idle_group_writes_at_once(writer: Writer) -> None:
    group = GroupCommit(writer, name="test")
    assert group.submit(7, timeout=5) == 70
    assert writer.groups == [[7]]


def test_a_group_is_never_larger_than_allowed_and_keeps_the_order(writer: Writer) -> None:
    group = GroupCommit(writer, name="test", max_group=3)
    writer.open.clear()
    tickets = [group.post(0)]
    assert writer.entered.wait(5)
    tickets += [group.post(item) for item in range(1, 11)]
    writer.open.set()
    assert [ticket.result(5) for ticket in tickets] == [item * 10 for item in range(11)]
    assert [item for written in writer.groups for item in written] == list(range(11))
    assert max(map(len, writer.groups)) == 3


def test_one_bad_item_fails_alone(writer: Writer) -> None:
    heard: list[int] = []
    group = GroupCommit(writer, name="test", on_refused=lambda item, _: heard.append(item))
    writer.refused = {3}
    writer.open.clear()
    blocker = group.post(0)
    assert writer.entered.wait(5)
    tickets = {item: group.post(item) for item in range(1, 8)}
    writer.open.set()
    assert blocker.result(5) == 0
    for item, ticket in tickets.items():
        if item == 3:
            with pytest.raises(ValueError, match="refused"):
                ticket.result(5)
        else:
            assert ticket.result(5) == item * 10
    assert heard == [3]


def test_a_listener_that_fails_does_not_end_the_writer(writer: Writer) -> None:
    def listen(item: int, error: Exception) -> None:
        raise StateStoreUnavailable

    group = GroupCommit(writer, name="test", on_refused=listen)
    writer.refused = {1}
    with pytest.raises(ValueError, match="refused"):
        group.submit(1, timeout=5)
    assert group.submit(2, timeout=5) == 20
    assert group.close(5)


def test_an_item_without_a_writer_is_not_written_by_the_next(
    writer: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_memory(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    group = GroupCommit(writer, name="test")
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", no_memory)
        with pytest.raises(RuntimeError, match="new thread"):
            group.submit(1, timeout=5)
    assert group.submit(2, timeout=5) == 20
    assert writer.groups == [[2]]


@pytest.mark.parametrize("step", ["_take_group", "_settle"])
@pytest.mark.parametrize("persistent", [True, False])
def test_a_writer_without_memory_goes_on_when_there_is_some(
    writer: Writer, monkeypatch: pytest.MonkeyPatch, persistent: bool, step: str
) -> None:
    monkeypatch.setattr(group_commit, "RETRY_SECONDS", (0.01,))
    group = GroupCommit(writer, name="test", persistent=persistent)
    work, failures = getattr(group, step), 3

    def fail(taken: list[Ticket[int, int]]) -> bool:
        nonlocal failures
        if failures and (step == "_take_group" or taken):
            failures -= 1
            raise MemoryError
        done: bool = work(taken)
        return done

    monkeypatch.setattr(group, step, fail)
    if persistent or step == "_take_group":
        assert group.submit(1, timeout=5) == 10
    else:
        with pytest.raises(StateStoreUnavailable):
            group.submit(1, timeout=5)
        failures = 0
    assert group.submit(2, timeout=5) == 20
    assert group.close(5)
    assert writer.groups[-1] == [2]


def test_a_connection_that_died_is_tried_again_once(writer: Writer) -> None:
    group = GroupCommit(writer, name="test")
    writer.away_times = 1
    assert group.submit(1, timeout=5) == 10
    writer.away_times = 2
    with pytest.raises(StateStoreUnavailable):
        group.submit(2, timeout=5)
    assert group.submit(3, timeout=5) == 30


def test_a_persistent_group_waits_until_the_store_is_back(writer: Writer) -> None:
    group = GroupCommit(writer, name="test", persistent=True)
    writer.away_times = 4
    assert group.submit(1, timeout=10) == 10


def test_a_persistent_group_that_is_too_much_for_a_statement_is_written_in_smaller_ones(
    writer: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_commit, "RETRY_SECONDS", (0.0,))
    group = GroupCommit(writer, name="test", persistent=True)
    writer.open.clear()
    tickets = [group.post(0)]
    assert writer.entered.wait(5)
    tickets += [group.post(item) for item in range(1, 40)]
    writer.most, writer.refused = 3, {7, 8}
    writer.open.set()
    for item, ticket in enumerate(tickets):
        if item in writer.refused:
            with pytest.raises(ValueError, match="refused"):
                ticket.result(5)
        else:
            assert ticket.result(5) == item * 10
    written = [item for one in writer.groups for item in one]
    assert written == [item for item in range(40) if item not in writer.refused]


@pytest.mark.parametrize("visible", [True, False])
def test_an_item_that_waits_for_a_lock_does_so_behind_all_others(
    writer: Writer, monkeypatch: pytest.MonkeyPatch, visible: bool
) -> None:
    monkeypatch.setattr(group_commit, "RETRY_SECONDS", (0.0,))
    group = GroupCommit(writer, name="test", persistent=True, locked=writer.is_locked)
    (writer.locked if visible else writer.slow).update({1, 3})
    writer.open.clear()
    tickets = [group.post(item) for item in range(6)]
    writer.open.set()
    for item in (0, 2, 4, 5):
        assert tickets[item].result(5) == item * 10
    assert group.submit(6, timeout=5) == 60, "newer ones do not wait either"
    assert not tickets[1].done and not tickets[3].done
    writer.locked.clear()
    writer.slow.clear()
    assert [tickets[item].result(5) for item in (1, 3)] == [10, 30]
    assert group.close(5)


def test_closing_writes_what_is_not_locked_and_says_that_the_rest_is_not_written(
    writer: Writer,
) -> None:
    group = GroupCommit(writer, name="test", persistent=True, locked=writer.is_locked)
    writer.locked = {1, 3}
    tickets = [group.post(item) for item in range(5)]
    assert not group.close(5)
    assert [tickets[item].result(0) for item in (0, 2, 4)] == [0, 20, 40]
    for item in (1, 3):
        with pytest.raises(StateStoreUnavailable):
            tickets[item].result(0)


def test_what_waits_for_a_lock_is_not_left_when_the_group_closes_after_the_look(
    writer: Writer,
) -> None:
    class ClosedAfterTheLook(GroupCommit[int, int]):
        def _bring_back(self) -> None:
            super()._bring_back()
            looked.set()
            assert closing.wait(5)

    looked, closing = threading.Event(), threading.Event()
    group = ClosedAfterTheLook(writer, name="test", persistent=True, locked=writer.is_locked)
    writer.locked = {1}
    ticket = group.post(1)
    assert looked.wait(5)
    closer = threading.Thread(target=lambda: closed.append(group.close(5)))
    closed: list[bool] = []
    closer.start()
    while not group._closing:  # set by the thread above
        time.sleep(0.001)
    closing.set()
    closer.join()
    assert closed == [False]
    with pytest.raises(StateStoreUnavailable):
        ticket.result(0)


def test_a_lock_that_nobody_can_look_at_is_waited_for(writer: Writer) -> None:
    def unknown(items: Sequence[int]) -> list[bool]:
        writer.locked.clear()
        raise StateStoreUnavailable

    group = GroupCommit(writer, name="test", persistent=True, locked=unknown)
    writer.locked = {1}
    assert group.submit(1, timeout=5) == 10


def test_what_nobody_waits_for_gathers_and_what_somebody_waits_for_does_not(
    writer: Writer,
) -> None:
    rests = [30.0]
    group = GroupCommit(writer, name="test", rest=lambda: rests[0])
    posted = [group.post(number) for number in (1, 2, 3)]
    assert not posted[0].wait(0.1), "it rests"
    assert group.submit(4, timeout=5) == 40
    assert writer.groups == [[1, 2, 3, 4]]
    last = group.post(5)
    assert not last.wait(0.05)
    assert group.close(5) and last.result(0) == 50
    assert writer.groups[1:] == [[5]]


def test_a_rest_that_is_over_writes_what_has_gathered(writer: Writer) -> None:
    group = GroupCommit(writer, name="test", rest=lambda: 0.2)
    posted = [group.post(number) for number in (1, 2, 3)]
    assert [ticket.result(5) for ticket in posted] == [10, 20, 30]
    assert len(writer.groups) <= 2
    assert group.close(5)


class Interrupted(BaseException):
    """As raised by a signal handler."""


class Bell:
    """A lock; whoever releases it may be interrupted right before."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.acquire, self.locked = self._lock.acquire, self._lock.locked
        self.interrupts = 0

    def release(self) -> None:
        if self.interrupts:
            self.interrupts -= 1
            raise Interrupted
        self._lock.release()


def test_a_caller_that_is_interrupted_does_not_leave_the_writer_asleep(writer: Writer) -> None:
    group = GroupCommit(writer, name="test")
    bell = Bell()
    bell.acquire()
    group._wake = bell  # type: ignore[assignment]  # as much of a lock as it needs
    assert group.submit(1, timeout=5) == 10
    while not group._asleep:
        time.sleep(0.001)
    bell.interrupts = 1
    with pytest.raises(Interrupted):
        group.post(2)
    assert group.submit(3, timeout=5) == 30
    assert [item for one in writer.groups for item in one] == [1, 2, 3]
    assert group.close(5)


def test_a_caller_that_gave_up_is_not_written_later(writer: Writer) -> None:
    group = GroupCommit(writer, name="test")
    writer.open.clear()
    first = group.post(1)
    assert writer.entered.wait(5)
    with pytest.raises(StateStoreUnavailable):
        group.submit(2, timeout=0.01)
    writer.open.set()
    assert first.result(5) == 10
    assert group.submit(3, timeout=5) == 30
    assert writer.groups == [[1], [3]]


def test_a_caller_that_gave_up_during_a_failed_write_is_not_in_the_next_attempt(
    writer: Writer,
) -> None:
    group = GroupCommit(writer, name="test")
    writer.open.clear()
    writer.away_times = 1
    with pytest.raises(StateStoreUnavailable):
        group.submit(1, timeout=0.01)
    writer.open.set()
    assert group.submit(2, timeout=5) == 20
    assert writer.groups == [[2]]


def test_closing_writes_what_waits_and_takes_nothing_more(writer: Writer) -> None:
    group = GroupCommit(writer, name="test")
    writer.open.clear()
    tickets = [group.post(item) for item in range(5)]
    closer = threading.Thread(target=group.close)
    closer.start()
    writer.open.set()
    closer.join(5)
    assert [ticket.result(0.1) for ticket in tickets] == [0, 10, 20, 30, 40]
    with pytest.raises(StateStoreUnavailable):
        group.post(9)


@settings(max_examples=20)
@given(
    callers=st.integers(1, 12),
    each=st.integers(1, 20),
    most=st.integers(1, 7),
    refused=st.sets(st.integers(0, 239), max_size=5),
)
def test_every_caller_gets_its_own_result(
    callers: int, each: int, most: int, refused: set[int]
) -> None:
    writer = Writer()
    writer.refused = refused
    group = GroupCommit(writer, name="test", max_group=most)
    wrong: list[object] = []

    def call(number: int) -> None:
        for item in range(number * 20, number * 20 + each):
            try:
                if group.submit(item, timeout=10) != item * 10:
                    wrong.append(item)
            except ValueError:
                if item not in refused:
                    wrong.append(item)

    threads = [threading.Thread(target=call, args=(number,)) for number in range(callers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert not wrong
    written = [item for one in writer.groups for item in one]
    assert len(written) == len(set(written))
    wanted = {number * 20 + offset for number in range(callers) for offset in range(each)}
    assert set(written) == wanted - refused


def test_heavy_items_do_not_gather_in_one_group(writer: Writer) -> None:
    group = GroupCommit(writer, name="test", max_weight=10)
    writer.open.clear()
    first = group.post(1)
    assert writer.entered.wait(5)
    weights = {2: 4, 3: 6, 4: 1, 5: 99, 6: 0, 7: 10}
    rest = [group.post(item, weight) for item, weight in weights.items()]
    writer.open.set()
    assert [ticket.result(5) for ticket in (first, *rest)] == [10, 20, 30, 40, 50, 60, 70]
    assert writer.groups == [[1], [2, 3], [4], [5], [6, 7]]


class Rests:
    """A clock that moves while the writer rests, and who comes meanwhile."""

    def __init__(self, group: GroupCommit[int, int], arrivals: Sequence[int]) -> None:
        self.group = group
        self.arrivals = list(arrivals)
        self.now = 100.0
        self.taken = 0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.taken += 1
        for item in range(self.arrivals.pop(0) if self.arrivals else 0):
            self.group._waiting.append(Ticket(item, 0))


@pytest.mark.parametrize(
    ("arrivals", "write_seconds", "rests"),
    [
        ([0, 2, 2, 2], 0.1, 3),  # all of the six are back: two wait, four were answered
        ([4], 0.1, 1),
        ([0, 0, 4], 0.1, 2),  # nobody comes
        ([0, 1, 0, 0, 3], 0.1, 4),  # nobody comes any more
        ([1, 1, 1, 1], 0.002, 2),  # as long as the write took
        ([0, 1] * 100, 10.0, 8),  # all are back, one after the other
    ],
)
def test_a_gathering_group_waits_for_who_comes_back(
    monkeypatch: pytest.MonkeyPatch,
    writer: Writer,
    arrivals: list[int],
    write_seconds: float,
    rests: int,
) -> None:
    group = GroupCommit(writer, name="test", gathers=True)
    group._waiting.extend(Ticket(item, 0) for item in range(2))
    clock = Rests(group, arrivals)
    monkeypatch.setattr(group_commit, "time", clock)
    group._linger(answered=4, write_seconds=write_seconds)
    assert clock.taken == rests


def test_a_store_that_was_slow_is_not_waited_for_as_long_again(
    monkeypatch: pytest.MonkeyPatch, writer: Writer
) -> None:
    group = GroupCommit(writer, name="test", gathers=True)
    clock = Rests(group, [1] * 100)
    monkeypatch.setattr(group_commit, "time", clock)
    group._linger(answered=200, write_seconds=10.0)
    assert clock.now == pytest.approx(100.0 + group_commit.MOST_LINGER_SECONDS, abs=0.0015)


def test_other_groups_rest_once(monkeypatch: pytest.MonkeyPatch, writer: Writer) -> None:
    group = GroupCommit(writer, name="test")
    clock = Rests(group, [1, 1, 1, 1])
    monkeypatch.setattr(group_commit, "time", clock)
    group._linger(answered=4, write_seconds=1.0)
    assert clock.taken == 1


def test_a_gathering_group_that_is_full_or_closing_does_not_wait(
    monkeypatch: pytest.MonkeyPatch, writer: Writer
) -> None:
    group = GroupCommit(writer, name="test", gathers=True, max_group=3)
    group._waiting.extend(Ticket(item, 0) for item in range(3))
    clock = Rests(group, [])
    monkeypatch.setattr(group_commit, "time", clock)
    group._linger(answered=3, write_seconds=1.0)
    group._waiting.clear()
    group.close()
    group._linger(answered=3, write_seconds=1.0)
    assert clock.taken == 0


BUSY_LOOP = """
import gevent.monkey; gevent.monkey.patch_all()
import gevent, time
from gevent.monkey import get_original
from models.store.group_commit import GroupCommit

def write(items):
    for _ in range(5):  # answers that the event loop passes on one after the other
        time.sleep(0.02)
    return items

block = get_original("time", "sleep")
group = GroupCommit(write, name="busy")
waiting = gevent.spawn(group.submit, 7, 0.2)
gevent.sleep(0.01)
for _ in range(4):
    block(0.3)  # other requests use the processor
    gevent.sleep(0)
print(waiting.get())
"""


def test_a_caller_in_a_busy_process_is_not_told_that_the_store_is_away() -> None:
    done = subprocess.run(
        (sys.executable, "-c", BUSY_LOOP), capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert (done.stdout, done.returncode) == ("7\n", 0), done.stderr
