"""The pool experiment's arithmetic, and the baseline's count of who waits for a connection."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import create_engine
from sqlalchemy.exc import TimeoutError as PoolTimeout

from loadtest.baselines.plain_celery.store import watch_in
from loadtest.figures import rolling_rate
from loadtest.lab.experiment import Size
from loadtest.lab.pool.verdict import COLUMNS, Course, bars, findings
from loadtest.lab.submissions import Submissions
from loadtest.report import table
from loadtest.users.wire import Arrival

BEGIN = 1_000.0
OFFERED = 20.0


def course(
    per_second: float,
    *,
    seconds: float = 60.0,
    pool_size: int = 2,
    waiters: int = 0,
    unscored: int = 0,
    refused: int = 0,
) -> Course:
    """All arrivals at the offered rate, scored at the given one."""
    count = int(OFFERED * seconds)
    arrivals = [
        Arrival(
            BEGIN + n / OFFERED, 0.01, 503 if n < refused else 202, "" if n < refused else f"{n}"
        )
        for n in range(count)
    ]
    finished = {f"{n}": BEGIN + 1.5 + n / per_second for n in range(refused, count - unscored)}
    rows: list[Mapping[str, float | str]] = [
        {"step": "x", "second": n, "at": BEGIN + n, "waiting": 3 * n, "waiters": waiters}
        for n in range(5)
    ]
    submissions = Submissions(arrivals, finished, rows)
    return Course("Side, so many", 4, pool_size, OFFERED, seconds, submissions)


def test_course_reads_rate_and_tail_from_the_rows() -> None:
    starved = course(OFFERED * 2 / 3)

    assert starved.scored_per_second == pytest.approx(13.33, abs=0.01)
    assert starved.percent_of_offered == pytest.approx(100 * 2 / 3, abs=0.1)
    # The last of 1,200 arrives after 60 s, is the last to be scored, and that takes 90 s.
    assert starved.scored_seconds(0.99) == pytest.approx(1.5 + 0.99 * 30, abs=0.1)
    assert starved.queued == 12
    assert starved.submissions.gauge("waiting")[1] == (1.0, 3.0)


def test_what_was_never_scored_is_no_better_than_the_slowest() -> None:
    scored = course(OFFERED)
    some_lost = course(OFFERED / 2, unscored=100)

    assert scored.submissions.unscored == 0
    lost = some_lost.submissions
    assert lost.unscored == 100
    slowest = max(lost.scored_at[a.id] - a.intended_at for a in lost.accepted[:-100])
    assert some_lost.scored_seconds(0.99) == slowest


def test_refused_submissions_are_counted_and_wait_for_nothing() -> None:
    partly = course(OFFERED, refused=7)

    assert partly.submissions.refused == 7
    assert partly.submissions.unscored == 0
    assert table("", COLUMNS, [partly]).rows[0][-1] == "7"


@given(
    moments=st.lists(st.floats(min_value=0.0, max_value=59.999), max_size=200),
    window=st.integers(min_value=1, max_value=5),
)
def test_rolling_rate_loses_and_invents_no_event(moments: list[float], window: int) -> None:
    rates = [rate for _, rate in rolling_rate(moments, 0.0, 60.0 + window, window)]

    # Each event is in as many windows as a window has seconds.
    assert sum(rates) == pytest.approx(len(moments))
    assert all(rate >= 0 for rate in rates)


def test_the_reference_figures_reach_every_bar() -> None:
    small = course(13.3, pool_size=5, waiters=20)
    large = course(19.8, pool_size=10)
    fairline = course(19.95)

    assert [bar.claim for bar in bars(small, large, fairline, Size.FULL) if not bar.passed] == []
    told = " ".join(findings(small, large, fairline))
    assert "13.3 of 20/s" in told and "20 busy slots" in told and "(8 in all)" in told


@pytest.mark.parametrize(
    ("small", "large", "fairline", "missed"),
    [
        (course(16.0), course(20.0), course(20.0), "starves"),
        (course(13.0), course(18.0), course(20.0), "recovers"),
        (course(13.0), course(20.0), course(19.7), "Fairline: scored"),
        (course(13.0), course(20.0), course(20.0, waiters=1), "waiters"),
        (course(13.0), course(20.0), course(20.0, pool_size=3), "connections per worker"),
        (course(13.0), course(20.0), course(20.0, unscored=1), "not scored"),
        (course(13.0), course(20.0, refused=1), course(20.0), "refused"),
    ],
)
def test_each_bar_can_be_missed(
    small: Course, large: Course, fairline: Course, missed: str
) -> None:
    failed = [bar.claim for bar in bars(small, large, fairline, Size.FULL) if not bar.passed]

    assert any(missed in claim for claim in failed), failed


def said(folder: Path) -> dict[str, int]:
    (file,) = folder.glob("*.json")
    found: dict[str, int] = json.loads(file.read_text())
    return found


def test_a_caller_without_a_connection_is_counted_while_it_waits(tmp_path: Path) -> None:
    engine = create_engine(
        "sqlite://",
        poolclass=watch_in(str(tmp_path)),
        pool_size=1,
        max_overflow=0,
        connect_args={"check_same_thread": False},
    )
    got_one = threading.Event()

    def wait_for_one() -> None:
        with engine.connect():
            got_one.set()

    with engine.connect():
        assert said(tmp_path) == {
            "size": 1, "in_use": 1, "waiting": 0, "waited": 0, "timeouts": 0,
        }  # fmt: skip
        waiter = threading.Thread(target=wait_for_one)
        waiter.start()
        while not said(tmp_path)["waiting"]:
            assert not got_one.wait(0.002)
    waiter.join(5)

    assert got_one.is_set()
    assert said(tmp_path) == {"size": 1, "in_use": 0, "waiting": 0, "waited": 1, "timeouts": 0}
    engine.dispose()


def test_a_caller_who_gives_up_is_counted(tmp_path: Path) -> None:
    engine = create_engine(
        "sqlite://",
        poolclass=watch_in(str(tmp_path)),
        pool_size=1,
        max_overflow=0,
        pool_timeout=0.01,
    )
    with engine.connect(), pytest.raises(PoolTimeout):
        engine.connect()

    assert said(tmp_path)["timeouts"] == 1
    assert said(tmp_path)["waiting"] == 0
    engine.dispose()
