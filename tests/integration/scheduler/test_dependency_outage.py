"""A refused API key is an outage of the model: jobs wait, and everybody reads why."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from app.policy.wait_reasons import explain
from app.reads.waits import read_facts
from app.scheduler.protection.circuits import Circuits
from loadtest.fakes.claude import FakeClaude
from tasks.context import JobContext
from tasks.retry import circuit
from tasks.scorers.claude import ClaudeScorer
from tasks.scorers.protocol import ApplicationText
from tests.support.database_fixture import DatabaseFixture
from tests.support.emptied import emptied
from tests.support.one_worker import OneWorker, one_worker

TENANTS = (1, 2, 3)


@pytest.fixture
def database(api_database: DatabaseFixture) -> DatabaseFixture:
    return emptied(api_database)


@pytest.fixture
def fake() -> Iterator[FakeClaude]:
    with FakeClaude() as running:
        yield running


@pytest.fixture
def worker(database: DatabaseFixture, fake: FakeClaude) -> Iterator[OneWorker]:
    scorer = ClaudeScorer(model="m", timeout_seconds=5, api_key=fake.api_key, base_url=fake.url)

    def score(ctx: JobContext, payload: Any) -> Any:
        return scorer.score(ApplicationText("Ada", "general", {"cv": "Notes"})).score

    with one_worker(database) as made:
        types: Any = made.worker.types
        types["echo"] = replace(types["echo"], dependency="claude")
        made.act = score
        yield made
    scorer.close()


def run_some(worker: OneWorker, count: int) -> None:
    for number in range(count):
        worker.execute(worker.refs(1, dependency="claude", tenant_id=TENANTS[number % 3]))
    worker.flush()


@pytest.mark.parametrize(
    ("behaviour", "reason"),
    [
        ("401", "the API key was refused (401)"),
        ("402", "the account has no credit or is disabled (402)"),
        ("400_unpaid", "the account has no credit or is disabled (400)"),
        ("403", "the API key lacks a permission (403)"),
        ("404", "the model or the address was not found (404)"),
    ],
)
def test_a_refused_key_spends_no_attempt_and_opens_the_circuit_with_its_reason(
    database: DatabaseFixture, worker: OneWorker, fake: FakeClaude, behaviour: str, reason: str
) -> None:
    fake.behave(behaviour)
    run_some(worker, 3)
    jobs = database.query("SELECT status::text, attempt, error_class FROM jobs")
    assert {tuple(job) for job in jobs} == {("scheduled", 0, "DEPENDENCY")}, "no dead letters"
    circuits = Circuits(database.engine, database.leader, ["claude"])
    assert circuits.run_once(0.0) == 1, "three refusals of the key are proof enough"
    [row] = database.query("SELECT state, reason FROM circuits")
    assert tuple(row) == ("open", reason)
    [event] = database.query("SELECT tenant_id, kind, detail FROM events")
    assert (event.tenant_id, event.kind) == (0, "dependency_circuit_open")
    assert event.detail == {"dependency": "claude", "calls": 3, "failed": 3, "reason": reason}

    waiting = database.submit(dependency="claude")
    with database.engine.connect() as connection:
        asked = read_facts(connection, waiting)
    assert asked is not None
    assert explain(asked.facts).detail.startswith(f"claude: {reason}; it is called again in ")


def test_probes_find_out_when_the_key_is_mended(
    database: DatabaseFixture, worker: OneWorker, fake: FakeClaude
) -> None:
    circuits = Circuits(database.engine, database.leader, ["claude"])
    fake.behave("401")
    run_some(worker, 10)
    circuits.run_once(0.0)

    def half_open() -> None:
        database.execute("UPDATE circuits SET changed_at = changed_at - interval '60 seconds'")
        assert circuits.run_once(0.0) == 1
        [row] = database.query("SELECT state, reason FROM circuits")
        assert tuple(row) == ("half_open", "the API key was refused (401)"), "still the news"
        worker.flush()

    half_open()
    run_some(worker, 1)
    assert circuits.run_once(0.0) == 1, "one refusal of the key is enough"
    assert [row.state for row in database.query("SELECT state FROM circuits")] == ["open"]

    half_open()
    fake.behave("ok")
    run_some(worker, circuit.PROBES_WANTED)
    assert circuits.run_once(0.0) == 1
    [row] = database.query("SELECT state, reason FROM circuits")
    assert tuple(row) == ("closed", "")
    events = [event.kind for event in database.query("SELECT kind FROM events ORDER BY id")]
    assert events == ["dependency_circuit_open", "dependency_circuit_closed"]
