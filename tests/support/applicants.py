"""An operator in front of the leaderboard, and applications that were scored."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from werkzeug.test import TestResponse

from app.tenants.changes import issue_key
from models.jobs.claim import JobRef
from models.jobs.settle import Ending
from models.jobs.states import JobStatus
from tasks.scorers.protocol import ApplicationText
from tasks.scorers.simulated import SimulatedScorer
from tests.integration.api.test_contract import bring
from tests.support.database_fixture import DatabaseFixture
from tests.support.http_client import HttpClient, opened

PATH = "/console/leaderboard"
HOSTILE = "<script>alert(1)</script>"
LETTER = {"letter": "Built a compiler in six weeks.", "years": 7}


class Visitor(HttpClient):
    """An operator in a browser."""

    key = ""

    def get(self, path: str) -> TestResponse:
        return self._send("GET", path)

    def send(self, path: str = PATH, **typed: str) -> TestResponse:
        """Submit the form."""
        given = {"tenant": "demo", "candidate": "Ada", "role": "sent", "application": "Hire me."}
        return self._send("POST", path, data={**given, **typed})

    def see(self, path: str) -> str:
        """The words on a page, without its tags."""
        answer = self.get(path)
        assert answer.status_code == 200, answer.text
        return words(answer.text)

    def _send(self, method: str, path: str, **given: Any) -> TestResponse:
        headers = {"Authorization": f"Bearer {self.key}", "Accept": "text/html"}
        return self.app.test_client().open(path, method=method, headers=headers, **given)


def words(part: str) -> str:
    """What a reader sees of a page's content, or of a part of it."""
    start = part.find("<main")
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", part[max(start, 0) :])).split())


@contextmanager
def visiting(database: DatabaseFixture, blobs: Path) -> Iterator[Visitor]:
    """Somebody with an operator's key."""
    with opened(database, blobs, anonymous="demo") as app:
        found = Visitor(app)
        found.key = issue_key(database.engine, None).key
        yield found


def score(
    database: DatabaseFixture, role: str, payload: str | dict[str, Any], **changes: Any
) -> str:
    """An application that was scored as a worker does it; its id."""
    application = ApplicationText("Ada", role, payload)
    job_id = database.submit(
        type="score_application",
        candidate="Ada",
        role=role,
        payload=json.dumps(asdict(application)),
    )
    bring(database, job_id, "running")
    database.execute("UPDATE jobs SET worker = 'w1' WHERE id = %s", job_id)
    record = asdict(SimulatedScorer(seconds=0).score(application)) | changes
    assert database.settle(
        JobRef(job_id, 0), Ending(JobStatus.SUCCEEDED, 1, result=json.dumps(record))
    )
    return job_id
