"""The stack as ``make up`` starts it, on each broker: it works, heals, and leaves nothing."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families

from app.stack.programs import flask
from loadtest.chaos.facts import wait_until_settled
from loadtest.chaos.stack import Stack, embedded_stack
from tasks.scorers.protocol import ApplicationText
from tasks.scorers.simulated import SimulatedScorer
from tests.acceptance.client import Client, client_of, new_role
from tests.acceptance.conftest import need_rabbitmq
from tests.support.promises import ClientLog, Submitter, check

#: A process that dies is replaced within five seconds; a busy machine may take twice that.
REPLACED_SECONDS = 10.0
#: The second start in a home takes no longer.
SECOND_UP_SECONDS = 10.0
#: … unless others take more than this of the machine while it starts.
FOREIGN_SHARE = 0.1


@pytest.fixture(
    scope="module", params=["rabbitmq", pytest.param("filesystem", marks=pytest.mark.long)]
)
def stack(request: pytest.FixtureRequest) -> Iterator[Stack]:
    if request.param == "rabbitmq":
        need_rabbitmq()
    with embedded_stack(BROKER=request.param, FAIRLINE_SCORE_SECONDS="0.1") as started:
        yield started


@pytest.fixture
def user(stack: Stack) -> Iterator[Client]:
    stack.wait_ready()
    with client_of(stack) as client:
        yield client


def test_applications_are_scored_and_ranked(user: Client) -> None:
    role = new_role()
    ids = user.submit(30, role)
    user.wait_scored(ids)
    assert sorted(user.leaderboard(role)) == sorted(ids)


def test_the_first_documented_request_is_answered_with_its_score(user: Client) -> None:
    text = "5 years backend, Go and Python"
    body = {"candidate": "alice", "payload": text}
    answer = user.api.call("POST", "/applications", body, {"Prefer": "wait=30"})
    assert answer.status == 200, answer
    expected = SimulatedScorer(seconds=0).score(ApplicationText("alice", "general", text))
    assert answer.document["status"] == "scored"
    assert answer.document["score"] == expected.score
    assert text in answer.document["evidence"]["role_fit"]


#: One of each for every job that runs once; a busy worker may hand one back to be dispatched again.
DISPATCHED = "fairline_jobs_dispatched_total"
COUNTED = (
    "fairline_jobs_admitted_total",
    "fairline_wait_duration_seconds_count",
    "fairline_run_duration_seconds_count",
    "fairline_jobs_total",
)


def counts(user: Client) -> dict[str, float]:
    """What ``/metrics`` has counted, by metric, in all pools."""
    families = text_string_to_metric_families(user.metrics())
    found = dict.fromkeys((DISPATCHED, *COUNTED), 0.0)
    for sample in (sample for family in families for sample in family.samples):
        if sample.name in found:
            found[sample.name] += sample.value
    return found


def steps(user: Client) -> set[float]:
    """The counts that are the same once everything is counted."""
    found = counts(user)
    return {found[name] for name in COUNTED}


def test_whichever_process_counts_a_job_it_is_counted_once_at_each_step(user: Client) -> None:
    # No job of this stack has run twice so far.
    user.stack.wait(lambda: len(steps(user)) == 1, "what ran before", 30)
    before = counts(user)
    # Some go by the express lane, others through the scheduler; two API processes take them.
    user.wait_scored(user.submit(20))
    user.wait_ended(user.submit_sleeps(5, 0.01))
    user.stack.wait(lambda: steps(user) == {before[COUNTED[0]] + 25}, "25 jobs to be counted", 30)
    user.stack.wait(
        lambda: counts(user)[DISPATCHED] - before[DISPATCHED] >= 25,
        "25 dispatches to be counted",
        30,
    )


def test_demo_ends_with_the_leaderboard(user: Client) -> None:
    said = user.stack.run(*flask("demo"), FAIRLINE_PORT=str(user.stack.port)).stdout
    assert "40 applications accepted" in said
    assert "Leaderboard" in said.partition("accepted")[2]


def test_flower_shows_the_workers_and_what_they_do(user: Client) -> None:
    user.wait_scored(user.submit(1))
    names = {f"worker-{pool}-1" for pool in ("short", "medium", "long")}

    def online() -> set[str]:
        with suppress(OSError):
            workers = user.flower_workers().values()
            return {one["hostname"].partition("@")[0] for one in workers if one["status"]}
        return set()

    user.stack.wait(lambda: online() >= names, f"Flower to show {sorted(names)}", 40)
    user.stack.wait(
        lambda: "score_application" in {task["name"] for task in user.flower_tasks()},
        "Flower to name a task by its job type",
        30,
    )


def place_of(stack: Stack, name: str) -> int:
    """The process that has this name now; 0 between two lives."""
    with suppress(psutil.Error, KeyError):
        return max(stack.api_workers()) if name == "a process behind the API" else stack.pid(name)
    return 0


def kill_and_wait(stack: Stack, name: str) -> None:
    killed = place_of(stack, name)
    os.kill(killed, signal.SIGKILL)
    stack.wait(
        lambda: place_of(stack, name) not in (0, killed), f"another {name}", REPLACED_SECONDS
    )


def test_every_killed_process_is_replaced_within_five_seconds(user: Client) -> None:
    workers = ("worker-short-1", "worker-medium-1", "worker-long-1")
    for name in ("a process behind the API", "api", "scheduler-1", *workers, "flower"):
        kill_and_wait(user.stack, name)
    user.stack.wait_ready()
    user.wait_scored(user.submit(10))
    user.stack.wait(lambda: answers(user), "Flower to be back", 40)


def answers(user: Client) -> bool:
    with suppress(OSError):
        return bool(user.flower_workers())
    return False


def restart_workers(stack: Stack) -> None:
    """Ask all of them to stop and wait until they are gone; the supervisor replaces them."""
    names = [name for name in stack.pids() if name.startswith("worker-")]
    workers = [psutil.Process(stack.pid(name)) for name in names]
    for worker in workers:
        worker.terminate()
    stack.wait(lambda: not any(one.is_running() for one in workers), f"{names} to drain", 30)


def test_restarted_workers_lose_nothing_and_spend_no_try(user: Client, tmp_path: Path) -> None:
    role, log = new_role(), ClientLog(tmp_path / "promises.jsonl")
    with Submitter(user.stack.port, log, role=role).running() as submitter:
        user.stack.wait(lambda: submitter.accepted > 20, "load", 30)
        restart_workers(user.stack)
        user.stack.wait_ready()
    wait_until_settled(user.engine, 60)
    report = check(log.read(), role, user.engine, user.stack.port)
    log.close()
    assert report.ok, f"{report}\n{user.stack.logs()}"
    spent = user.rows(
        """SELECT job.id::text, attempt, crashes FROM jobs AS job JOIN applications USING (id)
           WHERE role = %s AND (attempt, crashes) <> (1, 0)""",
        role,
    )
    assert not spent, f"a restart is nobody's failure: {spent[:5]}\n{user.stack.logs()}"


def test_two_stacks_run_side_by_side(user: Client, client: Client) -> None:
    role = new_role()
    mine, theirs = user.submit(3, role), client.submit(3, role)
    user.wait_scored(mine)
    client.wait_scored(theirs)
    assert sorted(user.leaderboard(role)) == sorted(mine)
    assert sorted(client.leaderboard(role)) == sorted(theirs)


def remains(stack: Stack) -> list[str]:
    """Every process that still refers to the home of a stack."""
    found = []
    marks = (str(stack.home.path), stack.home.stack_id())
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.pid == os.getpid() or process.status() == psutil.STATUS_ZOMBIE:
                continue
            words = [*process.cmdline(), process.cwd(), *process.environ().values()]
            if any(mark in word for word in words for mark in marks):
                found.append(f"{process.pid} {' '.join(process.cmdline())[:120]}")
    return found


def test_ctrl_c_leaves_no_process(stack: Stack) -> None:
    assert stack.process is not None
    os.killpg(stack.process.pid, signal.SIGINT)  # as a terminal does
    assert stack.process.wait(60) == 0
    assert remains(stack) == []


def timed_up(stack: Stack) -> tuple[float, float]:
    """Start it; how long that took, and the share of the machine that others used meanwhile."""
    before = psutil.cpu_times()
    seconds = stack.up()
    after = psutil.cpu_times()
    assert stack.process is not None
    supervisor = psutil.Process(stack.process.pid)
    ours = sum(supervisor.cpu_times()[:4])  # those it has buried included
    ours += sum(sum(child.cpu_times()[:4]) for child in supervisor.children(recursive=True))
    idle = after.idle + after.iowait - before.idle - before.iowait
    capacity = seconds * (psutil.cpu_count() or 1)
    return seconds, max(0.0, capacity - idle - ours) / capacity


def test_second_start_is_quick_and_down_leaves_no_process(stack: Stack) -> None:
    if stack.environment["BROKER"] == "filesystem":
        pytest.skip("the same, and quicker, without a broker to start")
    before = Path(stack.home.path / "stack-id").read_text()
    seconds, foreign = timed_up(stack)
    if seconds * (1 - foreign) > SECOND_UP_SECONDS and foreign > FOREIGN_SHARE:
        stack.down()  # even without what the others took: once more, perhaps they are done
        seconds, foreign = timed_up(stack)
    assert seconds < SECOND_UP_SECONDS or foreign > FOREIGN_SHARE, f"{foreign:.0%} by others"
    with client_of(stack) as user:
        [count] = user.rows("SELECT count(*) FROM jobs WHERE status = 'succeeded'")
        assert count[0] > 0, "the data outlives the processes"
        user.wait_scored(user.submit(3))
    assert "Stopped." in stack.down()
    assert remains(stack) == []
    assert Path(stack.home.path / "stack-id").read_text() == before
