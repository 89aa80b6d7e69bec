"""The judge of the chaos runs finds what it is there to find, and nothing else."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from loadtest.chaos.ends import Excuses, wrong_end
from loadtest.chaos.facts import Attempt, Job, World, expected_score
from loadtest.chaos.judge import Findings, Judge
from loadtest.chaos.load import Exchange
from loadtest.chaos.plan import Act, Hit, Order, Request
from loadtest.chaos.striker import Strike
from loadtest.chaos.witness import Line

ECHO = Job(
    *("id-echo", "echo", "short", "succeeded"),
    *(1, 0, 0, 0, 1),
    payload={"tag": "k-0-1"},
    result={"tag": "k-0-1"},
    finished_at=50.0,
)
MARK = replace(
    ECHO,
    id="id-mark",
    type="chaos.mark",
    payload={"tag": "u-0-2", "seconds": 1},
    result={"tag": "u-0-2", "pid": 5},
    worker="worker@h:5",
)
FAIL = replace(
    ECHO, id="id-fail", type="fail", payload={"class": "PERMANENT", "times": 1}, result=None
)
FAIL = replace(FAIL, status="dead", error_class="PERMANENT", error_message="as asked")
WORK = {"candidate": "u-0-4", "role": "chaos", "payload": {"letter": "I am u-0-4."}}
SCORED = replace(
    ECHO,
    id="id-app",
    type="score_application",
    payload=WORK,
    score=expected_score("u-0-4", "chaos"),
)
DEAD_ON_RECORD = Attempt("id-fail", 1, "worker@h:9", 40.0, 41.0, "dead", "PERMANENT", "as asked")
CRASHED = Attempt("id-echo", 1, "worker@h:7", 20.0, 26.0, "queued", "WORKER_CRASH", "lost")


def posted(
    job: Job, key: str | None, status: int = 202, execute_at: float | None = None
) -> Exchange:
    order = Order(job.type, job.payload, execute_at)
    request = Request("job", "POST", "/jobs", order.body(), key, (order,))
    document = {"id": job.id, "status": "queued"} if status == 202 else None
    return Exchange(0, 1, request, 10.0, 10.1, status, document)


def cancelled(job: Job, status: int) -> Exchange:
    request = Request("cancel", "DELETE", f"/jobs/{job.id}")
    return Exchange(0, 1, request, 60.0, 60.1, status, {"id": job.id})


def replayed(*ids: str, status: int = 200) -> Exchange:
    request = Request("replay", "POST", "/dead-letters/replay", {})
    return Exchange(0, 1, request, 60.0, 60.1, status, {"ids": list(ids)} if status else None)


def looked(job: Job, status: str) -> Exchange:
    request = Request("look", "GET", f"/jobs/{job.id}")
    return Exchange(0, 1, request, 60.0, 60.1, 200, {"id": job.id, "status": status})


def struck(
    target: str, pid: int, at: float, act: Act = Act.KILL, until: float | None = None
) -> Strike:
    return Strike(Hit(1, 0.0, target, act, 0.5), (pid,), at, until)


EXCHANGES = [
    posted(ECHO, "k-0-1"),
    posted(ECHO, "k-0-1"),
    posted(MARK, None),
    posted(FAIL, "k-0-3"),
    posted(SCORED, None),
]
KEYS = {"k-0-1": ["id-echo"], "k-0-3": ["id-fail"]}
LINES = [Line(30.0, 5, "id-mark", "start")]


def judge(
    jobs: tuple[Job, ...] = (ECHO, MARK, FAIL),
    *,
    scored: Job = SCORED,
    exchanges: tuple[Exchange, ...] = (),
    without: Exchange | None = None,
    strikes: tuple[Strike, ...] = (),
    lines: tuple[Line, ...] = (),
    attempts: tuple[Attempt, ...] = (DEAD_ON_RECORD,),
    heard: tuple[tuple[str, str], ...] = (),
    promotions: tuple[tuple[float, float], ...] = (),
    **facts: Any,
) -> Findings:
    by_job: dict[str, list[Attempt]] = {}
    for attempt in attempts:
        by_job.setdefault(attempt.job_id, []).append(attempt)
    rows = {job.id: job for job in (*jobs, scored)}
    world = World(rows, by_job, **{"keys": KEYS, "listed": ["id-app"], **facts})
    told = [*((job.id, job.status) for job in rows.values()), *heard]
    log = [one for one in (*EXCHANGES, *exchanges) if one is not without]
    return Judge(log, world, strikes, [*LINES, *lines], told, promotions).report()


def faults(report: Findings) -> list[str]:
    return [name for name, found in report.faults.items() if found]


def test_kept_promises_are_no_fault() -> None:
    report = judge()
    assert report.ok, report
    assert (report.figures["promised"], report.figures["succeeded"]) == (4, 3)


def test_a_lost_answer_is_no_fault() -> None:
    silent = replace(EXCHANGES[2], status=0, document=None)
    report = judge(exchanges=(silent,), without=EXCHANGES[2])
    assert report.ok, report
    assert report.figures["admitted, answer lost"] == 1


STEPS = [
    Line(1.0, 5, "id-s", "start"),
    Line(1.1, 5, "id-s", "loaded", 0),
    Line(1.2, 5, "id-s", "kept", 1),
    Line(1.3, 5, "id-s", "kept", 2),
]


@pytest.mark.parametrize(
    ("fault", "given"),
    [
        ("lost", {"jobs": (ECHO, FAIL)}),
        ("stuck", {"live": ["id-echo"]}),
        ("altered", {"jobs": (replace(ECHO, type="sleep", result={"slept": 1}), MARK, FAIL)}),
        ("wrong result", {"jobs": (replace(ECHO, result={}), MARK, FAIL)}),
        ("wrong end", {"jobs": (replace(ECHO, status="cancelled"), MARK, FAIL)}),
        ("wrong end", {"jobs": (replace(ECHO, status="expired", attempt=0), MARK, FAIL)}),
        (
            "wrong end",
            {"jobs": (replace(ECHO, status="dead", attempt=0), MARK, FAIL)},
        ),
        ("settled twice", {"jobs": (replace(ECHO, attempt=2), MARK, FAIL)}),
        ("settled twice", {"jobs": (replace(ECHO, crashes=1), MARK, FAIL)}),
        ("settled twice", {"attempts": (DEAD_ON_RECORD, replace(CRASHED, lease=2))}),
        ("end changed", {"exchanges": (looked(ECHO, "expired"),)}),
        ("admitted twice", {"jobs": (ECHO, MARK, FAIL, replace(MARK, id="id-again"))}),
        ("admitted twice", {"jobs": (ECHO, MARK, FAIL, replace(FAIL, id="id-again"))}),
        ("key not kept", {"keys": {**KEYS, "k-0-1": ["id-other", "id-echo"]}}),
        ("step repeated", {"lines": (*STEPS, STEPS[0], replace(STEPS[1], step=1))}),
        ("ran after its end", {"lines": (Line(51.0, 6, "id-mark", "start"),)}),
        ("cancel not kept", {"exchanges": (cancelled(ECHO, 200),)}),
        ("cancel not kept", {"exchanges": (cancelled(FAIL, 202),)}),
        (
            "cancel not kept",
            {
                "jobs": (replace(ECHO, status="cancelled", started_at=51.0), MARK, FAIL),
                "exchanges": (cancelled(ECHO, 200),),
            },
        ),
        ("replay not kept", {"exchanges": (replayed("id-fail"),)}),
        ("replay not kept", {"jobs": (replace(ECHO, replays=1), MARK, FAIL)}),
        ("event lost", {"heard": (("id-mark", "cancelled"),)}),
        ("event repeated", {"heard": (("id-mark", "succeeded"),)}),
        ("wrong result", {"jobs": (ECHO, replace(MARK, worker="worker@h:6"), FAIL)}),
        ("wrong result", {"scored": replace(SCORED, score=-1.0)}),
        ("leaderboard", {"listed": []}),
        ("leaderboard", {"listed": ["id-app", "id-nobody"]}),
        ("leaderboard", {"listed": ["id-app", "id-app"]}),
        ("leaderboard", {"scored": replace(SCORED, status="dead")}),
        ("miscounted", {"miscounted": ["demo"]}),
        ("usage", {"unbilled": ["demo"]}),
        ("forgotten in a queue", {"forgotten": ["id-echo lease 1"]}),
        ("unexpected answer", {"exchanges": (posted(ECHO, None, status=500),)}),
    ],
)
def test_each_fault_is_found_and_named(fault: str, given: dict[str, Any]) -> None:
    found = faults(judge(**given))
    assert fault in found


def test_a_leaderboard_out_of_order_is_found() -> None:
    worse = replace(SCORED, id="id-worse", score=-1.0)
    report = judge((ECHO, MARK, FAIL, worse), listed=["id-worse", "id-app"])
    assert any("not by score" in fault for fault in report.faults["leaderboard"])


def test_an_end_may_be_sent_again_after_a_promotion() -> None:
    again = (("id-echo", "succeeded"),)
    assert faults(judge(heard=again)) == ["event repeated"]
    assert judge(heard=again, promotions=((55.0, 90.0),)).ok
    for span in ((40.0, 49.0), (500.0, 600.0)):  # before it ended, and long after
        assert faults(judge(heard=again, promotions=(span,))) == ["event repeated"]


def test_so_may_the_first_end_of_a_job_that_was_replayed_later() -> None:
    done = replace(FAIL, status="succeeded", result={"failed": 1}, replays=1, finished_at=900.0)
    done = replace(done, lease=2, error_class=None, error_message=None)
    told: dict[str, Any] = {
        "jobs": (ECHO, MARK, done),
        "exchanges": (replayed("id-fail"),),
        "heard": (("id-fail", "dead"), ("id-fail", "dead"), ("id-fail", "succeeded")),
    }
    assert faults(judge(**told)) == ["event repeated"]
    assert judge(**told, promotions=((42.0, 90.0),)).ok


def test_a_job_that_starts_before_its_time_is_found() -> None:
    early = posted(MARK, None, execute_at=31.0)
    assert faults(judge(exchanges=(early,), without=EXCHANGES[2])) == ["ran too early"]


def test_a_run_that_resumes_where_the_last_one_stopped_repeats_nothing() -> None:
    resumed = (STEPS[0], replace(STEPS[1], step=2))
    assert judge(lines=(*STEPS, *resumed)).ok


def test_a_frozen_worker_may_start_what_has_ended_meanwhile() -> None:
    late = (Line(51.0, 6, "id-mark", "start"),)
    frozen = struck("medium", 6, 40.0, Act.FREEZE, until=50.9)
    assert judge(lines=late, strikes=(frozen,)).ok
    assert faults(judge(lines=late, strikes=(struck("medium", 6, 40.0),))) == ["ran after its end"]


def test_a_replayed_job_may_have_been_dead_before() -> None:
    again = replace(FAIL, status="succeeded", replays=1, result={"failed": 1}, attempt=1)
    seen = (looked(FAIL, "dead"), replayed("id-fail"))
    report = judge((ECHO, MARK, replace(again, lease=2)), exchanges=seen)
    assert report.ok, report


def test_an_unanswered_replay_may_have_happened() -> None:
    again = replace(FAIL, status="succeeded", replays=1, result={"failed": 1}, lease=2)
    report = judge((ECHO, MARK, again), exchanges=(replayed(status=0),))
    assert report.ok, report


def test_a_lost_worker_costs_no_try_and_is_told_apart_from_one_nobody_hit() -> None:
    job = replace(ECHO, crashes=1, lease=2)
    given: dict[str, Any] = {"attempts": (DEAD_ON_RECORD, CRASHED)}
    report = judge((job, MARK, FAIL), strikes=(struck("short", 7, 20.5),), **given)
    assert report.ok and report.figures["runs lost"] == 1
    assert report.figures["runs lost without a hit"] == 0
    report = judge((job, MARK, FAIL), strikes=(struck("short", 8, 20.5),), **given)
    assert report.figures["runs lost without a hit"] == 1


LOST = [replace(CRASHED, lease=number, worker=f"worker@h:{number}") for number in range(1, 6)]
KILLED = replace(
    ECHO, status="dead", attempt=0, crashes=5, lease=5, error_class="WORKER_CRASH", result=None
)


def test_a_job_may_die_of_five_lost_workers_if_each_was_hit() -> None:
    strikes = [struck("short", number, 21.0) for number in range(1, 6)]
    assert wrong_end(KILLED, LOST, Excuses(strikes), asked_to_stop=False) is None
    assert wrong_end(KILLED, LOST, Excuses(strikes[1:]), asked_to_stop=False) is not None
    assert wrong_end(KILLED, LOST[1:], Excuses(strikes), asked_to_stop=False) is not None


def test_a_job_must_not_die_of_a_neighbour_that_kills() -> None:
    strikes = [struck("short", number, 21.0) for number in range(1, 6)]
    assert wrong_end(KILLED, LOST, Excuses(strikes, LOST[:2]), asked_to_stop=False) is None
    assert wrong_end(KILLED, LOST, Excuses(strikes, LOST[:3]), asked_to_stop=False) is not None


def test_a_job_that_kills_must_have_killed_five() -> None:
    killer = replace(KILLED, type="crash", payload={})
    nobody = Excuses(())
    assert wrong_end(killer, LOST, nobody, asked_to_stop=False) is None
    assert wrong_end(replace(killer, crashes=4), LOST, nobody, asked_to_stop=False) is not None
    alive = replace(killer, status="succeeded")
    assert wrong_end(alive, LOST, nobody, asked_to_stop=False) is not None


@pytest.mark.parametrize(
    ("failure", "times", "attempt", "status", "fine"),
    [
        ("APP_ERROR", 2, 3, "succeeded", True),
        ("APP_ERROR", 2, 2, "dead", False),
        ("DEPENDENCY", 2, 1, "succeeded", True),
        ("DEPENDENCY", 2, 0, "dead", False),
        ("TIMEOUT", 1, 2, "succeeded", True),
        ("TIMEOUT", 2, 2, "dead", True),
        ("TIMEOUT", 1, 1, "dead", False),
        ("TIMEOUT", 2, 3, "succeeded", False),
        ("RESOURCE_VIOLATION", 2, 2, "dead", True),
        ("PERMANENT", 1, 1, "dead", True),
        ("PERMANENT", 1, 2, "dead", False),
        ("PERMANENT", 1, 1, "succeeded", False),
        ("POISON", 1, 1, "dead", True),
    ],
)
def test_failures_end_as_their_class_says(
    failure: str, times: int, attempt: int, status: str, fine: bool
) -> None:
    payload = {"class": failure, "times": times}
    error = failure if status == "dead" else None
    job = replace(FAIL, payload=payload, attempt=attempt, status=status, error_class=error)
    assert (wrong_end(job, [], Excuses(()), asked_to_stop=False) is None) == fine
