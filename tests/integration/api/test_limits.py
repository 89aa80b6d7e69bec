"""Limits of tenants: 429 with a reason, when to retry, and what remains."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Any

import pytest

from app.tenants.changes import change_tenant, create_tenant, issue_key
from app.tenants.terms import Change
from models.jobs.ids import new_id
from tests.integration.api.test_contract import assert_problem
from tests.support.api_server import Answer, ApiServer
from tests.support.database_fixture import DatabaseFixture

JOB: dict[str, Any] = {"type": "echo", "payload": {}}
APPLICATION: dict[str, Any] = {"candidate": "Ada", "payload": {}}
ROUTES = {"/jobs": JOB, "/applications": APPLICATION, "/jobs/batch": {"jobs": [JOB]}}

RATE, DEPTH = "TENANT_RATE_LIMIT_EXCEEDED", "TENANT_QUEUE_DEPTH_EXCEEDED"


class Client:
    """A dedicated tenant without the limits of its tier, unless asked for, and its key."""

    def __init__(
        self,
        api: ApiServer,
        database: DatabaseFixture,
        limits: dict[str, dict[str, int | None]] | None = None,
        **fields: Any,
    ) -> None:
        self.api, self.database = api, database
        self.tenant = create_tenant(
            database.engine,
            f"t{new_id()[-12:]}",
            Change({"tier_limits": False, **fields}, limits or {}),
        )
        self.headers = {
            "Authorization": f"Bearer {issue_key(database.engine, self.tenant.name).key}"
        }

    def post(self, path: str = "/jobs", body: Any = None, key: str = "") -> Answer:
        headers = self.headers | ({"Idempotency-Key": key} if key else {})
        return self.api.post(ROUTES[path] if body is None else body, headers=headers, path=path)

    def post_batch(self, *jobs: Any, key: str = "") -> Answer:
        return self.post("/jobs/batch", {"jobs": list(jobs)}, key)


def until(condition: Callable[[], bool], seconds: float = 15.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.parametrize("path", list(ROUTES))
def test_who_submits_too_often_is_told_so_and_when_to_come_back(
    api: ApiServer, api_database: DatabaseFixture, path: str
) -> None:
    client = Client(api, api_database, submit_per_second=0.1, submit_burst=3)
    for left in (2, 1, 0):
        answer = client.post(path)
        assert answer.status == 202, answer
        assert answer.headers["ratelimit-policy"] == '"default";q=1;w=10'
        found = re.fullmatch(r'"default";r=(\d+);t=(\d+)', answer.headers["ratelimit"])
        assert found and int(found[1]) == left
        assert 10 * (3 - left) - 5 <= int(found[2]) <= 30, "a busy machine takes a while"
    answer = client.post(path)
    problem = assert_problem(answer, 429, RATE)
    wait = int(answer.headers["retry-after"])
    assert 1 <= wait <= 10
    terms = "1 in 10 seconds, 3 at once"
    assert problem["detail"] == f"You may submit {terms}; try again in {wait} s."
    assert answer.headers["ratelimit"] == f'"default";r=0;t={wait}'
    assert answer.headers["ratelimit-policy"] == '"default";q=1;w=10'


def test_a_refusal_looks_at_nothing_of_the_body(
    api: ApiServer, api_database: DatabaseFixture
) -> None:
    client = Client(api, api_database, submit_per_second=0.01, submit_burst=1)
    assert client.post("/jobs", b"not even json").status == 400
    for path in ("/jobs", "/applications"):
        assert_problem(client.post(path, b"not even json"), 429, RATE)

    def batch_is_refused() -> bool:
        # What it costs stands in the body, so it is read unless this very process of the two
        # knows that nothing is left. A single job makes one of them ask.
        assert client.post("/jobs").status == 429
        return bool(client.post("/jobs/batch", b"not even json").status == 429)

    until(batch_is_refused)


def test_the_next_request_on_the_connection_of_a_refused_one_is_understood(
    api: ApiServer, api_database: DatabaseFixture
) -> None:
    client = Client(api, api_database, submit_per_second=0.01, submit_burst=1)
    assert client.post().status == 202
    key = client.headers["Authorization"]
    large = b'{"type":"echo","payload":"' + b"x" * 300_000 + b'"}'
    post = (
        f"POST /jobs HTTP/1.1\r\nHost: x\r\nAuthorization: {key}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(large)}\r\n\r\n"
    )
    last = b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    stream = api.exchange(post.encode() + large + last, end=False)
    assert re.findall(rb"HTTP/1\.1 (\d+)", stream) == [b"429", b"200"]


def test_unlimited_tenants_hear_nothing_of_limits(
    api: ApiServer, api_database: DatabaseFixture
) -> None:
    client = Client(api, api_database)
    for answer in (client.post(), api.post(JOB, path="/jobs"), client.post_batch(JOB)):
        assert answer.status == 202
        assert not [name for name in answer.headers if name.startswith("ratelimit")]
    assert not api_database.query(
        "SELECT 1 FROM rate_buckets WHERE tenant_id = %s", client.tenant.id
    )


def test_a_new_limit_holds_within_seconds(api: ApiServer, api_database: DatabaseFixture) -> None:
    client = Client(api, api_database)
    assert client.post().status == 202
    limit = {"submit_per_second": 0.01, "submit_burst": 1}
    change_tenant(api_database.engine, client.tenant.name, Change(limit))
    until(lambda: client.post().status == 429)
    change_tenant(api_database.engine, client.tenant.name, Change(dict.fromkeys(limit)))
    until(lambda: client.post().status == 202)


def test_a_batch_spends_what_it_holds(api: ApiServer, api_database: DatabaseFixture) -> None:
    client = Client(api, api_database, submit_per_second=0.1, submit_burst=10)
    assert client.post_batch(*[JOB] * 7).headers["ratelimit"].startswith('"default";r=3;')
    answer = client.post_batch(*[JOB] * 4)
    assert "asked for 4 at once" in assert_problem(answer, 429, RATE)["detail"]
    assert 1 <= int(answer.headers["retry-after"]) <= 10
    assert client.post_batch(*[JOB] * 3).status == 202


def test_a_batch_beyond_the_burst_passes_a_full_bucket_and_leaves_a_debt(
    api: ApiServer, api_database: DatabaseFixture
) -> None:
    client = Client(api, api_database, submit_per_second=10)
    answer = client.post_batch(*[JOB] * 300)
    assert (answer.status, answer.json()["accepted"]) == (202, 300)
    assert answer.headers["ratelimit"] == '"default";r=0;t=30', "until something passes again"
    answer = client.post()
    assert_problem(answer, 429, RATE)
    assert 20 <= int(answer.headers["retry-after"]) <= 30


@pytest.mark.parametrize("path", list(ROUTES))
def test_a_full_line_takes_nothing_more(
    api: ApiServer, api_database: DatabaseFixture, path: str
) -> None:
    pool = "medium" if path == "/applications" else "short"
    client = Client(api, api_database, {pool: {"depth": 3}})
    answers = [client.post(path) for _ in range(5)]
    assert [answer.status for answer in answers] == [202] * 3 + [429] * 2
    detail = assert_problem(answers[-1], 429, DEPTH)["detail"]
    assert pool in detail and "/tenant" in detail
    assert int(answers[-1].headers["retry-after"]) >= 1
    assert "ratelimit" not in answers[-1].headers
    assert client.post_batch({"type": "count", "payload": {"to": 1}}).status == 202, "other pools"


def test_items_of_a_batch_that_do_not_fit_are_told_apart(
    api: ApiServer, api_database: DatabaseFixture
) -> None:
    client = Client(api, api_database, {"short": {"depth": 3}})
    long_job = {"type": "count", "payload": {"to": 1}}
    answer = client.post_batch(JOB, {"type": "nope"}, JOB, JOB, long_job, JOB, long_job)
    body = answer.json()
    assert (answer.status, body["accepted"], body["rejected"]) == (202, 5, 2)
    errors = [result.get("error", {}) for result in body["results"]]
    assert [error.get("code") for error in errors] == [
        *(None, "VALIDATION_FAILED", None, None, None),
        *(DEPTH, None),
    ]
    assert (errors[5]["index"], errors[5]["status"]) == (5, 429)
    for index, pool in ((0, "short"), (4, "long"), (6, "long")):
        assert api_database.job(body["results"][index]["id"]).pool == pool
    assert_problem(client.post_batch(JOB, JOB), 429, DEPTH)


def test_a_repetition_is_answered_even_if_the_line_is_full(
    api: ApiServer, api_database: DatabaseFixture
) -> None:
    client = Client(api, api_database, {"short": {"depth": 3}})
    first = client.post(key="one")
    batch = client.post_batch(JOB, JOB, key="two")
    assert_problem(client.post(key="three"), 429, DEPTH)
    again = client.post(key="one")
    assert (again.status, again.json()) == (202, first.json())
    assert again.headers["idempotent-replayed"] == "true"
    assert client.post_batch(JOB, JOB, key="two").json() == batch.json()


def test_a_batch_with_a_key_is_taken_whole_or_not_at_all(
    api: ApiServer, api_database: DatabaseFixture
) -> None:
    client = Client(api, api_database, {"short": {"depth": 3}})
    assert_problem(client.post_batch(JOB, JOB, JOB, JOB, key="k"), 429, DEPTH)
    assert client.post_batch(JOB, JOB, JOB, key="l").json()["accepted"] == 3


def test_refusals_are_counted_for_the_tenant_and_for_the_metrics(
    api: ApiServer, api_database: DatabaseFixture
) -> None:
    client = Client(
        api, api_database, {"short": {"depth": 1}}, submit_per_second=0.01, submit_burst=6
    )

    def count(tenant_id: int) -> dict[str, int]:
        rows = api_database.query(
            "SELECT code, refused FROM refusals WHERE tenant_id = %s", tenant_id
        )
        return {row[0]: row[1] for row in rows}

    statuses = [client.post_batch(JOB, JOB, JOB).status for _ in range(4)]
    assert statuses == [202, 429, 429, 429]  # two jobs too deep, three, and two batches too fast
    # A batch that is refused before it is read counts as one.
    until(lambda: count(client.tenant.id).get(DEPTH) == 5)
    until(lambda: 2 <= count(client.tenant.id).get(RATE, 0) <= 6)
    own = api.get("/tenant", client.headers).json()
    assert own["waiting"] == {"short": {"scheduled": 0, "queued": 1}}
    assert list(own["refusals"].values()) == [count(client.tenant.id)]
    told = api.get("/metrics").body.decode()
    for code, refused in count(0).items():
        assert f'fairline_refusals_total{{code="{code}"}} {refused}.0\n' in told
    assert client.tenant.name not in told
