"""What the load test of a stampede makes of the rows it finds."""

from __future__ import annotations

from loadtest.stampede import Found, Wait, judge


def found(*waits: Wait, unanswered: int = 0, late: float = -1.0) -> Found:
    return Found(100.0, 110.0, late, list(waits), unanswered)


def wait(created_at: float, seconds: float) -> Wait:
    return Wait(created_at, seconds / 2, seconds, seconds + 0.01)


def test_a_wait_belongs_to_the_phase_in_which_the_job_was_submitted() -> None:
    waits = [wait(99.9, 0.1), wait(100.0, 0.2), wait(109.9, 0.3), wait(110.0, 0.4)]
    run = found(*waits)
    assert [run.phase(name) for name in ("before", "during", "after")] == [
        waits[:1],
        waits[1:3],
        waits[3:],
    ]


def test_only_the_waits_during_the_stampede_decide() -> None:
    slow = [wait(90.0, 9.0), wait(120.0, 9.0)]
    quick = [wait(105.0, 0.2) for _ in range(100)]
    assert judge(found(*slow, *quick), 1000, 20.0).passed
    assert not judge(found(*quick, wait(105.0, 0.6), wait(105.0, 0.6)), 1000, 20.0).passed


def test_a_lost_submission_or_a_crowd_that_came_late_is_no_pass() -> None:
    quick = wait(105.0, 0.2)
    assert not judge(found(quick, unanswered=1), 1000, 20.0).passed
    assert not judge(found(quick, late=0.5), 1000, 20.0).passed
