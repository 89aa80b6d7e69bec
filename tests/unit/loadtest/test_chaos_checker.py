"""The judge of applications finds what it is there to find."""

from __future__ import annotations

from dataclasses import replace

import pytest

from loadtest.chaos.facts import expected_score as score_of
from tests.support.promises import JobFacts, Promise, judge

ROLE = "chaos"
PROMISES = [Promise(f"id-{number}", f"candidate {number}", 0.0, 0.01) for number in range(5)]
JOBS = [JobFacts(one.id, "succeeded", 1, 0, score_of(one.candidate, ROLE)) for one in PROMISES]
LISTED = [one.id for one in PROMISES]


def test_kept_promises_are_no_fault() -> None:
    report = judge(PROMISES, ROLE, JOBS, LISTED)
    assert report.ok
    assert list(report.figures.values()) == [5, 0, 0]


def test_lost_answers_and_lost_workers_are_no_fault() -> None:
    jobs = [*JOBS[:-1], replace(JOBS[-1], crashes=2), JobFacts("id-x", "succeeded", 1, 0, 50.0)]
    report = judge(PROMISES, ROLE, jobs, [*LISTED, "id-x"])
    assert report.ok
    assert list(report.figures.values()) == [5, 1, 2]


@pytest.mark.parametrize(
    ("fault", "jobs", "listed"),
    [
        ("lost", JOBS[1:], LISTED[1:]),
        ("unfinished", [replace(JOBS[0], status="running", score=None), *JOBS[1:]], LISTED[1:]),
        ("wrong_end", [replace(JOBS[0], status="dead"), *JOBS[1:]], LISTED),
        ("settled_twice", [replace(JOBS[0], attempt=2), *JOBS[1:]], LISTED),
        ("wrong_score", [replace(JOBS[0], score=-1.0), *JOBS[1:]], LISTED),
        ("missing_on_leaderboard", JOBS, LISTED[1:]),
        ("twice_on_leaderboard", JOBS, [*LISTED, LISTED[0]]),
    ],
)
def test_each_fault_is_found_and_named(fault: str, jobs: list[JobFacts], listed: list[str]) -> None:
    report = judge(PROMISES, ROLE, jobs, listed)
    assert not report.ok
    assert [name for name, found in report.faults.items() if found] == [fault]
    assert "id-0" in report.faults[fault][0]
