"""The whole API against its own document, with data that fits it and data that does not.

Left out: event streams, which do not end (``test_openapi`` looks at how they begin), and the
check that whatever fits is accepted, for no schema says which cron expression has a time that
comes, or what payload a job type takes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from schemathesis import engine
from schemathesis.config import SchemathesisConfig
from schemathesis.engine import Status, events
from schemathesis.engine.recorder import ScenarioRecorder

from app.tenants.changes import create_tenant, issue_key
from app.tenants.terms import Change
from tests.support.api_server import ApiServer, serving
from tests.support.database_fixture import DatabaseFixture
from tests.support.described import strict

#: Random data that every operation is called with, beside all the borders of its schema.
EXAMPLES = 4
STREAMS = ("/events", "/jobs/{job_id}/events")
#: Where a check does not hold, for a reason.
EXCEPTIONS = [
    # No worker lives here, so that it is not ready: 503 is the right answer.
    {
        "include-path": "/readyz",
        "checks": {"not_a_server_error": {"expected-statuses": ["2xx", "4xx", "503"]}},
    },
    # DELETE cancels a job, which stays readable.
    {"include-path-regex": "^/jobs/", "checks": {"use_after_free": {"enabled": False}}},
    # DELETE asks for the removal of a tenant, which is readable until the scheduler is done.
    {
        "include-path-regex": "^/operator/tenants/",
        "checks": {"use_after_free": {"enabled": False}},
    },
]


@pytest.fixture(scope="module")
def closed_api(api_database: DatabaseFixture, services_home: Path) -> Iterator[ApiServer]:
    """A deployment that requires a key."""
    url = api_database.engine.url.render_as_string(hide_password=False)
    with serving(
        url, services_home / "logs", anonymous_tenant="", api_workers=1, body_seconds=1.5
    ) as server:
        yield server


def configured(api: ApiServer, tenant_key: str, operator_key: str) -> SchemathesisConfig:
    """The same requests in every run."""
    return SchemathesisConfig.from_dict(
        {
            "seed": 1,
            "base-url": f"http://127.0.0.1:{api.port}",
            "generation": {"max-examples": EXAMPLES, "deterministic": True, "database": "none"},
            "auth": {
                "openapi": {
                    "tenantKey": {"bearer": tenant_key},
                    "operatorKey": {"bearer": operator_key},
                }
            },
            "checks": {"positive_data_acceptance": {"enabled": False}},
            "operations": EXCEPTIONS,
        }
    )


def failures(recorder: ScenarioRecorder) -> Iterator[str]:
    """A failure, with a way to reproduce it."""
    for case_id, nodes in recorder.checks.items():
        for node in nodes:
            if node.status is Status.FAILURE and node.failure_info is not None:
                case = recorder.cases[case_id].value
                told = node.failure_info.failure.message
                yield f"{recorder.label}: {node.name}: {told}\n  {case.as_curl_command()[:500]}"


@pytest.mark.timeout(300)  # some 1,500 requests, a quarter of a minute unless others are busy
def test_every_operation_does_what_the_document_says(
    closed_api: ApiServer, api_database: DatabaseFixture
) -> None:
    create_tenant(api_database.engine, "acme", Change({"tier_limits": False}))
    keys = [issue_key(api_database.engine, name).key for name in ("acme", None)]
    document = strict(closed_api.get("/openapi.json").json())
    schema: Any = schemathesis.openapi.from_dict(document, config=configured(closed_api, *keys))
    for path in STREAMS:
        schema = schema.exclude(path=path)
    expected = {result.ok().label for result in schema.get_all_operations()}
    wrong: list[str] = []
    statuses: dict[str, set[int]] = defaultdict(set)
    for event in engine.from_schema(schema).execute():
        if isinstance(event, events.NonFatalError | events.FatalError):
            wrong.append(repr(event))
        if isinstance(event, events.ScenarioFinished):
            wrong.extend(failures(event.recorder))
            for interaction in event.recorder.interactions.values():
                if interaction.response is not None:
                    statuses[event.recorder.label].add(interaction.response.status_code)
    assert not wrong, "\n".join(wrong[:20])
    assert len(expected) > 35 and expected <= statuses.keys()
    # Not only refused: most operations were got through to.
    accepted = {label for label in expected if {200, 201, 202, 204} & statuses[label]}
    assert len(accepted) > 25, sorted(expected - accepted)
