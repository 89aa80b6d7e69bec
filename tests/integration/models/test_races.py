"""Two hands on one row: 300 rounds of each race, every side on a connection of its own.

Each round starts its sides at a barrier on jobs of its own. Whoever comes first, the tables
must agree with what every side was told, and the counts with a recount.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import partial

import pytest

from app.scheduler.dispatching.promoter import Promoter
from app.scheduler.maintenance.reaper import Reaper
from models.jobs.checkpoint import Saved, Saving, save_group
from models.jobs.claim import JobRef
from models.jobs.dispatch import Dispatch
from models.jobs.heartbeat import beat
from models.jobs.release import release
from models.jobs.replay import replay_dead
from models.jobs.settle import Ending
from models.jobs.states import FailureClass, JobStatus
from models.presence import Presence, announce
from tests.support.database_fixture import DatabaseFixture
from tests.support.emptied import emptied
from tests.support.race import JOBS, ROUNDS, Race, assert_contested, refs

DONE = Ending(JobStatus.SUCCEEDED, tries_spent=1, result="1")
AGAIN = Ending(JobStatus.SCHEDULED, tries_spent=1, error_class=FailureClass.APP_ERROR)
DEAD = Ending(JobStatus.DEAD, tries_spent=1, error_class=FailureClass.PERMANENT)


@pytest.fixture
def race(api_database: DatabaseFixture) -> Iterator[Race]:
    opened = Race(emptied(api_database))
    yield opened
    opened.close()
    assert not opened.database.miscounted()
    billed, run = opened.database.query(
        "SELECT coalesce(sum(slot_seconds), 0) FROM usage"
        " UNION ALL SELECT coalesce(sum(slot_seconds), 0) FROM jobs"
    )
    assert billed == run, "the bill is not the sum of its jobs"


def test_a_job_cancelled_while_it_is_promoted_and_dispatched_never_starts(race: Race) -> None:
    promoter = Promoter(race.engine, race.database.leader, race.database.pools(), 1000.0)
    promoter.run_once(0.0)
    announce(race.engine, Presence("w1", "worker", ["medium"], slots=1000))
    race.database.execute("UPDATE processes SET heartbeat_at = now() + interval '1 hour'")
    sent: list[JobRef] = []
    for number, ids in enumerate(race.submit(execute_at=datetime.now(UTC) + timedelta(hours=1))):
        race.database.execute("UPDATE jobs SET execute_at = now() WHERE id = ANY (%s::uuid[])", ids)

        def carry(now: float) -> list[JobRef]:
            promoter.run_once(now)
            return refs(race.database.dispatch())

        told, dispatched = race.run(partial(race.cancel, ids), partial(carry, number + 1.0))
        assert [answer.status for answer in told] == ["cancelled"] * JOBS
        sent += dispatched
    assert not race.claim(sent, "w1"), "a cancelled job was started"
    assert {row.status for row in race.rows().values()} == {"cancelled"}
    assert 0 < len(sent) < ROUNDS * JOBS, "one side always won"


def test_a_job_cancelled_while_it_is_claimed_never_starts_or_is_told_to_stop(race: Race) -> None:
    claimed: set[JobRef] = set()
    answers: dict[JobRef, str] = {}
    for sent in race.dispatch():
        told, connection = race.run(
            partial(race.cancel, [ref.id for ref in sent]), partial(race.claim, sent, "w1")
        )
        claimed |= connection
        answers |= {ref: answer.status for ref, answer in zip(sent, told, strict=True)}
    rows = race.rows()
    for ref, answer in answers.items():
        row = rows[ref.id]
        assert row.status == answer == ("running" if ref in claimed else "cancelled")
        assert (row.started_at is not None) == (ref in claimed)
        assert row.cancel_requested_at is not None
    assert_contested(Counter(answers.values()), "cancelled", "running")


@pytest.mark.parametrize(
    ("ending", "ends"),
    [
        (DONE, {("running", "succeeded"), ("succeeded", "succeeded")}),
        (AGAIN, {("running", "cancelled"), ("cancelled", "cancelled")}),
        (DEAD, {("running", "cancelled"), ("dead", "dead")}),
    ],
    ids=["result", "retry", "death"],
)
def test_a_job_cancelled_while_it_ends_keeps_its_result_and_is_not_tried_again(
    race: Race, ending: Ending, ends: set[tuple[str, str]]
) -> None:
    answers: dict[str, str] = {}
    for started in race.start():
        ids = [ref.id for ref in started]
        told, connection = race.run(
            partial(race.cancel, ids), partial(race.settle, started, ending)
        )
        assert all(connection), "a cancellation took the run's right to end"
        answers |= {job_id: answer.status for job_id, answer in zip(ids, told, strict=True)}
    rows = race.rows()
    found = {(answer, rows[job_id].status) for job_id, answer in answers.items()}
    assert found == ends


def test_a_run_that_is_ended_from_two_sides_ends_once_and_is_billed_once(race: Race) -> None:
    """As the worker and whoever ends what hangs in it do at the same moment."""
    winners: Counter[str] = Counter()
    for started in race.start():
        by_itself, by_force = race.run(
            partial(race.settle, started, DONE), partial(race.settle, started[::-1], DEAD)
        )
        assert [a != b for a, b in zip(by_itself, by_force[::-1], strict=True)] == [True] * JOBS
        winners.update(succeeded=sum(by_itself), dead=sum(by_force))
    assert Counter(row.status for row in race.rows().values()) == winners
    (usage,) = race.database.query("SELECT sum(jobs) AS jobs, sum(runs) AS runs FROM usage")
    assert tuple(usage) == (ROUNDS * JOBS, ROUNDS * JOBS)
    assert_contested(winners, "succeeded", "dead")


def test_a_dead_letter_cancelled_while_it_is_replayed_is_one_or_the_other(race: Race) -> None:
    rounds = race.start()
    race.settle([ref for started in rounds for ref in started], DEAD)
    answers: dict[str, str] = {}
    for dead in rounds:
        ids = [ref.id for ref in dead]
        told, brought = race.run(
            partial(race.cancel, ids), partial(replay_dead, race.engine, 1, ids)
        )
        assert sorted(brought) == ids, "a dead letter is replayed, whoever asks what of it"
        answers |= {job_id: answer.status for job_id, answer in zip(ids, told, strict=True)}
    rows = race.rows()
    found = Counter((answer, rows[job_id].status) for job_id, answer in answers.items())
    assert_contested(found, ("dead", "queued"), ("cancelled", "cancelled"))


def test_a_message_delivered_to_two_workers_is_claimed_by_one(race: Race) -> None:
    winners: Counter[str] = Counter()
    for sent in race.dispatch():
        first, second = race.run(
            partial(race.claim, sent, "w1"), partial(race.claim, sent[::-1], "w2")
        )
        assert not first & second
        assert first | second == set(sent)
        winners.update(["w1"] * len(first) + ["w2"] * len(second))
    assert Counter(row.worker for row in race.rows().values()) == winners
    assert_contested(winners, "w1", "w2")


def test_a_message_released_while_it_is_claimed_is_in_one_place(race: Race) -> None:
    claimed: set[JobRef] = set()
    for sent in race.dispatch():
        dispatches = [Dispatch(*ref, "sleep", "medium") for ref in sent[::-1]]
        _, connection = race.run(
            partial(release, race.engine, dispatches), partial(race.claim, sent, "w1")
        )
        claimed |= connection
    rows = race.rows()
    running = {job_id for job_id, row in rows.items() if row.status == "running"}
    assert running == {ref.id for ref in claimed}
    assert_contested(Counter(row.status for row in rows.values()), "running", "queued")


def test_dead_letters_replayed_from_three_sides_come_back_once(race: Race) -> None:
    rounds = race.start()
    race.settle([ref for started in rounds for ref in started], DEAD)
    winners: Counter[str] = Counter()
    for number, dead in enumerate(rounds):
        ids = [ref.id for ref in dead]
        mark = f"round {number}"  # so that a filter finds these and no others
        race.database.execute(
            "UPDATE jobs SET error_class = %s WHERE id = ANY (%s::uuid[])", mark, ids
        )
        by_id, reverse, by_filter = race.run(
            partial(replay_dead, race.engine, 1, ids),
            partial(replay_dead, race.engine, 1, ids[::-1]),
            partial(replay_dead, race.engine, 1, limit=100, error_class=mark),
        )
        assert sorted([*by_id, *reverse, *by_filter]) == ids
        winners.update(["ids"] * len(by_id + reverse) + ["filter"] * len(by_filter))
    assert {(row.status, row.replays) for row in race.rows().values()} == {("queued", 1)}
    assert_contested(winners, "ids", "filter")


def test_a_run_that_ends_while_it_is_reaped_is_settled_or_reaped(race: Race) -> None:
    reaper = Reaper(race.engine, race.database.leader, race.database.types)
    answers: dict[str, bool] = {}
    for started in race.start():
        race.lose(started)
        connection, reaped = race.run(
            partial(race.settle, started, DONE), partial(reaper.run_once, 0.0)
        )
        assert reaped == connection.count(False)
        answers |= {ref.id: ours for ref, ours in zip(started, connection, strict=True)}
    rows = race.rows()
    for job_id, ours in answers.items():
        row = rows[job_id]
        found = (row.status, row.attempt, row.crashes)
        assert found == (("succeeded", 1, 0) if ours else ("queued", 0, 1))
    lost = {str(row[0]) for row in race.database.query("SELECT job_id FROM attempts")}
    assert lost == {job_id for job_id, ours in answers.items() if not ours}
    assert 0 < len(lost) < ROUNDS * JOBS, "one side always won"


def test_a_lease_renewed_while_it_is_reaped_is_kept_or_lost(race: Race) -> None:
    reaper = Reaper(race.engine, race.database.leader, race.database.types)
    kept: set[JobRef] = set()
    for started in race.start():
        race.lose(started)
        renewed, _ = race.run(
            partial(beat, race.engine, "w1", started), partial(reaper.run_once, 0.0)
        )
        kept |= {ref for ref, is_renewed in renewed.items() if is_renewed}
    rows = race.rows()
    running = {job_id for job_id, row in rows.items() if row.status == "running"}
    assert running == {ref.id for ref in kept}
    assert_contested(Counter(row.status for row in rows.values()), "running", "queued")


def test_no_checkpoint_of_a_lost_lease_appears_after_the_reap(race: Race) -> None:
    reaper = Reaper(race.engine, race.database.leader, race.database.types)
    kept: set[str] = set()
    rounds = race.start()
    for started in rounds:
        race.lose(started)
        savings = [Saving(ref, '"of a lost lease"', None) for ref in started]
        saved, _ = race.run(
            partial(save_group, race.engine, "w1", savings), partial(reaper.run_once, 0.0)
        )
        kept |= {s.ref.id for s, answer in zip(savings, saved, strict=True) if answer.ours}
    reaper.run_once(0.0)  # those whose row was locked by their checkpoint
    assert {row.status for row in race.rows().values()} == {"queued"}
    late = [Saving(ref, '"late"', None) for started in rounds for ref in started]
    assert not any(answer.ours for answer in save_group(race.engine, "w1", late))
    found = race.database.query("SELECT job_id, state FROM checkpoints")
    assert {str(row.job_id): row.state for row in found} == dict.fromkeys(kept, "of a lost lease")
    assert 0 < len(kept) < ROUNDS * JOBS, "one side always won"


def test_a_run_is_not_reaped_in_the_middle_of_its_checkpoint(race: Race) -> None:
    """Else its state could be written after that of its successor."""
    (ref, *_), *_ = race.start()
    race.lose([ref])
    reaper = Reaper(race.engine, race.database.leader, race.database.types)
    assert save_group(race.engine, "w1", [Saving(ref, "1", None)]) == [Saved(True)]
    with race.engine.connect() as other:
        other.exec_driver_sql("BEGIN; SELECT FROM checkpoints FOR UPDATE")
        saving = race.begin(partial(save_group, race.engine, "w1", [Saving(ref, "2", None)]))
        race.database.wait_until_waiting()
        assert reaper.run_once(0.0) == 0
        other.exec_driver_sql("COMMIT")
    assert saving.result() == [Saved(True)]
    assert reaper.run_once(0.0) == 1
