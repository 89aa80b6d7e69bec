"""Checkpoints, progress and tokens of a run: kept if the lease holds, there for the next run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine

from models.blobs import INLINE_BYTES
from models.jobs.cancel import cancel
from models.jobs.checkpoint import save_group
from models.store.errors import StateStoreUnavailable
from tasks.context import JobContext
from tasks.errors import LeaseLost
from tasks.worker import ledger
from tasks.worker.pipeline import execute_claim
from tasks.worker.slots import Host
from tests.support.database_fixture import DatabaseFixture
from tests.support.one_worker import OneWorker, one_worker

LARGE = "x" * (INLINE_BYTES + 1)


@pytest.fixture
def blobs(tmp_path: Path) -> Path:
    (tmp_path / "blobs").mkdir()
    return tmp_path / "blobs"


@pytest.fixture
def one(engine: Engine, blobs: Path) -> Iterator[OneWorker]:
    with one_worker(DatabaseFixture(engine), blobs=blobs) as made:
        yield made


def kept(blobs: Path) -> list[str]:
    """Blobs in the store, by lease and number."""
    names = [path.name for path in blobs.rglob("*") if path.is_file()]
    return sorted(name.partition(".")[2].rpartition(".")[0] for name in names)


def again(one: OneWorker, job_id: str) -> None:
    """Run the job once more."""
    one.flush()
    one.database.execute("UPDATE jobs SET status = 'queued' WHERE status = 'scheduled'")
    [ref] = one.dispatched(1)
    assert ref.id == job_id
    one.execute((ref,))
    one.flush()


def test_the_last_checkpoint_is_there_for_the_next_run_and_no_other_is_left(
    one: OneWorker, blobs: Path
) -> None:
    found: list[Any] = []
    states = iter([[{"small": 1}, LARGE, LARGE + "y"], [LARGE + "z", "small again"], []])

    def act(ctx: JobContext, payload: Any) -> None:
        found.append(ctx.load_checkpoint())
        for state in next(states):
            ctx.checkpoint(state)
        if len(found) < 3:
            raise RuntimeError

    one.act = act
    [ref] = one.refs(1)
    one.execute((ref,))
    assert kept(blobs) == ["1.3"], "each large one replaces the one before"
    again(one, ref.id)
    assert kept(blobs) == [], "a small one needs no blob"
    again(one, ref.id)
    assert found == [None, LARGE + "y", "small again"]
    assert one.database.job(ref.id).status == "succeeded"


def test_a_run_that_lost_its_lease_writes_no_checkpoint_and_leaves_no_blob(
    one: OneWorker, blobs: Path
) -> None:
    refused: list[str] = []

    def act(ctx: JobContext, payload: Any) -> None:
        ctx.checkpoint("mine")
        one.database.execute("UPDATE jobs SET lease = lease + 1")
        for state in ("small", LARGE):
            try:
                ctx.checkpoint(state)
            except LeaseLost:
                refused.append(state)
        assert ctx.is_cancelled(), "nobody waits for this run any more"

    one.act = act
    [ref] = one.refs(1)
    one.execute((ref,))
    one.flush()
    assert refused == ["small", LARGE]
    [row] = one.database.query("SELECT lease, state FROM checkpoints")
    assert (row.lease, row.state) == (1, "mine")
    assert kept(blobs) == []
    assert one.database.job(ref.id).status == "running", "the other worker's by now"


def test_blob_of_a_checkpoint_that_was_saved_before_the_lease_was_lost_is_kept(
    one: OneWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def save_without_answer(*arguments: Any) -> Any:
        monkeypatch.undo()
        save_group(*arguments)
        one.database.execute("UPDATE jobs SET lease = lease + 1")
        raise StateStoreUnavailable

    def act(ctx: JobContext, payload: Any) -> None:
        try:
            ctx.checkpoint(LARGE)
        except LeaseLost:
            found.append(ctx.load_checkpoint())

    found: list[Any] = []
    one.act = act
    monkeypatch.setattr(ledger, "save_group", save_without_answer)
    [ref] = one.refs(1)
    one.execute((ref,))
    assert found == [LARGE], "the next run resumes from it"


def test_a_draining_worker_hands_a_run_back_at_its_next_checkpoint(one: OneWorker) -> None:
    firsts: list[bool] = []

    def act(ctx: JobContext, payload: Any) -> Any:
        firsts.append(ctx.first_attempt)
        if ctx.load_checkpoint() is None:
            one.worker.slots.note_drain()
            ctx.checkpoint("half")
            raise AssertionError("it was to end at the checkpoint")
        return "whole"

    one.act = act
    [ref] = one.refs(1)
    one.execute((ref,))
    one.flush()
    job = one.database.job(ref.id)
    assert (job.status, job.attempt, job.crashes, job.deferrals) == ("queued", 0, 0, 1)
    assert not one.database.query("SELECT 1 FROM attempts"), "nothing failed"
    with one_worker(one.database) as other:
        other.act = act
        again(other, ref.id)
    job = one.database.job(ref.id)
    assert (job.status, job.attempt, job.result) == ("succeeded", 1, "whole")
    assert firsts == [True, False]


def test_a_retiring_worker_lets_a_run_end_whatever_it_checkpoints(engine: Engine) -> None:
    with one_worker(DatabaseFixture(engine), host=Host(retiring=lambda: True)) as one:
        _let_it_end(one)


def _let_it_end(one: OneWorker) -> None:
    def act(ctx: JobContext, payload: Any) -> Any:
        one.worker.slots.note_drain()
        ctx.checkpoint("half")
        return "whole"

    one.act = act
    [ref] = one.refs(1)
    one.execute((ref,))
    one.flush()
    job = one.database.job(ref.id)
    assert (job.status, job.lease, job.deferrals, job.result) == (
        "succeeded",
        ref.lease,
        0,
        "whole",
    )


def test_progress_tokens_and_time_are_in_the_rows_when_the_run_has_ended(one: OneWorker) -> None:
    def act(ctx: JobContext, payload: Any) -> None:
        ctx.progress(1, 4)
        one.flush()
        assert one.database.query("SELECT progress FROM jobs")[0][0] == {"done": 1, "total": 4}
        ctx.progress(3, 4)
        ctx.charge_tokens(100, 7)
        ctx.charge_tokens(20, 3)

    one.act = act
    [ref] = one.refs(1)
    one.execute((ref,))
    one.flush()
    job = one.database.job(ref.id)
    assert (job.status, job.progress) == ("succeeded", {"done": 3, "total": 4})
    [used] = one.database.query("SELECT * FROM usage")
    assert (used.jobs, used.runs, used.tokens_in, used.tokens_out) == (1, 1, 120, 10)
    assert used.slot_seconds == job.slot_seconds > 0


def test_a_run_hears_of_its_cancellation_and_ends_cancelled_unless_it_was_faster(
    one: OneWorker,
) -> None:
    def looks(ctx: JobContext, payload: Any) -> Any:
        cancel(one.database.engine, 1, ctx.job_id)
        one.flush()
        return "saw it" if payload["looks"] and ctx.is_cancelled() else "done"

    one.act = looks
    one.execute(one.refs(1, payload='{"looks": true}'))
    one.execute(one.refs(1, payload='{"looks": false}'))
    one.flush()
    rows = one.database.query("SELECT status::text, result FROM jobs ORDER BY id")
    assert [tuple(row) for row in rows] == [("cancelled", None), ("succeeded", "done")]


def test_a_job_that_is_cancelled_while_it_waits_for_a_slot_does_not_start(one: OneWorker) -> None:
    ran: list[str] = []
    one.act = lambda ctx, payload: ran.append(ctx.job_id)
    [ref] = one.refs(1)
    [claim] = one.worker.slots.claim((ref,))
    cancel(one.database.engine, 1, ref.id)
    one.flush()
    execute_claim(claim, one.worker)
    one.flush()
    assert (ran, one.database.job(ref.id).status) == ([], "cancelled")
