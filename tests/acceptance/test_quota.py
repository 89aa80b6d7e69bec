"""A model's quota, live: jobs wait in the line instead of being refused, and tenants share it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from loadtest.fakes.claude import FakeClaude, FakeQuota
from models.jobs.admit import admit_group
from models.jobs.ids import new_id
from models.jobs.submission import Submission, SubmissionGroup
from models.store.session import connect
from tests.acceptance.client import Client

pytestmark = pytest.mark.long

#: Calls a minute; the model saves up two seconds of them, so that any burst is refused.
LIMIT, BURST_SECONDS = 900, 2.0
#: Names of tenants, and what they weigh.
WEIGHTS = {"quota-one": 10.0, "quota-two": 20.0, "quota-three": 30.0}
#: Answers that are waited for: twelve seconds of the quota.
ANSWERS = 170

CREATE_TENANT = """
    INSERT INTO tenants (name, weight) VALUES (%s, %s)
    ON CONFLICT (name) DO UPDATE SET weight = excluded.weight RETURNING id
"""
#: A type that was measured: a tenant's share is one of time, and of an unknown type a guess.
MEASURED = """
    INSERT INTO job_types (type, declared_pool, pool, mean_seconds)
    VALUES ('metered', 'medium', 'medium', 0.4)
    ON CONFLICT (type) DO UPDATE SET mean_seconds = excluded.mean_seconds RETURNING type
"""


@contextmanager
def metered_model() -> Iterator[FakeClaude]:
    quota = FakeQuota(LIMIT, burst_seconds=BURST_SECONDS)
    with FakeClaude(quota=quota, answer_seconds=0.4) as fake:
        yield fake


def line_up(client: Client, fake: FakeClaude, tenants: list[int], count: int) -> None:
    """So many jobs of each tenant, all of them in line at once."""
    payload = json.dumps({"url": fake.url, "key": fake.api_key})
    group = [
        Submission(new_id(), tenant, "metered", "medium", payload, dependency="metered")
        for _ in range(count)
        for tenant in tenants
    ]
    admit_group(client.engine, [SubmissionGroup(tuple(group))], express=False)


def succeeded(client: Client) -> dict[int, int]:
    """Jobs that have their answer, by tenant."""
    rows = client.rows(
        "SELECT tenant_id, count(*) AS answers FROM jobs WHERE type = 'metered'"
        " AND status = 'succeeded' AND tenant_id <> 1 GROUP BY tenant_id"
    )
    return {row.tenant_id: row.answers for row in rows}


def clean_up(client: Client) -> None:
    with connect(client.engine) as connection:
        connection.exec_driver_sql(
            "DELETE FROM jobs WHERE type = 'metered' AND status IN ('queued', 'scheduled')"
        )
        connection.exec_driver_sql("DELETE FROM quotas WHERE dependency = 'metered'")


def test_three_tenants_share_a_quota_and_hardly_anything_is_refused(platform: Client) -> None:
    with metered_model() as fake:
        try:
            weights = {
                platform.rows(CREATE_TENANT, name, weight)[0][0]: weight
                for name, weight in WEIGHTS.items()
            }
            platform.rows(MEASURED)
            line_up(platform, fake, [1], 1)
            platform.stack.wait(
                lambda: bool(platform.rows("SELECT FROM quotas WHERE dependency = 'metered'")),
                "the model's first answer to tell its limits",
                10,
            )
            line_up(platform, fake, list(weights), ANSWERS)
            judge(fake, weights, wait_answers(platform, ANSWERS))
            spent = platform.rows(
                "SELECT FROM jobs WHERE type = 'metered' AND status <> 'succeeded' AND attempt > 0"
            )
            assert not spent
        finally:
            clean_up(platform)


def wait_answers(client: Client, count: int) -> dict[int, int]:
    """Until there are so many; how many of whom."""
    client.stack.wait(lambda: sum(succeeded(client).values()) >= count, f"{count} answers", 30)
    return succeeded(client)


def judge(fake: FakeClaude, weights: dict[int, float], answers: dict[int, int]) -> None:
    quota = fake.quota
    assert quota is not None
    assert quota.refused <= 0.02 * quota.accepted, (
        f"{quota.refused} refused, {quota.accepted} accepted"
    )
    for tenant, weight in weights.items():
        due = sum(answers.values()) * weight / sum(weights.values())
        # In so short a time, besides, a job or two more than is due.
        assert abs(answers[tenant] - due) <= 0.1 * due + 3, (answers, due)


def test_a_refusal_closes_the_tap_for_everybody_and_costs_nobody_a_try(platform: Client) -> None:
    refused = platform.submit_job(
        "lookup", {"answer": {"status": 429, "retry_after": 2, "left": 0}}
    )
    sql = "SELECT closed_until FROM quotas WHERE dependency = 'directory' AND closed_until > now()"
    platform.stack.wait(lambda: bool(platform.rows(sql)), "the tap to close", 10)
    closed_until = platform.rows(sql)[0].closed_until
    other = platform.submit_job("lookup", {"answer": {"status": 200, "left": 200}})
    platform.wait_ended([refused, other], 15)
    after = platform.job(other)
    assert after.started_at >= closed_until
    assert (after.attempt, after.deferrals) == (1, 0)
    before = platform.job(refused)
    assert (before.attempt, before.deferrals) == (1, 1)
