"""The application services of ``docker-compose.yml`` together, driven as a user would."""

from __future__ import annotations

import base64
import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import psycopg2

from app.stack.ports import keep_ports
from app.tenants.changes import issue_key
from models.jobs.ids import new_id
from models.settings import DatabaseSettings
from models.store.session import open_engine
from tests.support.compose import LocalService, copy_image, start_order


class Stack:
    """All application services of the file, on private local services."""

    def __init__(
        self, services: Mapping[str, Any], folder: Path, database_url: str, broker_url: str
    ) -> None:
        (folder / "blobs").mkdir()
        keep_ports(("api", "flower"), folder / "ports.json")
        ports = json.loads((folder / "ports.json").read_text())
        self.api = f"http://127.0.0.1:{ports['api']}"
        self.flower = f"http://127.0.0.1:{ports['flower']}"
        self.engine_url = database_url
        self.database_url = database_url.replace("+psycopg2", "")
        local = {
            "FAIRLINE_DATABASE_URL": database_url,
            "FAIRLINE_BROKER_URL": broker_url,
            "FAIRLINE_BLOB_URL": str(folder / "blobs"),
            "FAIRLINE_HOST": "127.0.0.1",
            "FAIRLINE_PORT": str(ports["api"]),
            "FLOWER_ADDRESS": "127.0.0.1",
            "FLOWER_PORT": str(ports["flower"]),
        }
        image = copy_image(folder / "image")
        self.services = {
            name: LocalService(name, services[name], local, image, folder)
            for name in start_order(services)
            if "build" in services[name]
        }

    def start(self) -> None:
        """Start what nothing holds back any more, until everything is up."""
        # The others are up already, from elsewhere.
        waiting, satisfied = dict(self.services), {"postgres", "rabbitmq"}
        starting: dict[str, LocalService] = {}
        deadline = time.monotonic() + 60
        while waiting or starting:
            for name in [name for name, service in waiting.items() if service.needs <= satisfied]:
                starting[name] = waiting.pop(name)
                starting[name].start()
            for name in [name for name, service in starting.items() if service.is_satisfied()]:
                satisfied.add(name)
                del starting[name]
            assert time.monotonic() < deadline, "\n\n".join(
                f"{service.name} is not healthy:\n{service.end_of_log()}"
                for service in starting.values()
            )

    @cached_property
    def key(self) -> str:
        """A key of the tenant ``demo``."""
        engine = open_engine(DatabaseSettings(database_url=self.engine_url))
        try:
            return issue_key(engine, "demo").key
        finally:
            engine.dispose()

    def submit(self, candidate: str) -> str:
        """Send an application; its id."""
        body = {"candidate": candidate, "payload": {"text": "I would like to."}}
        status, answer = call(f"{self.api}/applications", body, key=self.key)
        assert status == 202, answer
        return str(answer["id"])

    def application(self, application_id: str) -> dict[str, Any]:
        """What the API says about it."""
        status, answer = call(f"{self.api}/applications/{application_id}", key=self.key)
        assert status == 200, answer
        return dict(answer)

    def queue(self, job_type: str, pool: str, payload: object) -> str:
        """Put a job in a pool's line, as the API will once it takes every type."""
        job_id = new_id()
        self.read(
            "INSERT INTO jobs (id, tenant_id, type, pool, payload, status)"
            " SELECT %s, id, %s, %s, %s, 'queued' FROM tenants WHERE name = 'demo' RETURNING id",
            (job_id, job_type, pool, json.dumps(payload)),
        )
        return job_id

    def status(self, job_id: str) -> str:
        """The status in a job's row."""
        return str(self.read("SELECT status FROM jobs WHERE id = %s", (job_id,))[0][0])

    def read(self, statement: str, parameters: tuple[object, ...] = ()) -> list[tuple[Any, ...]]:
        """Rows from the database."""
        connection = psycopg2.connect(self.database_url)
        try:
            with connection, connection.cursor() as cursor:
                cursor.execute(statement, parameters)
                return cursor.fetchall()
        finally:
            connection.close()


def call(
    url: str, body: object = None, auth: str = "", method: str | None = None, key: str = ""
) -> tuple[int, Any]:
    """Status and document of an HTTP answer."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, method=method)
    request.add_header("Content-Type", "application/json")
    if auth:
        token = base64.b64encode(auth.encode()).decode()
        request.add_header("Authorization", f"Basic {token}")
    if key:
        request.add_header("Authorization", f"Bearer {key}")
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=10) as response:
            status, content = response.status, response.read()
    except urllib.error.HTTPError as error:
        with error:
            status, content = error.code, error.read()
    try:
        return status, json.loads(content)
    except ValueError:
        return status, content.decode()


def eventually(check: Callable[[], bool], seconds: float = 20.0) -> None:
    """Return as soon as `check` holds."""
    deadline = time.monotonic() + seconds
    while not check():
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.05)
