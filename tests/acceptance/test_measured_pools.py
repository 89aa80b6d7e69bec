"""A job type in the wrong pool finds the right one by itself, live."""

from __future__ import annotations

import json

from app.admission import Submission, SubmissionGroup
from app.policy.pool_choice import VIOLATIONS
from models.jobs.admit import admit_group
from models.jobs.ids import new_id
from tests.acceptance.client import Client


def test_a_type_that_is_too_slow_for_its_pool_moves_and_its_next_job_runs_there(
    platform: Client,
) -> None:
    payload = json.dumps({"seconds": 1.05})
    group = [Submission(new_id(), 1, "misplaced", "short", payload) for _ in range(VIOLATIONS)]
    admit_group(platform.engine, [SubmissionGroup(tuple(group))], express=False)
    platform.wait_ended([item.id for item in group])
    moved = (
        "SELECT detail FROM events WHERE kind = 'job_type_moved' AND tenant_id = 0"
        " AND detail ->> 'type' = 'misplaced'"
    )
    platform.stack.wait(lambda: bool(platform.rows(moved)), "the type to be moved", 40)
    [(detail,)] = platform.rows(moved)
    assert (detail["from"], detail["to"]) == ("short", "medium")
    assert 1.05 <= detail["p95_seconds"] <= 60

    def next_goes_to_medium() -> bool:
        [row] = platform.wait_ended([platform.submit_job("misplaced", {"seconds": 0})])
        return (row.pool, row.result) == ("medium", {"prepared": 1})

    platform.stack.wait(next_goes_to_medium, "each API process to have heard of it", 30)
    assert 'fairline_job_type_moved{from="short",to="medium",type="misplaced"} 1' in (
        platform.metrics()
    )
