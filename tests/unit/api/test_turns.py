"""Long reads of one tenant leave time to the others."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from types import SimpleNamespace

import gevent
import pytest

from app.api.http import turns
from app.api.http.turns import READS_AT_ONCE, ROWS_AT_ONCE, in_turns, long_read
from models.store.errors import StateStoreUnavailable


def test_others_have_their_turn_between_parts_of_a_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns.time, "sleep", gevent.sleep)
    other = gevent.spawn(lambda: None)
    rows = in_turns(range(2 * ROWS_AT_ONCE))

    assert list(islice(rows, ROWS_AT_ONCE)) == list(range(ROWS_AT_ONCE))
    assert not other.dead
    assert list(rows) == list(range(ROWS_AT_ONCE, 2 * ROWS_AT_ONCE))
    assert other.dead


def test_a_short_page_is_written_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns.time, "sleep", lambda _: pytest.fail("it waited"))
    assert list(in_turns(range(ROWS_AT_ONCE))) == list(range(ROWS_AT_ONCE))


def test_reads_of_a_tenant_wait_for_each_other_and_for_nobody_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asking, waited = threading.local(), []
    monkeypatch.setattr(turns, "time_left", lambda: asking.seconds)
    monkeypatch.setattr(turns, "note_waited", waited.append)
    monkeypatch.setattr(turns, "current_tenant", lambda: SimpleNamespace(id=asking.tenant))
    # One for each cell.
    applications = {cell: SimpleNamespace() for cell in (1, 2)}
    monkeypatch.setattr(turns, "current_services", lambda: applications[asking.cell])
    entered, leaving = threading.Semaphore(0), threading.Event()

    @long_read
    def view() -> int:
        entered.release()
        assert leaving.wait(30)
        return int(asking.tenant)

    def ask(tenant: int, seconds: float = 30.0, cell: int = 1) -> int:
        asking.tenant, asking.seconds, asking.cell = tenant, seconds, cell
        return view()

    with ThreadPoolExecutor(READS_AT_ONCE + 3) as pool:
        answers = [pool.submit(ask, 1) for _ in range(READS_AT_ONCE + 1)]
        assert all(entered.acquire(timeout=30) for _ in range(READS_AT_ONCE))
        assert not entered.acquire(timeout=0.2), "one too many was let in"
        with pytest.raises(StateStoreUnavailable):
            ask(1, 0.05)
        other = pool.submit(ask, 2)
        assert entered.acquire(timeout=30), "another tenant waited"
        elsewhere = pool.submit(ask, 1, cell=2)
        assert entered.acquire(timeout=30), "the same tenant waited in another cell"
        leaving.set()
        assert [answer.result(30) for answer in answers] == [1] * (READS_AT_ONCE + 1)
        assert (other.result(30), elsewhere.result(30)) == (2, 1)
    assert len(waited) == READS_AT_ONCE + 3 and max(waited) > 0.04
    assert len(turns._reading) == 0, "nothing is kept of tenants that read nothing"
