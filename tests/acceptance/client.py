"""The one client of the acceptance tests: the front door, and a look at the rows behind it."""

from __future__ import annotations

import itertools
import json
import urllib.request
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Engine, Row

from app.stack.control import ask
from loadtest.chaos.client import Answer, Api
from loadtest.chaos.stack import Stack
from models.jobs.admit import admit_group
from models.jobs.ids import new_id
from models.jobs.submission import Submission, SubmissionGroup
from models.store.session import connect

_roles = itertools.count(1)


def new_role() -> str:
    """A leaderboard that no other test writes to."""
    return f"role-{next(_roles)}"


def scale(stack: Stack, name: str, count: int) -> None:
    """So many processes of a kind; as the command does, which takes a second to start."""
    answer = ask(stack.home, {"command": "scale", "name": name, "count": count})
    assert "error" not in answer, answer


class Client:
    """Somebody who uses a stack, and may read its tables."""

    def __init__(self, stack: Stack, engine: Engine) -> None:
        self.stack = stack
        self.engine = engine
        self.api = Api(stack.port)

    def post(self, candidate: str = "Ada", role: str = "general") -> Answer:
        """Submit one application, whatever the answer is."""
        body = {"candidate": candidate, "role": role, "payload": {"letter": candidate}}
        return self.api.call("POST", "/applications", body)

    def submit(self, count: int, role: str = "general") -> list[str]:
        """Submit applications that must be accepted; their ids."""
        ids = []
        for number in range(count):
            answer = self.post(f"Candidate {number}", role)
            assert answer.status == 202, f"{answer}\n{self.stack.logs()}"
            ids.append(answer.document["id"])
        return ids

    def submit_sleeps(self, count: int, seconds: float) -> list[str]:
        """Jobs of the type ``sleep``, all of them in line at once."""
        payload = json.dumps({"seconds": seconds})
        group = [Submission(new_id(), 1, "sleep", "medium", payload) for _ in range(count)]
        admit_group(self.engine, [SubmissionGroup(tuple(group))], express=False)
        return [item.id for item in group]

    def submit_job(self, job_type: str, payload: Any = None, **fields: Any) -> str:
        """Submit a job that must be accepted; its id."""
        body = {"type": job_type, "payload": payload, **fields}
        answer = self.api.call("POST", "/jobs", body)
        assert answer.status == 202, f"{answer}\n{self.stack.logs()}"
        return str(answer.document["id"])

    def show(self, job_id: str) -> dict[str, Any]:
        """What the front door says about a job."""
        answer = self.api.call("GET", f"/jobs/{job_id}")
        assert answer.status == 200, answer
        return dict(answer.document)

    def status_of(self, application_id: str) -> str:
        """What the front door says about an application."""
        answer = self.api.call("GET", f"/applications/{application_id}")
        return answer.document["status"] if answer.status == 200 else f"HTTP {answer.status}"

    def wait_scored(self, ids: Iterable[str], seconds: float = 60.0) -> None:
        """Wait until the front door shows all of them as scored."""
        waiting = list(ids)

        def all_scored() -> bool:
            waiting[:] = [one for one in waiting if self.status_of(one) != "scored"]
            return not waiting

        self.stack.wait(all_scored, f"{len(waiting)} applications to be scored", seconds)

    def wait_ended(self, ids: Sequence[str], seconds: float = 60.0) -> list[Row[Any]]:
        """Wait until all jobs have succeeded; their rows."""
        self.stack.wait(
            lambda: self.count(ids, "succeeded") == len(ids),
            f"{len(ids)} jobs to succeed",
            seconds,
        )
        return self.rows("SELECT * FROM jobs WHERE id = ANY (%s::uuid[])", list(ids))

    def wait_running(self, ids: Sequence[str], count: int, seconds: float = 40.0) -> None:
        """Wait until that many of the jobs run."""
        self.stack.wait(
            lambda: self.count(ids, "running") >= count, f"{count} jobs to run", seconds
        )

    def count(self, ids: Sequence[str], status: str) -> int:
        """How many of the jobs are in that state."""
        sql = "SELECT count(*) FROM jobs WHERE id = ANY (%s::uuid[]) AND status = %s"
        return int(self.rows(sql, list(ids), status)[0][0])

    def job(self, job_id: str) -> Row[Any]:
        """The whole row."""
        return self.rows("SELECT * FROM jobs WHERE id = %s", job_id)[0]

    def rows(self, sql: str, *parameters: Any) -> list[Row[Any]]:
        """Rows of any statement."""
        with connect(self.engine) as connection:
            return list(connection.exec_driver_sql(sql, parameters).all())

    def metrics(self) -> str:
        """What Prometheus would read."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.stack.port}/metrics") as answer:
            return str(answer.read().decode())

    def leaderboard(self, role: str) -> list[str]:
        """Ids on the leaderboard, in its order."""
        return [entry["id"] for entry in self.api.leaderboard(role)]

    def flower_workers(self) -> dict[str, dict[str, Any]]:
        """What Flower's page of workers shows, by name of the worker."""
        url = f"http://127.0.0.1:{self.stack.flower_port}/workers?json=1"
        with urllib.request.urlopen(url, timeout=30) as answer:
            return {entry["hostname"]: entry for entry in json.load(answer)["data"]}

    def flower_tasks(self) -> list[dict[str, Any]]:
        """What Flower's page of tasks shows first."""
        query = "draw=1&start=0&length=100&order%5B0%5D%5Bcolumn%5D=0"
        url = f"http://127.0.0.1:{self.stack.flower_port}/tasks/datatable?{query}"
        with urllib.request.urlopen(url, timeout=30) as answer:
            return list(json.load(answer)["data"])


@contextmanager
def client_of(stack: Stack) -> Iterator[Client]:
    """A client of a stack that is up."""
    with stack.engine() as engine:
        client = Client(stack, engine)
        with client.api:
            yield client
