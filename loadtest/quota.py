"""``python -m loadtest.quota``: three tenants share the quota of a model that refuses beyond it.

A whole stack with the Claude scorer, against a local server that takes so many requests a
minute and answers 429 to the rest. All tenants have more to do than the quota takes. What
counts: how many calls are refused, what each tenant gets of the quota, and whether any job pays
with a try.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import dataclass

from sqlalchemy import Engine

from loadtest.chaos.stack import MEDIUM_ONLY, embedded_stack
from loadtest.fakes.claude import FakeClaude, FakeQuota
from loadtest.fleet import admit, rows, tenant_id
from loadtest.report import options
from models.jobs.ids import new_id
from models.jobs.submission import Submission

#: Names of tenants, and what they weigh.
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
        after, connection = succeeded(engine), quota.taken
        return Outcome(
            calls=quota.taken + quota.refused,
            refused=quota.refused,
            answers={name: after[name] - before[name] for name in WEIGHTS},
            tries=rows(engine, TRIES)[0][0],
            used=(connection - calls) / (limit * minutes),
        )


def line_up(engine: Engine, name: str, weight: float, jobs: int) -> None:
    """A tenant with so many applications in line."""
    tenant = tenant_id(engine, name, weight=weight)
    work = json.dumps({"candidate": "Ada", "role": name, "payload": {}})
    terms = {"candidate": "Ada", "role": name, "dependency": "claude"}
    kind = ("score_application", "medium", work)
    admit(engine, (Submission(new_id(), tenant, *kind, **terms) for _ in range(jobs)))


def succeeded(engine: Engine) -> dict[str, int]:
    """Answers so far, by tenant."""
    return dict(map(tuple, rows(engine, SUCCEEDED)))


def main() -> None:
    """Run it and say how it went."""
    given = options(
        *("python -m loadtest.quota", __doc__),
        ("--minutes", 3.0, "of competition"),
        ("--limit", 60.0, "requests a minute"),
        ("--burst-seconds", 10.0, "what the model saves up while idle"),
    )
    outcome = run(given.minutes, given.limit, given.burst_seconds)
    print(f"{outcome.calls} calls, {outcome.refused} refused, {outcome.used:.0%} of the quota used")
    print(f"answers {outcome.answers} for weights {WEIGHTS}: {outcome.off:.0%} off at most")
    print(f"{outcome.tries} jobs paid with a try")
    sys.exit(0 if outcome.good else 1)


if __name__ == "__main__":
    main()
