"""Types to try things out with: unknown unless they were asked for."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from app.stack.environment import stack_defaults
from app.stack.options import read_options
from tests import ROOT
from tests.support.api_server import serving
from tests.support.database_fixture import DatabaseFixture

DEMO_TYPES = {"echo", "sleep", "count", "fail", "crash"}
LIST_TYPES = "import json; from app.celery import job_types; print(json.dumps(sorted(job_types)))"


@pytest.mark.parametrize(
    ("setting", "known"),
    [
        (None, {"score_application"}),
        ("false", {"score_application"}),
        ("true", {"score_application", *DEMO_TYPES}),
    ],
)
def test_processes_know_them_only_if_asked(setting: str | None, known: set[str]) -> None:
    env = {name: value for name, value in os.environ.items() if name != "FAIRLINE_DEMO_TYPES"}
    if setting is not None:
        env["FAIRLINE_DEMO_TYPES"] = setting
    argv = (sys.executable, "-c", LIST_TYPES)
    done = subprocess.run(argv, cwd=ROOT, env=env, capture_output=True, check=True)
    assert set(json.loads(done.stdout)) == known


def test_make_up_has_them_on_a_database_of_its_own() -> None:
    def setting(**given: str) -> str:
        return stack_defaults(read_options(given))["FAIRLINE_DEMO_TYPES"]

    assert setting() == "true"
    assert setting(FAIRLINE_DATABASE_URL="postgresql+psycopg2://db/fairline") == "false"


def test_elsewhere_they_are_refused_like_a_type_that_never_was(
    api_database: DatabaseFixture, services_home: Path
) -> None:
    url = api_database.engine.url.render_as_string(hide_password=False)
    with serving(url, services_home / "logs", demo_types="false", api_workers=1) as api:
        unknown = api.post({"type": "never-was"}, path="/jobs")
        assert unknown.status == 422
        for name in sorted(DEMO_TYPES):
            refused = api.post({"type": name}, path="/jobs")
            assert (refused.status, refused.json()) == (422, unknown.json())
            schedule = {"name": name, "cron": "* * * * *", "type": name}
            assert api.post(schedule, path="/schedules").json() == unknown.json()
        batch = api.post({"jobs": [{"type": "crash"}]}, path="/jobs/batch")
        assert batch.status == 422
        document = api.get("/openapi.json").json()
        of_job = document["components"]["schemas"]["SubmitJob"]["properties"]["type"]
        assert of_job["enum"] == ["score_application"]
        assert of_job["examples"] == ["score_application"]
        api.submit()
