"""Workers come with a burst and go with the quiet, and nobody's job suffers for it."""

from __future__ import annotations

import json
import os
import signal
import urllib.request
from collections.abc import Iterator
from typing import Any

import psutil
import pytest

from loadtest.chaos.stack import Stack, embedded_stack
from models.jobs.admit import admit_group
from models.jobs.ids import new_id
from models.jobs.submission import Submission, SubmissionGroup
from tests.acceptance.client import Client, client_of

pytestmark = pytest.mark.long

SLOTS = 4
#: Longer than a stack that stops would wait; with a checkpoint every half a second, at each of
#: which the job could go on elsewhere.
LONG_SECONDS = 10
#: From the autoscaler's word to a worker that takes jobs, on a busy machine.
START_SECONDS = 30.0

LIVING = """
    SELECT name FROM processes
    WHERE kind = 'worker' AND NOT draining AND pools = ARRAY[%s]
      AND heartbeat_at > now() - interval '5 seconds'
"""


@pytest.fixture(scope="module")
def scaled_stack() -> Iterator[Stack]:
    rules = {"up_seconds": 1, "step_seconds": 2, "quiet_seconds": 4}
    with embedded_stack(
        BROKER="filesystem",
        AUTOSCALE="1",
        API_WORKERS="1",
        WORKERS_SHORT="0",
        WORKERS_LONG="0",
        FAIRLINE_POOLS=json.dumps({"medium": {"lease_seconds": 6, "slots": SLOTS}}),
        FAIRLINE_SCALE_MAX='{"short": 0, "medium": 2, "long": 0}',
        FAIRLINE_SCALE_POLICY=json.dumps({"medium": rules}),
        FAIRLINE_DRAIN_SECONDS="1",
    ) as stack:
        yield stack


@pytest.fixture
def client(scaled_stack: Stack) -> Iterator[Client]:
    with client_of(scaled_stack) as client:
        yield client


def living(client: Client, queue: str = "medium") -> set[int]:
    """The workers that take jobs from a queue, by process."""
    return {int(row.name.rpartition(":")[2]) for row in client.rows(LIVING, queue)}


def desired(client: Client) -> dict[str, Any]:
    """What the endpoint for scalers says of the pool."""
    request = urllib.request.Request(
        f"http://127.0.0.1:{client.stack.port}/operator/scaling",
        headers={"Authorization": f"Bearer {client.stack.home.operator_key.read_text().strip()}"},
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        return dict(json.load(answer)["pools"]["medium"])


def submit(client: Client, job_type: str, tenant_id: int = 1, **payload: float) -> str:
    """One job of a tenant, in line."""
    job = Submission(new_id(), tenant_id, job_type, "medium", json.dumps(payload))
    admit_group(client.engine, [SubmissionGroup((job,))], express=False)
    return job.id


def burst(client: Client) -> list[str]:
    """More jobs than the slots of one worker can do without a wait."""
    return client.submit_sleeps(6 * SLOTS, seconds=1.5)


def wait_grown(client: Client) -> None:
    """Until the autoscaler wants a second worker, and from then until it takes jobs."""
    client.stack.wait(lambda: desired(client)["desired"] == 2, "more workers to be wanted", 30)
    client.stack.wait(lambda: len(living(client)) == 2, "a second worker", START_SECONDS)


def test_burst_brings_workers_and_a_reservation_does_not_wait_for_them(client: Client) -> None:
    acme = client.rows(
        "INSERT INTO tenants (name, tier) VALUES ('acme', 'enterprise') RETURNING id"
    )[0].id
    client.rows(
        "INSERT INTO tenant_limits (tenant_id, pool, reserved) VALUES (%s, 'medium', 2)"
        " RETURNING pool",
        acme,
    )
    slice_ = "medium.reserved.acme"
    client.stack.wait(lambda: len(living(client, slice_)) == 1, "acme's own worker", START_SECONDS)

    jobs = burst(client)
    client.wait_running(jobs, SLOTS)
    own = submit(client, "sleep", acme, seconds=0.1)
    client.wait_ended([own], 3)
    assert client.job(own).worker.endswith(f":{living(client, slice_).pop()}")
    assert client.count(jobs, "queued") > 0, "the others were to wait meanwhile"

    wait_grown(client)
    assert 'fairline_desired_workers{pool="medium"} 2' in client.metrics()
    client.wait_ended(jobs, 30)


def test_quiet_ends_the_worker_but_not_its_job(client: Client) -> None:
    if len(living(client)) < 2:
        jobs = burst(client)
        wait_grown(client)
        client.wait_ended(jobs, 30)
    first = client.stack.pid("worker-medium-1")
    second = psutil.Process(client.stack.pid("worker-medium-2"))
    os.kill(first, signal.SIGSTOP)  # so that the other one takes the job
    try:
        job_id = submit(client, "count", to=3 * LONG_SECONDS, seconds_each=0.5)
        client.wait_running([job_id], 1)
    finally:
        os.kill(first, signal.SIGCONT)
    before = client.job(job_id)
    assert before.worker.endswith(f":{second.pid}")

    client.stack.wait(lambda: desired(client)["desired"] == 1, "fewer to be wanted", 30)
    client.stack.wait(lambda: living(client) == {first}, "the second worker to drain", 5)
    assert client.job(job_id).status == "running"
    client.wait_ended([submit(client, "sleep", seconds=0.1)], 5)

    (after,) = client.wait_ended([job_id], 40)
    assert (after.lease, after.worker, after.attempt, after.crashes, after.deferrals) == (
        *(before.lease, before.worker),
        *(1, 0, 0),
    )
    client.stack.wait(lambda: not second.is_running(), "the drained worker to end", 30)
    assert desired(client)["current"] == 1
