"""A job's timeline is complete and in order, whatever happened to it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from app.console.jobs.timeline import ENDS, Step, timeline

START = datetime(2026, 3, 1, tzinfo=UTC)


@dataclass(frozen=True)
class AttemptRow:
    """A row of READ_ATTEMPTS."""

    lease: int
    worker: str | None
    started_at: datetime | None
    ended_at: datetime
    status: str
    error_class: str | None
    error_message: str | None


@dataclass(frozen=True)
class JobRow:
    """A row of READ_JOB, as far as the timeline needs it."""

    status: str
    lease: int
    created_at: datetime
    attempt: int = 0
    replays: int = 0
    execute_at: datetime | None = None
    dispatched_at: datetime | None = None
    started_at: datetime | None = None
    finished_at: datetime | None = None
    cancel_requested_at: datetime | None = None
    worker: str | None = None


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def attempt(lease: int, began: float, status: str = "scheduled", error: str = "boom") -> AttemptRow:
    return AttemptRow(lease, f"w{lease}", at(began), at(began + 2), status, "APP_ERROR", error)


def titles(steps: list[Step]) -> list[str]:
    return [step.title for step in steps]


def test_a_job_that_succeeds_at_its_second_try_shows_both_and_the_wait_between() -> None:
    way = JobRow("succeeded", 2, START, started_at=at(9), finished_at=at(10), worker="w2")
    first, failed, run, end = timeline(way, [attempt(1, 1)], [])
    assert (first.title, end.title, end.tone) == ("Submitted", "Succeeded", "good")
    assert (failed.worker, failed.lease, failed.seconds) == ("w1", 1, 2.0)
    assert (failed.error_class, failed.message) == ("APP_ERROR", "boom")
    assert failed.waited_seconds == 6.0
    assert (run.worker, run.lease, run.seconds) == ("w2", 2, 1.0)


def test_a_replay_stands_between_the_death_and_what_came_after() -> None:
    way = JobRow("queued", 1, START, replays=1)
    steps = timeline(way, [attempt(1, 1, "dead")], [at(60)])
    assert titles(steps) == ["Submitted", "Run failed for good", "Replayed", "Queued"]
    assert steps[1].waited_seconds is None


def test_replays_that_nobody_remembers_are_counted() -> None:
    steps = timeline(JobRow("queued", 3, START, replays=3), [], [at(60)])
    assert steps[1].title == "Replayed 2 times, at an unknown time"


def test_a_job_on_its_way_says_where_it_is() -> None:
    running = JobRow("running", 1, START, started_at=at(1), worker="w1", cancel_requested_at=at(5))
    assert titles(timeline(running, [], [])) == ["Submitted", "Running", "Cancellation requested"]
    sent = timeline(JobRow("dispatched", 1, START, dispatched_at=at(1)), [], [])
    assert sent[-1].title.startswith("Dispatched")
    # A run that failed and is put off has left its start in the row.
    again = JobRow("scheduled", 1, START, started_at=at(1), execute_at=at(30))
    put_off = timeline(again, [attempt(1, 1)], [])
    assert titles(put_off)[1:] == ["Run failed; will be retried", "Scheduled"]
    assert put_off[-1].next_at == at(30)


@given(
    status=st.sampled_from(["scheduled", "queued", "dispatched", "running", *ENDS]),
    begins=st.lists(st.integers(1, 1000), unique=True, max_size=6),
    replays=st.lists(st.integers(1, 1000), max_size=3),
)
def test_nothing_is_left_out_and_time_never_goes_back(
    status: str, begins: list[int], replays: list[int]
) -> None:
    attempts = [attempt(lease, began) for lease, began in enumerate(sorted(begins), 1)]
    way = JobRow(
        status,
        len(attempts) + 1,
        START,
        replays=len(replays),
        dispatched_at=at(2000),
        started_at=at(2001),
        finished_at=at(2002) if status in ENDS else None,
    )
    steps = timeline(way, attempts, [at(second) for second in replays])
    assert [step.lease for step in steps if step.message] == [one.lease for one in attempts]
    assert titles(steps).count("Replayed") == len(replays)
    moments = [step.at for step in steps if step.at is not None]
    assert moments == sorted(moments)
    assert steps[0].title == "Submitted"
    assert (steps[-1].at == way.finished_at) or status not in ENDS


def test_a_discarded_dead_letter_shows_its_death_and_who_is_lost_says_so() -> None:
    died, given_up = at(9), at(60)
    way = JobRow("cancelled", 2, START, finished_at=died, cancel_requested_at=given_up)
    lost = AttemptRow(1, "w1", at(1), at(2), "scheduled", "WORKER_CRASH", "lost")
    steps = timeline(way, [lost, attempt(2, 7, "dead")], [])
    assert titles(steps) == [
        "Submitted",
        "Worker lost; will be retried",
        "Run failed for good",
        "Dead: no further attempts",
        "Discarded",
    ]
    assert [step.at for step in steps[-2:]] == [died, given_up]


@dataclass(frozen=True)
class LogRow:
    """A row of run_logs, as far as the timeline needs it."""

    written_at: datetime


def test_a_run_that_was_handed_back_is_known_by_its_log() -> None:
    way = JobRow("running", 2, START, started_at=at(9), worker="w2")
    steps = timeline(way, [], [], {1: LogRow(at(5)), 2: LogRow(at(10))})
    assert titles(steps) == ["Submitted", "Run handed back; queued again", "Running"]
    assert steps[1].lease == 1
