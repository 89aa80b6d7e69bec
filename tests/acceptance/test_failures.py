"""Every way to fail, live: the tries, the waits and the end that the table promises."""

from __future__ import annotations

import os
import re
import signal
from typing import Any

import pytest

from app.admission import Submission, SubmissionGroup
from loadtest.chaos.stack import Stack
from models.jobs.admit import admit_group
from models.jobs.ids import new_id
from tests.acceptance.client import Client, client_of

#: What chance may add to or take from a wait, and a moment for the clocks of two statements.
JITTER, MOMENT = 0.1, 0.2
#: The longest wait after a lost worker; after the first there is none.
CRASH_WAIT_SECONDS = 16.0

#: Class and what else the payload says → waits between the runs, end, tries spent.
TABLE: dict[str, tuple[dict[str, Any], list[float], str, int]] = {
    "APP_ERROR": ({}, [1, 5, 30, 300], "dead", 5),
    "APP_ERROR twice": ({"class": "APP_ERROR", "times": 2}, [1, 5], "succeeded", 3),
    "TIMEOUT": ({}, [1], "dead", 2),
    "RESOURCE_VIOLATION": ({}, [1], "dead", 2),
    "PERMANENT": ({}, [], "dead", 1),
    "POISON": ({}, [], "dead", 1),
    "DEPENDENCY": ({"times": 3}, [2, 4, 8], "succeeded", 1),
    "DEPENDENCY that says when": (
        {"class": "DEPENDENCY", "times": 2, "retry_after": 20},
        [20, 20],
        "succeeded",
        1,
    ),
}


#: Of jobs that wait for their next run: make them due, and tell how long they were to wait. At
#: once for all of them: the shortest wait is a second.
HURRY = """
    UPDATE jobs AS job SET execute_at = now()
    FROM (SELECT id, execute_at, (SELECT max(ended_at) FROM attempts WHERE job_id = id) AS failed_at
          FROM jobs
          WHERE id = ANY (%s::uuid[]) AND status = 'scheduled' AND execute_at > now()) AS waiting
    WHERE job.id = waiting.id AND job.status = 'scheduled'
    RETURNING job.id::text, extract(epoch FROM waiting.execute_at - waiting.failed_at)::float8 AS s
"""


def test_each_failure_class_gets_its_tries_its_waits_and_its_end(platform: Client) -> None:
    ids = {
        name: platform.submit_job("fail", {"class": name, **payload})
        for name, (payload, *_) in TABLE.items()
    }
    names = {job_id: name for name, job_id in ids.items()}
    waits: dict[str, list[float]] = {name: [] for name in TABLE}
    left = "SELECT count(*) FROM jobs WHERE id = ANY (%s::uuid[]) AND finished_at IS NULL"

    def all_ended() -> bool:
        for row in platform.rows(HURRY, list(names)):
            waits[names[row.id]].append(row.s)
        return not platform.rows(left, list(names))[0][0]

    platform.stack.wait(all_ended, "all of them to end", 80)
    for name, (payload, planned, end, tries) in TABLE.items():
        row = platform.job(ids[name])
        assert (row.status, row.attempt) == (end, tries), name
        assert len(waits[name]) == len(planned), f"{name}: {waits[name]}"
        longer_only = "retry_after" in payload
        for wait, seconds in zip(waits[name], planned, strict=True):
            least = seconds if longer_only else seconds * (1 - JITTER)
            assert least - MOMENT <= wait <= seconds * (1 + JITTER) + MOMENT, f"{name}: {wait}"
        shown = platform.show(ids[name])
        failed = len(planned) + (end == "dead")
        classes = [attempt["error"]["class"] for attempt in shown["attempts"]]
        assert classes == [payload.get("class", name)] * failed, name
    assert len({round(wait, 3) for some in waits.values() for wait in some}) > 8, "no jitter"


@pytest.mark.timeout(180)
def test_job_that_kills_its_worker_dies_after_five_and_its_neighbours_finish(
    platform: Client,
) -> None:
    killer = platform.submit_job("crash")
    neighbours: list[str] = []
    waits: list[float] = []

    def dead() -> bool:
        waits.extend(row.s for row in platform.rows(HURRY, [killer]))
        if len(neighbours) < 200:
            neighbours.extend(platform.submit_job("echo", {"n": n}) for n in range(20))
        return bool(platform.job(killer).status == "dead")

    platform.stack.wait(dead, "the killer to be dead", 120, pause=0.5)
    while len(neighbours) < 200:
        neighbours.append(platform.submit_job("echo"))
    row = platform.job(killer)
    assert (row.crashes, row.attempt, row.error_class) == (5, 0, "WORKER_CRASH")
    assert len(platform.show(killer)["attempts"]) == 5
    assert len(waits) <= 3 and max(waits, default=0.0) <= CRASH_WAIT_SECONDS + MOMENT, waits
    rows = platform.wait_ended(neighbours, 60)
    assert {row.attempt for row in rows} == {1}, "a crash is not the neighbours' failure"


@pytest.fixture(scope="module")
def slow_job(platform_stack: Stack) -> str:
    """Begins before a test that has to wait in another pool, so that both wait together."""
    platform_stack.wait_ready()
    with client_of(platform_stack) as client:
        return client.submit_job("slow_in_short", {"seconds": 10})


@pytest.mark.usefixtures("slow_job")
def test_killed_count_goes_on_at_its_last_step_with_five_megabytes_in_s3(
    platform: Client,
) -> None:
    payload = {"to": 10, "seconds_each": 0.3, "ballast_bytes": 5_000_000}
    job_id = platform.submit_job("count", payload)

    def at_step(step: int) -> bool:
        rows = platform.rows("SELECT blob FROM checkpoints WHERE job_id = %s", job_id)
        return bool(rows) and f"/{job_id}.1.{step}." in rows[0][0]

    platform.stack.wait(lambda: at_step(7), "the seventh step", 60)
    os.kill(int(platform.job(job_id).worker.rpartition(":")[2]), signal.SIGKILL)
    # Its parent says so: nobody waits a minute for the lease to run out.
    [row] = platform.wait_ended([job_id], 40)
    assert (row.crashes, row.attempt) == (1, 1)
    assert [step for step, _ in row.result["steps"]] == list(range(1, 11)), "a step ran twice"
    assert row.result["runs"] in ([1, 8], [1, 9]), "finished steps are not repeated"


def test_slow_job_in_the_short_pool_runs_once_and_is_counted(
    platform: Client, slow_job: str
) -> None:
    [row] = platform.wait_ended([slow_job], 60)
    assert (row.lease, row.attempt, row.crashes) == (1, 1, 0)
    assert row.result == {"attempt": 1, "first": True}
    pattern = re.compile(r'^fairline_pool_violations\{type="slow_in_short"\} 1\b', re.M)
    platform.stack.wait(
        lambda: bool(pattern.search(platform.metrics())), "the violation to be told", 30
    )


def test_job_of_a_type_that_no_worker_has_says_so_and_can_be_cancelled(platform: Client) -> None:
    stranger = Submission(new_id(), 1, "from_elsewhere", "short", "{}")
    admit_group(platform.engine, [SubmissionGroup((stranger,))], express=False)
    platform.stack.wait(
        lambda: "FAIRLINE_JOB_MODULES" in str(platform.show(stranger.id)["error"]), "a word", 40
    )
    assert platform.api.call("DELETE", f"/jobs/{stranger.id}").status == 200
    assert platform.show(stranger.id)["status"] == "cancelled"


def test_a_pool_is_an_entry_and_a_worker(platform: Client) -> None:
    job_id = platform.submit_job("render", {"frame": 7})
    [row] = platform.wait_ended([job_id])
    assert (row.pool, row.result) == ("gpu", {"rendered": 7})
    served = platform.rows("SELECT pools FROM processes WHERE name = %s", row.worker)
    assert served[0].pools == ["gpu"]
