"""``python -m loadtest.quota``: three tenants share the quota of a model that refuses beyond it.

A whole stack with the Claude scorer, against a local server that accepts so many requests per
minute and answers 429 to the rest. All tenants have more to do than the quota allows. What
counts: how many calls are refused, what each tenant gets of the quota, and that no job pays with
an attempt.
"""

from __future__ import annotations

import argparse
import json
import sys
import time

from rich.console import Console
from sqlalchemy import Engine

from loadtest.chaos.stack import MEDIUM_ONLY, embedded_stack
from loadtest.fakes.claude import FakeClaude, FakeQuota
from loadtest.fleet import admit, rows, tenant_id
from loadtest.report import Bar, Report, command

#: Names of tenants, and their weights.
WEIGHTS = {"one": 10.0, "two": 20.0, "three": 30.0}
#: Calls that may be refused, and how far a tenant's part may be from its weight.
MOST_REFUSED = 0.02
MOST_OFF = 0.10
#: Parts are counted from when it is known what a job takes.
WARM_UP_SECONDS = 30.0

SUCCEEDED = """
    SELECT tenant.name, coalesce(sum(counts.succeeded), 0)::int FROM tenants AS tenant
    LEFT JOIN job_counts AS counts ON counts.tenant_id = tenant.id
    GROUP BY tenant.name
"""
ATTEMPTS = "SELECT count(*) FROM jobs WHERE status <> 'succeeded' AND attempt > 0"


def run(asked: argparse.Namespace, _: Console) -> Report:
    minutes, limit = asked.minutes, asked.limit
    quota = FakeQuota(limit, burst_seconds=asked.burst_seconds)
    with (
        FakeClaude(quota=quota, answer_seconds=1.0) as fake,
        embedded_stack(
            **MEDIUM_ONLY,
            FAIRLINE_SCORER="claude",
            FAIRLINE_CLAUDE_BASE_URL=fake.url,
            FAIRLINE_CLAUDE_API_KEY=fake.api_key,
            FAIRLINE_QUOTAS=json.dumps({"claude": {"requests_per_minute": limit}}),
        ) as stack,
        stack.engine() as engine,
    ):
        jobs = int(limit * minutes) + 50
        for name, weight in WEIGHTS.items():
            queue(engine, name, weight, jobs)
        time.sleep(WARM_UP_SECONDS)
        before, accepted = succeeded(engine), quota.accepted
        time.sleep(minutes * 60.0)
        after, used = succeeded(engine), (quota.accepted - accepted) / (limit * minutes)
        answers = {name: after[name] - before[name] for name in WEIGHTS}
        attempts = rows(engine, ATTEMPTS)[0][0]
    calls = quota.accepted + quota.refused
    return Report(
        *("quota", "Three tenants share a quota"),
        findings=[
            f"{calls} calls, {quota.refused} refused, {used:.0%} of the quota used",
            f"answers {answers} for weights {WEIGHTS}",
        ],
        bars=[
            Bar("refused calls, of all", quota.refused / max(1, calls), "<=", MOST_REFUSED),
            Bar("farthest part from its weight", deviation(answers), "<=", MOST_OFF),
            Bar("jobs that paid with an attempt", attempts, "<=", 0),
        ],
    )


def deviation(answers: dict[str, int]) -> float:
    """How far the worst part is from its weight."""
    total, weights = sum(answers.values()), sum(WEIGHTS.values())
    if not total:
        return 1.0
    parts = (answers[name] / total / (weight / weights) for name, weight in WEIGHTS.items())
    return max(abs(part - 1) for part in parts)


def queue(engine: Engine, name: str, weight: float, jobs: int) -> None:
    """A tenant with so many applications in its queue."""
    tenant = tenant_id(engine, name, weight=weight)
    who = {"candidate": "Ada", "role": name}
    payloads = [{**who, "payload": {}}] * jobs
    admit(engine, tenant, "score_application", "medium", payloads, **who, dependency="claude")


def succeeded(engine: Engine) -> dict[str, int]:
    return dict(map(tuple, rows(engine, SUCCEEDED)))


FLAGS = (
    ("--minutes", 3.0, "of competition"),
    ("--limit", 60.0, "requests per minute"),
    ("--burst-seconds", 10.0, "what the model saves up while idle"),
)

if __name__ == "__main__":
    sys.exit(command("python -m loadtest.quota", __doc__, run, *FLAGS))
