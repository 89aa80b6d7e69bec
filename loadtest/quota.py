"""``python -m loadtest.quota``: three tenants share the quota of a model that refuses beyond it.

A whole stack with the Claude scorer, against a local server that takes so many requests a
minute and answers 429 to the rest. All tenants have more to do than the quota takes. What
counts: how many calls are refused, what each tenant gets of the quota, and whether any job pays
with a try.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import dataclass

from sqlalchemy import Engine

from app.admission.admit import admit_group
from app.admission.submission import Entry, Submission
from loadtest.chaos.settings import MEDIUM_ONLY
from loadtest.chaos.stack import embedded_stack
from models.ids import new_id
from models.session import connection
from tests.fake_claude import FakeClaude
from tests.fake_claude_quota import FakeQuota

#: Names of tenants, and what they weigh.
WEIGHTS = {"one": 10.0, "two": 20.0, "three": 30.0}
#: Calls that may be refused, and how far a tenant's part may be from its weight.
MOST_REFUSED = 0.02
MOST_OFF = 0.10
#: Parts are counted from when it is known what a job takes.
WARM_UP_SECONDS = 30.0

CREATE_TENANT = "INSERT INTO tenants (name, weight) VALUES (%s, %s) RETURNING id"
SUCCEEDED = """
    SELECT tenant.name, coalesce(sum(counts.succeeded), 0)::int FROM tenants AS tenant
    LEFT JOIN job_counts AS counts ON counts.tenant_id = tenant.id
    GROUP BY tenant.name
"""
TRIES = "SELECT count(*) FROM jobs WHERE status <> 'succeeded' AND attempt > 0"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of it."""

    calls: int
    refused: int
    #: Answers by tenant after the warm-up.
    answers: dict[str, int]
    #: Jobs without an answer that have paid with a try.
    tries: int
    #: Part of the quota that was used.
    used: float

    @property
    def off(self) -> float:
        """How far the worst part is from its weight."""
        total, weights = sum(self.answers.values()), sum(WEIGHTS.values())
        return max(
            abs(self.answers.get(name, 0) / total / (weight / weights) - 1) if total else 1.0
            for name, weight in WEIGHTS.items()
        )

    @property
    def good(self) -> bool:
        """Whether it is as promised."""
        few = self.refused <= MOST_REFUSED * self.calls
        return few and self.off <= MOST_OFF and not self.tries


def run(minutes: float, limit: float, burst_seconds: float) -> Outcome:
    """Let them compete for so long."""
    quota = FakeQuota(limit, burst_seconds=burst_seconds)
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
            line_up(engine, name, weight, jobs)
        time.sleep(WARM_UP_SECONDS)
        before, calls = succeeded(engine), quota.taken
        time.sleep(minutes * 60.0)
        after, taken = succeeded(engine), quota.taken
        with connection(engine) as taken_connection:
            tries = taken_connection.exec_driver_sql(TRIES).scalar_one()
        return Outcome(
            calls=quota.taken + quota.refused,
            refused=quota.refused,
            answers={name: after[name] - before[name] for name in WEIGHTS},
            tries=tries,
            used=(taken - calls) / (limit * minutes),
        )


def line_up(engine: Engine, name: str, weight: float, jobs: int) -> None:
    """A tenant with so many applications in line."""
    with connection(engine) as taken:
        tenant = taken.exec_driver_sql(CREATE_TENANT, (name, weight)).scalar_one()
    work = json.dumps({"candidate": "Ada", "role": name, "payload": {}})
    group = [
        Submission(
            new_id(),
            tenant,
            "score_application",
            "medium",
            work,
            candidate="Ada",
            role=name,
            dependency="claude",
        )
        for _ in range(jobs)
    ]
    admit_group(engine, [Entry(tuple(group))], express=False)


def succeeded(engine: Engine) -> dict[str, int]:
    """Answers so far, by tenant."""
    with connection(engine) as taken:
        return {row[0]: row[1] for row in taken.exec_driver_sql(SUCCEEDED)}


def main() -> None:
    """Run it and say how it went."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.quota", description=__doc__)
    parser.add_argument("--minutes", type=float, default=3.0)
    parser.add_argument("--limit", type=float, default=60.0, help="requests a minute")
    parser.add_argument(
        "--burst-seconds", type=float, default=10.0, help="what the model saves up while idle"
    )
    given = parser.parse_args()
    outcome = run(given.minutes, given.limit, given.burst_seconds)
    print(f"{outcome.calls} calls, {outcome.refused} refused, {outcome.used:.0%} of the quota used")
    print(f"answers {outcome.answers} for weights {WEIGHTS}: {outcome.off:.0%} off at most")
    print(f"{outcome.tries} jobs paid with a try")
    sys.exit(0 if outcome.good else 1)


if __name__ == "__main__":
    main()
