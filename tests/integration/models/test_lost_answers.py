"""A statement that was committed while its answer was lost: asked again, nothing happens twice."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
from sqlalchemy import Engine

from models.store.errors import StateStoreUnavailable
from models.tallies import TallyKind
from tasks.context import JobContext
from tasks.worker import ledger, slots
from tests.support.database_fixture import DatabaseFixture
from tests.support.one_worker import OneWorker, one_worker


@pytest.fixture
def one(engine: Engine) -> Iterator[OneWorker]:
    with one_worker(DatabaseFixture(engine)) as made:
        yield made


def lose_answer(monkeypatch: pytest.MonkeyPatch, module: ModuleType, name: str) -> list[int]:
    """The next call of a statement is carried out and its answer lost; how many there were."""
    real = getattr(module, name)
    calls: list[int] = []

    def forgetful(*args: Any) -> Any:
        calls.append(1)
        answer = real(*args)
        if len(calls) == 1:
            raise StateStoreUnavailable
        return answer

    monkeypatch.setattr(module, name, forgetful)
    return calls


def test_a_job_whose_claim_was_lost_on_the_way_runs_once(
    one: OneWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = lose_answer(monkeypatch, slots, "claim_group")
    ran: list[str] = []
    one.act = lambda ctx, payload: ran.append(ctx.job_id)
    [ref] = one.refs(1)
    one.execute((ref,))
    one.execute((ref,))  # and its message is delivered again
    one.flush()
    assert len(calls) >= 2
    assert ran == [ref.id]
    job = one.database.job(ref.id)
    assert (job.status, job.attempt, job.lease) == ("succeeded", 1, 1)


def test_an_ending_whose_answer_was_lost_is_written_and_charged_once(
    one: OneWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = lose_answer(monkeypatch, ledger, "settle_group")

    def act(ctx: JobContext, payload: Any) -> None:
        raise RuntimeError("once")

    one.act = act
    [ref] = one.refs(1)
    one.execute((ref,))
    one.flush()
    assert len(calls) == 2
    job = one.database.job(ref.id)
    assert (job.status, job.attempt) == ("scheduled", 1)
    assert [row.runs for row in one.database.query("SELECT runs FROM usage")] == [1]
    assert len(one.database.query("SELECT 1 FROM attempts")) == 1
    assert one.worker.slots.held() == []


def test_a_checkpoint_whose_answer_was_lost_is_still_ours(
    one: OneWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = lose_answer(monkeypatch, ledger, "save_group")
    one.act = lambda ctx, payload: ctx.checkpoint({"n": 1})
    [ref] = one.refs(1)
    one.execute((ref,))
    one.flush()
    assert len(calls) == 2
    assert one.database.job(ref.id).status == "succeeded"
    assert one.database.query("SELECT state FROM checkpoints")[0][0] == {"n": 1}


def test_counts_that_the_table_refuses_do_not_stop_the_heartbeats(one: OneWorker) -> None:
    one.worker.tallies.add_all([((TallyKind.RETRY, "anything"), (2**63, 0))])
    one.flush()
    assert one.database.query("SELECT 1 FROM processes WHERE name = 'w1'")
    assert one.worker.tallies.take() == {}
